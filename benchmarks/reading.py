"""How soon a store of 100,000 commits and 10,000 requests answers about one of them."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from importlib.util import find_spec
from pathlib import Path
from statistics import median, quantiles
from typing import Final

from rich.table import Table

from benchmarks.filling import COMMITS, NOW, fill
from domain.fact import Exit, Require
from stores import schema
from stores.engine import open_engine
from stores.reader import SqlReader
from tests.databases import PACKAGE, UPGRADED, server

HEADS: Final = 10_000
REPETITIONS: Final = 300
BUDGET_MS: Final = 5.0
QUEUE: Final = "monorepo/main"
Times = Mapping[str, Sequence[float]]
"""Milliseconds, by the question."""


async def measure(folder: Path) -> dict[str, Times]:
    """By the database; PostgreSQL where its wheel is installed."""
    async with AsyncExitStack() as stack:
        urls = {"SQLite": f"sqlite:///{folder / 'reading.db'}"}
        if find_spec(PACKAGE) is not None:
            own = await stack.enter_async_context(server())
            urls["PostgreSQL"] = await stack.enter_async_context(own.database(UPGRADED))
        return {name: await _times(url) for name, url in urls.items()}


async def _times(url: str) -> Times:
    engine = open_engine(url)
    try:
        await schema.upgrade(engine, NOW)
        await fill(engine, QUEUE, HEADS)
        reader = SqlReader(engine)
        return {what: await _asked(ask, reader) for what, ask in QUESTIONS.items()}
    finally:
        await engine.dispose()


async def _asked(
    ask: Callable[[SqlReader, int], Awaitable[None]], reader: SqlReader
) -> list[float]:
    """Each time about another head, spread over the whole life."""
    took: list[float] = []
    for at in range(REPETITIONS):
        head = 10 * (1 + at * 37 % (HEADS // 10))
        began = time.perf_counter()
        await ask(reader, head)
        took.append(1000 * (time.perf_counter() - began))
    return took


async def _covers(reader: SqlReader, head: int) -> None:
    """Of a commit that was never a head."""
    covers = await reader.covers(QUEUE, f"u{head - 4}-7")
    assert covers.by
    assert covers.by.number == head
    assert covers.answer(Require.COVERED) is Exit.GREEN


async def _is_green(reader: SqlReader, head: int) -> None:
    assert (await reader.covers(QUEUE, f"u{head}")).answer() is Exit.GREEN


QUESTIONS: Final = {"covers": _covers, "is-green": _is_green}


def table(measured: Mapping[str, Times], verdict: Callable[[bool], str]) -> Table:
    title = f"Reading: {HEADS * COMMITS:,} commits, {HEADS:,} requests"
    found = Table("ms", "median", "p95", "from", "to", "budget", "", title=title)
    for database, times in measured.items():
        for what, took in times.items():
            middle, p95 = median(took), quantiles(took, n=20, method="inclusive")[-1]
            shown = [f"{each:.2f}" for each in (middle, p95, min(took), max(took))]
            judged = verdict(middle < BUDGET_MS)
            found.add_row(f"{what}: {database}", *shown, f"{BUDGET_MS:g}", judged)
    found.caption = f"{REPETITIONS} repetitions, one after the other"
    return found
