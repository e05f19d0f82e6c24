from __future__ import annotations

import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from sqlalchemy.ext.asyncio import AsyncEngine

from stores.engine import open_engine
from tests.databases import KINDS, database
from tests.stores.story import Backend, Story


@pytest_asyncio.fixture(params=KINDS)
async def backend(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Backend]:
    """The contract's parameter: every database keeps it."""
    async with database(request.param, tmp_path) as url:
        yield Backend(url)


@pytest_asyncio.fixture
async def empty(backend: Backend, tmp_path: Path) -> AsyncIterator[AsyncEngine]:
    """Of the same kind, without a table."""
    async with database(backend.kind, tmp_path, empty=True) as url:
        engine = open_engine(url)
        yield engine
        await engine.dispose()


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
