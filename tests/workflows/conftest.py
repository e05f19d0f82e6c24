from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio
from temporalio.client import Client

from tests.trunk import Trunk, running_trunk


@pytest_asyncio.fixture
async def trunk(client: Client, tmp_path: Path) -> AsyncIterator[Trunk]:
    async with running_trunk(client, tmp_path) as trunk:
        yield trunk
