from __future__ import annotations

import sysconfig
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from temporalio.client import Client
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.testing import WorkflowEnvironment

from tests.databases import end_shared
from wiring.temporal import check_search_attributes

TEMPORAL = str(Path(sysconfig.get_path("scripts")) / "temporal")


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def temporal() -> AsyncIterator[WorkflowEnvironment]:
    """One real server for the whole session; tests keep apart by their queues' names."""
    async with await WorkflowEnvironment.start_local(
        dev_server_existing_path=TEMPORAL,
        dev_server_log_level="error",
        data_converter=pydantic_data_converter,
        dev_server_extra_args=[
            "--dynamic-config-value",
            'history.timerProcessorMaxTimeShift="50ms"',
        ],
    ) as environment:
        await check_search_attributes(environment.client)
        yield environment


@pytest_asyncio.fixture(scope="session", loop_scope="session", autouse=True)
async def databases() -> AsyncIterator[None]:
    """A server of PostgreSQL ends on the loop that it was started on."""
    yield
    await end_shared()


@pytest.fixture
def client(temporal: WorkflowEnvironment) -> Client:
    return temporal.client
