from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncEngine

from domain.build import Status
from domain.gate import Ancestry, Ask, Pair, Seen
from domain.identity import Fence
from domain.settings import QueueSettings, Route
from stores import schema
from stores import tables as t
from stores.contract import Answer, Build, Committed, Judged, Stamp, Turned
from stores.engine import open_engine
from stores.write import SqlStore

NOW = 1_800_000_000_000


@dataclass
class Story:
    """One queue in a store, driven as the workflows drive it; its clock ticks by itself."""

    store: SqlStore
    engine: AsyncEngine
    fence: Fence
    queue: str = "monorepo/main"
    settings: QueueSettings = field(
        default_factory=lambda: QueueSettings("monorepo/main", "r", "main", hooks=(Route("log"),))
    )
    now: int = NOW
    commits: list[Committed] = field(default_factory=list[Committed])

    def stamp(self) -> Stamp:
        self.now += 10
        return Stamp(self.fence, self.queue, self.now)

    async def report(self, *uris: str, rewrite: bool = False) -> int:
        number = 0
        for uri in uris:
            latest = (await self.store.queue(self.queue)).latest
            head = latest.uri if latest else None
            descends = Ancestry.NO if rewrite else Ancestry.YES
            seen = Seen(uri, 5, head, descends, named_before=False)
            number = (await self.store.ingest(self.stamp(), seen, self.settings)).request
        return number

    async def turn(self, answer: Ancestry = Ancestry.YES) -> Turned:
        """Ask what is asked, as often as it takes."""
        known: dict[Pair, Ancestry] = {}
        while True:
            turned = await self.store.turn(self.stamp(), self.settings, known)
            if not isinstance(turned.step, Ask):
                return turned
            known |= dict.fromkeys(turned.step.pairs, answer)

    async def trigger(self, number: int, attempt: int = 1) -> Build:
        stamp = self.stamp()
        build_id = f"b/{number}/{attempt}"
        build = Build("fake", build_id, number, attempt, Status.ACCEPTED, stamp.at, "url")
        await self.store.build_row(stamp, build, found=False)
        return build

    async def answer(self, number: int, said: str | None, attempt: int = 1) -> Judged:
        answer = Answer(number, attempt, said)
        return await self.store.observe(self.stamp(), answer, self.settings)

    async def validate(self, uri: str, said: str = "succeeded") -> int:
        """From the report to the end event."""
        number = await self.report(uri)
        await self.turn()
        await self.trigger(number)
        await self.answer(number, said)
        await self.record(number)
        return number

    async def record(self, number: int) -> None:
        if await self.store.facts(self.stamp(), number) is not None:
            await self.store.announce(self.stamp(), number, self.settings, None)

    async def history(self, number: int) -> list[str]:
        return [row.kind for row in await self.store.history(self.queue, number)]

    async def rows(self) -> dict[str, int]:
        """How many rows each table holds."""
        async with self.engine.connect() as connection:
            counts = {}
            for table in t.metadata.sorted_tables:
                query = sa.select(sa.func.count()).select_from(table)
                counts[table.name] = (await connection.execute(query)).scalar_one()
            return counts

    def elsewhere(self, queue: str) -> Story:
        settings = replace(self.settings, name=queue)
        return replace(self, queue=queue, settings=settings)


class Backend:
    """Where a store of its own comes from."""

    def __init__(self, url: str) -> None:
        self.url = url

    @asynccontextmanager
    async def story(self) -> AsyncIterator[Story]:
        engine = open_engine(self.url)
        try:
            await schema.upgrade(engine, NOW)
            commits: list[Committed] = []
            store = SqlStore(engine, lambda _f, _q, committed: commits.append(committed))
            yield Story(store, engine, await store.fence(), commits=commits)
        finally:
            await engine.dispose()


@pytest.fixture(params=["sqlite"])
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> Backend:
    """The contract's parameter: every backend keeps it."""
    return Backend(f"{request.param}+aiosqlite:///{tmp_path / 'store.db'}")


@pytest_asyncio.fixture
async def story(backend: Backend) -> AsyncIterator[Story]:
    async with backend.story() as story:
        yield story


class Broken(Exception):
    pass


async def fails_at_each_statement(
    story: Story, act: Callable[[], Awaitable[Any]], unchanged: Callable[[], Awaitable[Any]]
) -> int:
    """Run ``act`` with its k-th statement failing, for every k; what stands must not change."""
    before = await unchanged()
    statement = 0
    while True:
        statement += 1
        seen = 0

        def fail(*_: Any, at: int = statement) -> None:
            nonlocal seen
            seen += 1
            if seen == at:
                raise Broken

        sa.event.listen(story.engine.sync_engine, "before_cursor_execute", fail)
        try:
            await act()
        except Broken:
            pass
        else:
            return statement - 1
        finally:
            sa.event.remove(story.engine.sync_engine, "before_cursor_execute", fail)
        assert await unchanged() == before, f"statement {statement} left something behind"


def milliseconds() -> int:
    return int(time.time() * 1000)
