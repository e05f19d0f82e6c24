"""All that is left of a run, and what can be read from it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncEngine

from domain.event import HookEvent
from domain.fact import Exit, Require
from domain.request import Origin
from stores import tables as t
from stores.contract import Reader
from stores.engine import begin

Row = Mapping[str, Any]
Answers = Mapping[Require, Exit]


@dataclass(frozen=True)
class Ran:
    """A build, as its runner knows it."""

    id: str
    key: str
    uri: str
    status: str


@dataclass(frozen=True)
class Evidence:
    """All that is left of a run; ``rows`` are the queue's own, by table."""

    queue: str
    rows: Mapping[str, Sequence[Row]]
    pushes: Sequence[str]
    ref: str | None
    heard: Mapping[str, Sequence[HookEvent]]
    ran: Sequence[Ran]
    tip: str | None
    cap: int = 1
    most_open: int = 0
    """The most builds that the runner had under way at one time."""
    earlier: Sequence[Mapping[str, Sequence[Row]]] = ()
    """The rows as they were whenever somebody looked while it ran."""
    has_own_key: bool = True
    parents: Mapping[str, str | None] = field(default_factory=dict[str, str | None])
    """Of every commit that there ever was."""
    answers: Mapping[str, Answers] = field(default_factory=dict[str, Answers])
    """What the store says of each, at the end."""

    @property
    def requests(self) -> Sequence[Row]:
        return self.rows["requests"]

    def told(self, number: int | str) -> Counter[str]:
        mine = [h for h in self.rows["history"] if h["subject"] == str(number)]
        return Counter(row["kind"] for row in mine)

    def fact(self, uri: str) -> Row | None:
        """The authoritative one about the repository."""
        at = [f for f in self.rows["facts"] if (f["uri"], f["project"]) == (uri, "")]
        return max(at, key=lambda f: (f["degree"] == 0, f["request"]), default=None)

    def line(self, tip: str | None) -> list[str]:
        """The commit and its ancestors, newest first."""
        found: list[str] = []
        while tip is not None:
            found.append(tip)
            tip = self.parents[tip]
        return found

    def is_green(self, uri: str) -> bool:
        fact = self.fact(uri)
        return fact is not None and fact["degree"] == 0


async def rows_of(engine: AsyncEngine, queue: str) -> dict[str, list[Row]]:
    tables = [table for table in t.metadata.sorted_tables if table is not t.installation]
    async with begin(engine, reads=True) as connection:
        found: dict[str, list[Row]] = {}
        for table in tables:
            query = sa.select(table).where(next(iter(table.c)) == queue)
            found[table.name] = [dict(row._mapping) for row in await connection.execute(query)]
    return found


async def answers_of(store: Reader, queue: str, uris: Iterable[str]) -> dict[str, Answers]:
    found = {uri: await store.covers(queue, uri) for uri in uris}
    return {uri: {how: covers.answer(how) for how in Require} for uri, covers in found.items()}


def newest(requests: Sequence[Row]) -> Row | None:
    """A probe is never the newest of anything."""
    heads = [r for r in requests if r["origin"] != Origin.PROBE]
    return max(heads, key=lambda r: (r["order"], r["number"]), default=None)
