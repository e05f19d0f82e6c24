"""Questions to the store, each in a transaction of its own that only reads."""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncEngine

from domain.bisect import Observed
from domain.explain import Line
from domain.fact import GREEN, Fact
from domain.identity import Fence
from domain.request import Origin, State
from domain.settings import QueueSettings
from stores import tables as t
from stores.bisecting import observed_at, read_bisection
from stores.covering import covers_of
from stores.engine import begin
from stores.explaining import explained
from stores.ranges import Bisection, Covers
from stores.read import (
    R,
    attempts_at,
    audit_of,
    builds_of,
    check_fence,
    count_history,
    delivery_of,
    facts_at,
    history_of,
    holder,
    last_green,
    letters,
    many,
    one,
    pausing,
    read_letter,
    read_stage,
    the_request,
    top,
)
from stores.rows import (
    Build,
    DeadLetter,
    Delivering,
    Delivery,
    Happening,
    Owed,
    QueueState,
    Request,
    Stage,
)
from stores.view import everything_owed


class SqlReader:
    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine

    async def fence(self) -> Fence:
        async with begin(self._engine, reads=True) as connection:
            row = (await connection.execute(sa.select(t.installation))).one()
            return Fence(row.id, row.epoch)

    async def check(self, fence: Fence) -> None:
        async with begin(self._engine, reads=True) as connection:
            await check_fence(connection, fence)

    async def holder(self, fence: Fence, queue: str) -> Request | None:
        async with begin(self._engine, reads=True) as connection:
            await check_fence(connection, fence)
            return await one(connection, holder(queue))

    async def queues(self) -> Sequence[str]:
        async with begin(self._engine, reads=True) as connection:
            query = sa.select(t.queues.c.name).order_by(t.queues.c.name)
            return list((await connection.execute(query)).scalars())

    async def queue(self, queue: str) -> QueueState:
        async with begin(self._engine, reads=True) as connection:
            query = sa.select(t.queues).where(t.queues.c.name == queue)
            row = (await connection.execute(query)).one_or_none()
            active = sa.select(t.requests).where(R.queue == queue, R.ended_at.is_(None))
            requests = await many(connection, active.order_by(R.order, R.number))
            return QueueState(
                queue,
                row.version if row else 0,
                row.paused_reason if row else None,
                await one(connection, top(queue)),
                await one(connection, last_green(queue)),
                await one(connection, holder(queue)),
                tuple(r for r in requests if r.state is State.ACCEPTED),
                tuple(r for r in requests if r.state is State.PROCESSING),
                await pausing(connection, queue) if row and row.paused_reason else None,
            )

    async def request(self, queue: str, number: int) -> Request:
        async with begin(self._engine, reads=True) as connection:
            return await the_request(connection, queue, number)

    async def requests(
        self, queue: str, *, state: State | None = None, limit: int = 50
    ) -> Sequence[Request]:
        query = sa.select(t.requests).where(R.queue == queue)
        if state is not None:
            query = query.where(R.state == state)
        async with begin(self._engine, reads=True) as connection:
            return await many(connection, query.order_by(R.number.desc()).limit(limit))

    async def attempts(self, queue: str, uri: str) -> Sequence[Request]:
        async with begin(self._engine, reads=True) as connection:
            return await many(connection, attempts_at(queue, uri))

    async def fact(self, queue: str, uri: str, project: str = "") -> Fact | None:
        async with begin(self._engine, reads=True) as connection:
            return await facts_at(connection, queue, uri, project)

    async def last_green_of(self, queue: str, project: str) -> Request | None:
        f = t.facts.c
        green = (f.queue == queue) & (f.project == project) & (f.degree == GREEN)
        query = (
            sa.select(t.requests)
            .join(t.facts, (R.queue == f.queue) & (R.number == f.request))
            .where(green, R.origin != Origin.PROBE)
            .order_by(R.order.desc(), R.number.desc())
            .limit(1)
        )
        async with begin(self._engine, reads=True) as connection:
            return await one(connection, query)

    async def covers(self, queue: str, uri: str) -> Covers:
        async with begin(self._engine, reads=True) as connection:
            return await covers_of(connection, queue, uri)

    async def builds(self, queue: str, number: int) -> Sequence[Build]:
        async with begin(self._engine, reads=True) as connection:
            return await builds_of(connection, queue, number)

    async def history(self, queue: str, number: int) -> Sequence[Happening]:
        async with begin(self._engine, reads=True) as connection:
            return await history_of(connection, queue, str(number))

    async def audit(self, queue: str) -> Sequence[Happening]:
        async with begin(self._engine, reads=True) as connection:
            return await audit_of(connection, queue)

    async def is_told(self, queue: str, number: int, kinds: Sequence[str]) -> bool:
        async with begin(self._engine, reads=True) as connection:
            return await count_history(connection, queue, number, kinds) > 0

    async def deliveries(self, queue: str, number: int) -> Sequence[Delivery]:
        d = t.hook_deliveries.c
        query = sa.select(t.hook_deliveries).where((d.queue == queue) & (d.request == number))
        async with begin(self._engine, reads=True) as connection:
            own = (await connection.execute(sa.select(t.installation.c.id))).scalar_one()
            rows = await connection.execute(query.order_by(d.sequence, d.event_id, d.sink))
            return [delivery_of(own, row) for row in rows]

    async def pending(self, queue: str, number: int) -> Sequence[Delivery]:
        every = await self.deliveries(queue, number)
        return [delivery for delivery in every if delivery.state is Delivering.PENDING]

    async def dead_letters(self, queue: str) -> Sequence[DeadLetter]:
        d = t.dead_letters.c
        query = letters(queue).where(d.resolved_at.is_(None)).order_by(d.created_at.desc(), d.id)
        async with begin(self._engine, reads=True) as connection:
            return [DeadLetter(*row) for row in await connection.execute(query)]

    async def dead_letter_of(self, queue: str, letter: str) -> DeadLetter:
        async with begin(self._engine, reads=True) as connection:
            return await read_letter(connection, queue, letter)

    async def owed(self, queue: str, at: int, settings: QueueSettings | None) -> Sequence[Owed]:
        async with begin(self._engine, reads=True) as connection:
            return await everything_owed(connection, queue, at, settings)

    async def explain(
        self, queue: str, settings: QueueSettings | None, uri: str | None = None
    ) -> Sequence[Line]:
        async with begin(self._engine, reads=True) as connection:
            return await explained(connection, queue, settings, uri)

    async def bisection(self, queue: str, number: int) -> Bisection | None:
        async with begin(self._engine, reads=True) as connection:
            return await read_bisection(connection, queue, number)

    async def observed(self, queue: str, number: int, uris: Sequence[str]) -> Sequence[Observed]:
        async with begin(self._engine, reads=True) as connection:
            return await observed_at(connection, queue, number, uris)

    async def stage(self, fence: Fence, queue: str, number: int) -> Stage:
        async with begin(self._engine, reads=True) as connection:
            await check_fence(connection, fence)
            return await read_stage(connection, queue, number)
