"""What the gate sees, and what must run: read alike by a turn and by whoever asks why."""

from __future__ import annotations

from collections.abc import Set as AbstractSet

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from domain.gate import Flying, View, Waiting
from domain.request import Cause, Origin, State
from domain.settings import QueueSettings, ms
from stores import tables as t
from stores.ranges import Searching
from stores.read import (
    R,
    facts_at,
    last_green,
    many,
    one,
    owed,
    paused_reason,
    the_request,
)
from stores.rows import Delivering, Owed, Request, Work


async def _bisections(connection: AsyncConnection, queue: str) -> list[Owed]:
    b = t.bisections.c
    mine = (b.queue == queue) & (b.state == Searching.RUNNING)
    numbers = (await connection.execute(sa.select(b.request).where(mine))).scalars().all()
    found = [await the_request(connection, queue, number) for number in numbers]
    return [Owed(r.number, r.uri, r.state, kind=Work.BISECT) for r in found]


async def view_of(connection: AsyncConnection, queue: str, cap: int) -> View:
    active = sa.select(t.requests).where(R.queue == queue, R.ended_at.is_(None))
    requests = await many(connection, active.order_by(R.order, R.number))
    flying = [r for r in requests if r.state is State.PROCESSING]
    waits = [r for r in requests if r.state is State.ACCEPTED]
    waiting = sorted(waits, key=lambda r: r.origin is Origin.PROBE)  # after all others
    first = [await _waiting(connection, queue, waiting[0])] if waiting else []
    green = await one(connection, last_green(queue))
    return View(
        first + [Waiting(r.number, r.uri, r.origin) for r in waiting[1:]],
        [Flying(r.number, r.uri, r.admitted_at or r.accepted_at, r.origin) for r in flying],
        green.uri if green else None,
        cap,
        await paused_reason(connection, queue),
    )


async def _waiting(connection: AsyncConnection, queue: str, first: Request) -> Waiting:
    busy = owed(queue, R.uri == first.uri, R.number != first.number)
    rivals = await many(connection, busy)
    rival = next((r.number for r in rivals if r.cause is not Cause.ADOPTED_FACT), None)
    fact = await facts_at(connection, queue, first.uri)
    base = await good_end(connection, first) if first.origin is Origin.PROBE else None
    return Waiting(first.number, first.uri, first.origin, fact is not None, rival, base)


async def good_end(connection: AsyncConnection, probe: Request) -> str | None:
    b = t.bisections.c
    mine = (b.queue == probe.queue) & (b.request == probe.probe_of)
    good: str | None = (await connection.execute(sa.select(b.good_uri).where(mine))).scalar()
    return good


async def everything_owed(
    connection: AsyncConnection,
    queue: str,
    at: int,
    settings: QueueSettings | None,
    before: AbstractSet[int] = frozenset(),
) -> tuple[Owed, ...]:
    grace = ms(settings.slot_grace) if settings else 0
    must = [
        Owed(
            r.number,
            r.uri,
            r.state,
            r.deadline_at or 0,
            again=r.number in before,
            overdue=r.state is State.PROCESSING and at >= (r.deadline_at or 0) + grace,
        )
        for r in await many(connection, owed(queue))
    ]
    must += await _bisections(connection, queue)
    d = t.hook_deliveries.c
    due = (d.queue == queue) & (d.state == Delivering.PENDING)
    pending = (await connection.execute(sa.select(d.request).where(due).distinct())).scalars()
    running = {one.request for one in must if one.kind is Work.BUILD}
    for number in pending:
        if number not in running:
            request = await the_request(connection, queue, number)
            must.append(Owed(number, request.uri, request.state, kind=Work.HOOKS))
    return tuple(must)
