"""A store, driven in words: one queue, told as a story."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncEngine

from domain.build import Status
from domain.gate import Ancestry, Ask, Pair, Seen
from domain.identity import Fence
from domain.request import Cause, State
from domain.settings import QueueSettings, Route
from stores import schema
from stores import tables as t
from stores.engine import begin, open_engine, parse_url
from stores.rows import Answer, Build, Committed, Judged, Request, Stamp, Turned
from stores.write import SqlStore

NOW: Final = 1_800_000_000_000
QUEUE: Final = "monorepo/main"
Rows = dict[str, list[tuple[Any, ...]]]


@dataclass
class Story:
    """One queue in a store, driven as the workflows drive it; its clock ticks by itself."""

    store: SqlStore
    engine: AsyncEngine
    fence: Fence
    queue: str = QUEUE
    settings: QueueSettings = field(
        default_factory=lambda: QueueSettings(QUEUE, "r", "main", hooks=(Route("log"),))
    )
    now: int = NOW
    commits: list[Committed] = field(default_factory=list[Committed])

    def stamp(self) -> Stamp:
        self.now += 10
        return Stamp(self.fence, self.queue, self.now)

    async def report(self, *uris: str, rewrite: bool = False) -> int:
        """The number of the last one."""
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

    async def fly(self, *uris: str) -> None:
        """Reported one by one, admitted as far as there are slots, each with a build."""
        for uri in uris:
            number = await self.report(uri)
            await self.turn()
            await self.trigger(number)

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

    async def search(self, number: int) -> None:
        """A bisection of that red request."""
        row = {"queue": self.queue, "request": number, "state": "running", "detail": ""}
        ends = {"good_uri": "good", "bad_uri": "bad", "started_at": self.now}
        async with begin(self.engine) as connection:
            await connection.execute(sa.insert(t.bisections).values(row | ends))

    async def history(self, number: int) -> list[str]:
        return [row.kind for row in await self.store.history(self.queue, number)]

    async def request(self, number: int) -> Request:
        return await self.store.request(self.queue, number)

    async def rows(self) -> Rows:
        """Everything that the store holds."""
        return await self._read({table: sa.select(table) for table in t.metadata.sorted_tables})

    async def own_rows(self) -> Rows:
        """Everything of this queue, told without its name: queues of one story are equal."""
        tables = [table for table in t.metadata.sorted_tables if table is not t.installation]
        own = {a: sa.select(a).where(next(iter(a.c)) == self.queue) for a in tables}
        return await self._read(own, lambda value: _replaced(value, self.queue, "?"))

    async def _read(
        self, queries: dict[sa.Table, sa.Select[Any]], told: Callable[[Any], Any] = lambda x: x
    ) -> Rows:
        async with begin(self.engine, reads=True) as connection:
            return {
                table.name: sorted(
                    [tuple(map(told, row)) for row in await connection.execute(query)], key=repr
                )
                for table, query in queries.items()
            }

    async def copied(self, rows: Rows, queue: str) -> Story:
        """Another queue, of which the same holds."""
        async with begin(self.engine) as connection:
            for name, own in rows.items():
                names = t.metadata.tables[name].c.keys()
                for row in own:
                    values = {n: _replaced(v, "?", queue) for n, v in zip(names, row, strict=True)}
                    await connection.execute(sa.insert(t.metadata.tables[name]).values(values))
        return self.elsewhere(queue)

    async def put(self, table: sa.Table, *rows: dict[str, Any]) -> None:
        """Past the contract, as a hand or another program would."""
        async with begin(self.engine) as connection:
            await connection.execute(sa.insert(table), [{"queue": self.queue} | r for r in rows])

    def elsewhere(self, queue: str) -> Story:
        settings = replace(self.settings, name=queue)
        return replace(self, queue=queue, settings=settings)


def _replaced(value: Any, old: str, new: str) -> Any:
    return value.replace(old, new) if isinstance(value, str) else value


def a_request(number: int, state: State = State.ACCEPTED, **changed: Any) -> dict[str, Any]:
    """A row that the database takes, as far as a state asks for columns."""
    flown = {"strategy": "full", "admitted_at": NOW, "deadline_at": NOW + 1}
    cause = {
        State.SUPERSEDED: Cause.SUPERSEDED_BY_NEWER_HEAD,
        State.SUCCEEDED: Cause.BUILD_SUCCEEDED,
        State.FAILED: Cause.BUILD_FAILED,
        State.CANCELLED: Cause.BUILD_CANCELLED,
    }.get(state)
    ended = {"cause": cause, "ended_at": NOW} if cause else {}
    has_flown = state not in (State.ACCEPTED, State.SUPERSEDED)
    row = {"queue": QUEUE, "number": number, "order": number, "line": 1, "uri": f"u{number}"}
    row |= {"origin": "head", "state": state, "cause": None, "accepted_at": NOW, "ended_at": None}
    row |= {"strategy": None, "admitted_at": None, "deadline_at": None, "recorded_at": None}
    row |= {"retry_of": None, "probe_of": None, "green_at": None}
    return row | ended | (flown if has_flown else {}) | changed


class Backend:
    """Where a store of its own comes from."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.kind = parse_url(url).get_backend_name()

    @asynccontextmanager
    async def story(self) -> AsyncIterator[Story]:
        engine = open_engine(self.url)
        if self.kind == "sqlite":
            sa.event.listen(engine.sync_engine, "connect", _hurry)
        try:
            await schema.upgrade(engine, NOW)
            commits: list[Committed] = []
            store = SqlStore(engine, lambda _f, _q, committed: commits.append(committed))
            yield Story(store, engine, await store.fence(), commits=commits)
        finally:
            await engine.dispose()


def _hurry(connection: Any, _record: object) -> None:
    """No test pulls the plug, so none waits for the disk."""
    cursor = connection.cursor()
    cursor.execute("pragma synchronous = off")
    cursor.close()
