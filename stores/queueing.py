"""Inside a turn and an ingest: who waits, who is admitted, what must run."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import sqlalchemy as sa

from domain.act import ITSELF, Act, Verb
from domain.errors import Refused
from domain.gate import (
    Admit,
    Adopt,
    Ancestry,
    Ask,
    Hold,
    Pair,
    Seen,
    next_step,
)
from domain.identity import RequestId
from domain.request import Cause, Origin, State, Transition
from domain.settings import QueueSettings, ms
from stores import tables as t
from stores.read import (
    R,
    facts_at,
    one,
)
from stores.rows import Request
from stores.transaction import Tx, move, supersede
from stores.view import tries_of, view_of


async def mint_head(tx: Tx, seen: Seen, latest: Request | None) -> int:
    number = await next_number(tx)
    line = number if latest is None or seen.is_rewrite else latest.line
    about = {"order": number, "line": line, "uri": seen.uri, "committed_at": seen.committed_at}
    await mint(tx, number, Origin.HEAD, about)
    await tx.note(number, "accepted", "rewrite" if seen.is_rewrite else "")
    return number


async def again(tx: Tx, ended: Request, origin: Origin, by: Act) -> None:
    """A new attempt at the commit, in the place of the request that ingest made for it."""
    attempts = sa.select(t.requests).where(R.queue == tx.queue, R.uri == ended.uri)
    busy = await one(tx.connection, attempts.where(R.ended_at.is_(None)).limit(1))
    if busy is not None:
        raise Refused(f"{RequestId(tx.queue, busy.number)} is an attempt at it, {busy.state}")
    heads = attempts.where(R.origin == Origin.HEAD).order_by(R.number.desc()).limit(1)
    if (head := await one(tx.connection, heads)) is None:
        raise Refused(f"{ended.uri} was never the head of {tx.queue}")
    number = await next_number(tx)
    about = {name: getattr(head, name) for name in ("order", "line", "uri", "committed_at")}
    await mint(tx, number, origin, {**about, "retry_of": head.number})
    old, new = RequestId(tx.queue, ended.number), RequestId(tx.queue, number)
    await tx.note(ended.number, "retried", f"{new}: {by.reason}", by=by)
    await tx.note(number, "accepted", f"retry of {old}: {by.reason}")
    for attempt in {ended.number, head.number}:
        await tx.resolve("request", str(attempt), by)
    tx.committed.wake_queue = True


async def retry_by_itself(tx: Tx, settings: QueueSettings) -> int | None:
    """Make the automatic retry that is due; else when it will be, if one will."""
    tries = await tries_of(tx.connection, tx.queue, settings)
    if tries is None or (due := tries.due) is None:
        return None
    if due > tx.at:
        return due
    with suppress(Refused):  # an attempt is active already
        by = Act(f"{tries.ended.number}", Verb.RETRY, ITSELF, str(tries.ended.cause))
        await again(tx, tries.ended, Origin.AUTO_RETRY, by)
    return None


async def next_number(tx: Tx) -> int:
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
    return number


async def mint(tx: Tx, number: int, origin: Origin, about: Mapping[str, Any]) -> None:
    own = {"queue": tx.queue, "number": number, "origin": origin}
    values = {**about, **own, "state": State.ACCEPTED, "accepted_at": tx.at}
    await tx.connection.execute(sa.insert(t.requests).values(values))


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
        view = await view_of(tx.connection, tx.queue, settings.max_concurrent)
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
