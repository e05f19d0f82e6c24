from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio
from temporalio.client import Client
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.testing import WorkflowEnvironment

from tests.conftest import TEMPORAL
from tests.trunk import Trunk, running_trunk
from wiring.temporal import check_search_attributes


@pytest_asyncio.fixture
async def trunk(client: Client, tmp_path: Path) -> AsyncIterator[Trunk]:
    async with running_trunk(client, tmp_path) as trunk:
        yield trunk


@pytest_asyncio.fixture
async def virtual() -> AsyncIterator[Client]:
    """A server on which waits of a workflow without children pass at once."""
    async with await WorkflowEnvironment.start_time_skipping_v2(
        dev_server_existing_path=TEMPORAL,
        dev_server_log_level="error",
        data_converter=pydantic_data_converter,
        dev_server_extra_args=[
            "--dynamic-config-value",
            "frontend.WorkflowTimeSkippingEnabled=true",
        ],
    ) as environment:
        await check_search_attributes(environment.client)
        yield environment.client
