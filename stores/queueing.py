"""Inside a turn and an ingest: who waits, who is admitted, what must run."""

from __future__ import annotations

from collections.abc import Mapping

import sqlalchemy as sa

from domain.gate import (
    Admit,
    Adopt,
    Ancestry,
    Ask,
    Flying,
    Hold,
    Pair,
    Seen,
    View,
    Waiting,
    next_step,
)
from domain.request import Cause, Origin, State, Transition
from domain.settings import QueueSettings, ms
from stores import tables as t
from stores.contract import (
    Delivering,
    Owed,
    Request,
)
from stores.read import (
    R,
    facts_at,
    last_green,
    many,
    one,
    owed,
    the_request,
)
from stores.transaction import Tx, move, supersede


async def mint(tx: Tx, seen: Seen, latest: Request | None) -> int:
    q = t.queues.c
    mine = q.name == tx.queue
    number: int = (
        await tx.connection.execute(
            sa.update(t.queues)
            .where(mine)
            .values(next_number=q.next_number + 1)
            .returning(q.next_number - 1)
        )
    ).scalar_one()
    line = number if latest is None or seen.is_rewrite else latest.line
    values = {
        "queue": tx.queue,
        "number": number,
        "order": number,
        "line": line,
        "uri": seen.uri,
        "origin": Origin.HEAD,
        "committed_at": seen.committed_at,
        "state": State.ACCEPTED,
        "accepted_at": tx.at,
    }
    await tx.connection.execute(sa.insert(t.requests).values(values))
    await tx.note(number, "accepted", "rewrite" if seen.is_rewrite else "")
    return number


async def adopt(tx: Tx, number: int, uri: str) -> bool:
    """Take over the commit's authoritative fact, if it has one: no build, only a record."""
    fact = await facts_at(tx.connection, tx.queue, uri)
    if fact is None:
        return False
    state = State.SUCCEEDED if fact.is_green else State.FAILED
    green_at = tx.at if fact.is_green else None
    detail = f"{fact.verdict}, by request/{tx.queue}/{fact.request}"
    cause = Cause.ADOPTED_FACT
    await move(tx, Transition(number, state, tx.at, cause, detail, green_at=green_at))
    return True


async def gate(tx: Tx, settings: QueueSettings, known: Mapping[Pair, Ancestry]) -> Ask | Hold:
    await supersede(tx, settings.max_concurrent)
    while True:
        view = await _view(tx, settings.max_concurrent)
        step = next_step(view, known)
        match step:
            case Admit():
                await move(tx, _admission(tx, step, settings))
            case Adopt():
                uris = {waiting.number: waiting.uri for waiting in view.waiting}
                await adopt(tx, step.request, uris[step.request])
            case _:
                return step


def _admission(tx: Tx, step: Admit, settings: QueueSettings) -> Transition:
    detail = f"{step.strategy}: {step.fallback or step.base or 'no last green'}"
    return Transition(
        step.request,
        State.PROCESSING,
        tx.at,
        detail=detail,
        strategy=step.strategy,
        base_uri=step.base,
        deadline_at=tx.at + ms(settings.validation_timeout),
    )


async def _view(tx: Tx, cap: int) -> View:
    active = sa.select(t.requests).where(R.queue == tx.queue, R.ended_at.is_(None))
    requests = await many(tx.connection, active.order_by(R.order, R.number))
    flying = [r for r in requests if r.state is State.PROCESSING]
    waiting = [r for r in requests if r.state is State.ACCEPTED]
    first = [await _waiting(tx, waiting[0])] if waiting else []
    green = await one(tx.connection, last_green(tx.queue))
    paused = sa.select(t.queues.c.paused_reason).where(t.queues.c.name == tx.queue)
    return View(
        first + [Waiting(r.number, r.uri, r.origin) for r in waiting[1:]],
        [Flying(r.number, r.uri, r.admitted_at or r.accepted_at) for r in flying],
        green.uri if green else None,
        cap,
        (await tx.connection.execute(paused)).scalar_one(),
    )


async def _waiting(tx: Tx, first: Request) -> Waiting:
    busy = owed(tx.queue, R.uri == first.uri, R.number != first.number)
    rivals = await many(tx.connection, busy)
    rival = next((r.number for r in rivals if r.cause is not Cause.ADOPTED_FACT), None)
    fact = await facts_at(tx.connection, tx.queue, first.uri)
    return Waiting(first.number, first.uri, first.origin, fact is not None, rival)


async def everything_owed(
    tx: Tx, settings: QueueSettings | None, before: set[int]
) -> tuple[Owed, ...]:
    grace = ms(settings.slot_grace) if settings else 0
    must = [
        Owed(
            r.number,
            r.uri,
            r.state,
            r.deadline_at or 0,
            again=r.number in before,
            overdue=r.state is State.PROCESSING and tx.at >= (r.deadline_at or 0) + grace,
        )
        for r in await many(tx.connection, owed(tx.queue))
    ]
    d = t.hook_deliveries.c
    due = (d.queue == tx.queue) & (d.state == Delivering.PENDING)
    pending = (await tx.connection.execute(sa.select(d.request).where(due).distinct())).scalars()
    running = {one.request for one in must}
    for number in pending:
        if number not in running:
            request = await the_request(tx.connection, tx.queue, number)
            must.append(Owed(number, request.uri, request.state, hooks_only=True))
    return tuple(must)
