from __future__ import annotations

import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.stores.story import Backend, Story


@pytest.fixture(params=["sqlite"])
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> Backend:
    """The contract's parameter: every backend keeps it."""
    return Backend(f"{request.param}+aiosqlite:///{tmp_path / 'store.db'}")


@pytest_asyncio.fixture
async def story(backend: Backend) -> AsyncIterator[Story]:
    async with backend.story() as story:
        yield story


@pytest_asyncio.fixture
async def pair(backend: Backend) -> AsyncIterator[tuple[Story, Story]]:
    """One queue of one store, driven over two engines."""
    async with backend.story() as one, backend.story() as other:
        yield one, other


def milliseconds() -> int:
    return int(time.time() * 1000)
