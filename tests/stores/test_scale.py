"""A hundred thousand requests and a million commits cost what a hundred requests do."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any, Final

import pytest
import pytest_asyncio
import sqlalchemy as sa

from benchmarks.filling import COMMITS, fill
from domain.bisect import Probe
from domain.gate import Ancestry
from domain.request import State
from stores import tables as t
from stores.engine import begin
from stores.ranges import RangePage
from tests.stores.faults import listening
from tests.stores.story import Backend, Story

FEW, MANY = 100, 100_000
TABLES: Final = [table.name for table in t.metadata.sorted_tables if table is not t.installation]
PAGES: Final = 15
"""Of a statement, at most."""
STATEMENTS: Final = 40
"""Of a call, which may ask and ask again, at most."""


@dataclass
class Meter:
    """How much a call costs the database, and in how many statements."""

    story: Story
    steps: int = 0

    async def cost(self, act: Callable[[], Awaitable[Any]]) -> tuple[int, list[str]]:
        said: list[tuple[str, Any]] = []

        def heard(*arguments: Any) -> None:
            _, _, statement, parameters, _, is_many = arguments
            said.append((statement, parameters[0] if is_many else parameters))

        with listening(self.story, "before_cursor_execute", heard):
            self.steps = 0
            await act()
            steps = self.steps
        for statement, parameters in said:
            if not statement.startswith(("BEGIN", "SET", "INSERT")):
                steps += await self.planned(statement, parameters)
        return steps, [statement for statement, _ in said]

    async def planned(self, statement: str, parameters: Any) -> int:
        raise NotImplementedError


class SqliteMeter(Meter):
    """In steps of its machine."""

    def tick(self) -> int:
        self.steps += 1
        return 0

    def listen(self, connection: Any, _record: object) -> None:
        connection.run_async(lambda driver: driver.set_progress_handler(self.tick, 10))

    async def planned(self, statement: str, parameters: Any) -> int:
        async with begin(self.story.engine, reads=True) as connection:
            plan = await connection.exec_driver_sql(f"explain query plan {statement}", parameters)
            steps = list(plan.scalars("detail"))
        scans = [s for s in steps if any(s.startswith(f"SCAN {table}") for table in TABLES)]
        assert not scans, statement
        return 0


class PostgresqlMeter(Meter):
    """In pages, however the planner chooses to come to them."""

    async def planned(self, statement: str, parameters: Any) -> int:
        explain = f"explain (analyze, buffers, format json) {statement}"
        async with begin(self.story.engine) as connection:
            (plan,) = (await connection.exec_driver_sql(explain, parameters)).scalar_one()
            await connection.rollback()
        pages: int = plan["Plan"]["Shared Hit Blocks"] + plan["Plan"]["Shared Read Blocks"]
        assert pages < PAGES, statement
        return pages


@pytest_asyncio.fixture
async def meter(backend: Backend) -> AsyncIterator[Meter]:
    async with backend.story() as story:
        if story.engine.dialect.name == "postgresql":
            yield PostgresqlMeter(story)
            return
        meter = SqliteMeter(story)
        await story.engine.dispose()
        sa.event.listen(story.engine.sync_engine, "connect", meter.listen)
        yield meter


async def filled(story: Story, count: int) -> Story:
    story = story.elsewhere(f"queue/{count}")
    await fill(story.engine, story.queue, count)
    await story.search(50)
    return story


def questions(story: Story) -> dict[str, Callable[[], Awaitable[Any]]]:
    """One life of a request, and what is asked about it; in order."""
    store, queue, settings = story.store, story.queue, replace(story.settings, promote="green")
    number = int(queue.rpartition("/")[2]) + 1
    return {
        "ingest": lambda: story.report("new"),
        "gate": lambda: story.turn(Ancestry.YES),
        "build": lambda: story.trigger(number),
        "stage": lambda: store.stage(story.fence, queue, number),
        "no news": lambda: story.answer(number, "accepted"),
        "settle": lambda: story.answer(number, "succeeded"),
        "what is owed": lambda: story.turn(Ancestry.YES),
        "fact": lambda: store.facts(story.stamp(), number),
        "recorded": lambda: store.announce(story.stamp(), number, story.settings, None),
        "rewrite": lambda: story.report("other", rewrite=True),
        "latest, last green, holder": lambda: store.queue(queue),
        "cover": lambda: store.cover(story.stamp(), number, RangePage(("new", "u1"), 0)),
        "probe": lambda: store.probe(story.stamp(), 50, Probe("u41-5", "u40", "u50"), None),
        "its search": lambda: store.bisection(queue, 50),
        "what is known in its range": lambda: store.observed(queue, 50, ["u50", "u41-5"]),
        "attempts at a commit": lambda: store.attempts(queue, "u50"),
        "its cover and its neighbours": lambda: store.covers(queue, "u50"),
        "those of one that was never a head": lambda: store.covers(queue, "u41-5"),
        "those of one that nobody knows": lambda: store.covers(queue, "nobody"),
        "its fact": lambda: store.fact(queue, "u50"),
        "its history": lambda: store.history(queue, 50),
        "its builds": lambda: store.builds(queue, 50),
        "its deliveries": lambda: store.pending(queue, number),
        "the newest": lambda: store.requests(queue, limit=10),
        "why it stands": lambda: store.explain(queue, settings),
        "all about a commit": lambda: store.explain(queue, settings, "u50"),
    }


@pytest.mark.spec("V307")
async def test_no_call_costs_more_when_the_queue_is_long(meter: Meter) -> None:
    """A commit that a verdict covers is a row: a million of them here."""
    short, long = [await filled(meter.story, count) for count in (FEW, MANY)]
    assert await rows_of_coverage(long) == MANY * COMMITS == 1_000_000
    asked = questions(long)
    for what, act in questions(short).items():
        few, few_said = await meter.cost(act)
        many, many_said = await meter.cost(asked[what])
        assert many_said == few_said, what
        assert len(many_said) < STATEMENTS, what
        assert 0 < many <= 2 * few + 20, what
    assert (await short.request(FEW + 1)).state is State.SUCCEEDED
    assert (await long.request(MANY + 1)).state is State.SUCCEEDED
    covers = await long.store.covers(long.queue, "u41-5")
    greens = [request and request.uri for request in (covers.prior_green, covers.next_green)]
    assert greens == ["u40", "u50"]


async def rows_of_coverage(story: Story) -> int:
    mine = sa.select(sa.func.count()).where(t.coverage.c.queue == story.queue)
    async with begin(story.engine, reads=True) as connection:
        return (await connection.execute(mine)).scalar_one()
