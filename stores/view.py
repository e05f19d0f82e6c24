"""What the gate sees, and what must run: read alike by a turn and by whoever asks why."""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from typing import Final

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from domain.explain import MOST, Flight, Gate, Pause, Tries
from domain.gate import Ask, Flying, Hold, Reason, View, Waiting, asked
from domain.request import VERDICTS, Cause, Origin, State
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
    pausing,
    read_stage,
    the_request,
    top,
)
from stores.rows import Delivering, Owed, Request, Work

SETTLED: Final = (Cause.SUPERSEDED_BY_NEWER_HEAD, *VERDICTS)
"""Endings that nobody need try again."""


async def _bisections(connection: AsyncConnection, queue: str) -> list[Owed]:
    b = t.bisections.c
    mine = (b.queue == queue) & (b.state == Searching.RUNNING)
    numbers = (await connection.execute(sa.select(b.request).where(mine))).scalars().all()
    found = [await the_request(connection, queue, number) for number in numbers]
    return [Owed(r.number, r.uri, r.state, kind=Work.BISECT) for r in found]


async def active_of(
    connection: AsyncConnection, queue: str
) -> tuple[Sequence[Request], Sequence[Request]]:
    """Who waits, first the one that the gate looks at; and who is in flight."""
    active = sa.select(t.requests).where(R.queue == queue, R.ended_at.is_(None))
    requests = await many(connection, active.order_by(R.order, R.number))
    waits = [r for r in requests if r.state is State.ACCEPTED]
    waiting = sorted(waits, key=lambda r: r.origin is Origin.PROBE)  # after all others
    return waiting, [r for r in requests if r.state is State.PROCESSING]


async def view_of(connection: AsyncConnection, queue: str, cap: int) -> View:
    waiting, flying = await active_of(connection, queue)
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


async def gate_of(
    connection: AsyncConnection, queue: str, step: Ask | Hold, most: int | None = None
) -> Gate:
    """What the gate decided, with whom it is about; first those that stand in the way."""
    waiting, flying = await active_of(connection, queue)
    hold = asked(step) if isinstance(step, Ask) else step
    flying = sorted(flying, key=lambda r: r.number not in hold.who)
    flights = [await _flight(connection, request) for request in flying[:most]]
    more = len(waiting[most:]) + len(flying[most:]) if most else 0
    pause = await _pause(connection, queue)
    return Gate(queue, hold, waiting[:most], flights, pause, more)


async def told_of(connection: AsyncConnection, queue: str, step: Ask | Hold) -> Gate:
    """For each turn: short, and of a queue that is at ease nothing more is read."""
    if isinstance(step, Hold) and step.reason is Reason.NOTHING_WAITS and not step.detail:
        return Gate(queue, step)
    return await gate_of(connection, queue, step, MOST)


async def _flight(connection: AsyncConnection, request: Request) -> Flight:
    stage = await read_stage(connection, request.queue, request.number)
    lost = None
    if build := stage.build:
        h, once = t.history.c, f"{build.id}@{build.triggered_at}"
        mine = (h.queue == request.queue) & (h.subject == str(request.number))
        this = mine & (h.kind == "build_lost") & (h.occurrence == once)
        lost = (await connection.execute(sa.select(h.at).where(this))).scalar()
    return Flight(request, stage.attempt, stage.build, stage.is_ending, lost)


async def _pause(connection: AsyncConnection, queue: str) -> Pause | None:
    reason = await paused_reason(connection, queue)
    if reason is None:
        return None
    told = await pausing(connection, queue)
    return Pause(reason, (told and told.actor) or "nobody known", told.at if told else 0)


async def tries_of(
    connection: AsyncConnection,
    queue: str,
    settings: QueueSettings | None,
    ended: Request | None = None,
) -> Tries | None:
    """Of the latest, or another one that ended without a verdict; None when it did not."""
    latest = await one(connection, top(queue))
    ended = ended or latest
    if latest is None or ended is None or ended.cause in {None, *SETTLED}:
        return None
    place = sa.select(t.requests).where(R.queue == queue, R.order == latest.order)
    attempts = await many(connection, place)
    pause = "the queue is paused" if await paused_reason(connection, queue) is not None else ""
    return Tries(ended, latest, attempts, pause if settings else "the queue is not configured")
