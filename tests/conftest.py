from __future__ import annotations

import sysconfig
from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio
from temporalio.testing import WorkflowEnvironment

TEMPORAL = str(Path(sysconfig.get_path("scripts")) / "temporal")


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def temporal() -> AsyncIterator[WorkflowEnvironment]:
    """One real server for the whole session; tests keep apart by their queues' names."""
    async with await WorkflowEnvironment.start_local(
        dev_server_existing_path=TEMPORAL, dev_server_log_level="error"
    ) as environment:
        yield environment
