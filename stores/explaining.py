"""What explains why a queue stands as it does, and what is known of a commit."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import Final

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from domain.explain import Commit, Line, Promotion, about, named, owes_record
from domain.gate import Ask, Hold, Reason, clock, next_step
from domain.request import Cause, Request, State
from domain.settings import QueueSettings
from stores import tables as t
from stores.bisecting import read_bisection
from stores.covering import covers_of
from stores.read import R, attempts_at, history_of, holder, last_green, letters, many, one, owed
from stores.view import gate_of, tries_of, view_of

GREENS: Final = 10
"""So many may have been left out before the present place of the ref is not known."""


async def explained(
    connection: AsyncConnection, queue: str, settings: QueueSettings | None, uri: str | None
) -> Sequence[Line]:
    """Of a commit only what concerns it."""
    gate = await gate_of(connection, queue, await _held(connection, queue, settings))
    lines = [*gate.lines(), *[line async for line in _unrecorded(connection, queue)]]
    if uri is None:
        return [*lines, *[line async for line in _of_queue(connection, queue, settings)]]
    attempts = await many(connection, attempts_at(queue, uri))
    own = {named(attempt) for attempt in attempts}
    known = [line async for line in _of_commit(connection, queue, uri, attempts)]
    ended = attempts[0] if attempts else None
    if ended and (tries := await tries_of(connection, queue, settings, ended)):
        known.append(tries.line)
    return [*known, *(line for line in lines if line.request in own)]


async def _held(
    connection: AsyncConnection, queue: str, settings: QueueSettings | None
) -> Ask | Hold:
    if settings is None:
        return Hold(Reason.NOT_CONFIGURED)
    step = next_step(await view_of(connection, queue, settings.max_concurrent), {})
    return step if isinstance(step, Ask | Hold) else Hold(Reason.NEXT, step.request)


async def _unrecorded(connection: AsyncConnection, queue: str) -> AsyncIterator[Line]:
    d = t.dead_letters.c
    refused = letters(queue).where(d.kind == "record", d.resolved_at.is_(None))
    why = {row.subject: " ".join(row.detail.split()) for row in await connection.execute(refused)}
    for request in await many(connection, owed(queue)):
        if request.state.is_terminal:
            yield owes_record(request, why.get(str(request.number), ""))


async def _of_queue(
    connection: AsyncConnection, queue: str, settings: QueueSettings | None
) -> AsyncIterator[Line]:
    if tries := await tries_of(connection, queue, settings):
        yield tries.line
    if settings and (green := await one(connection, last_green(queue))):
        belongs = await one(connection, holder(queue))
        told = await history_of(connection, queue, str(belongs.number)) if belongs else []
        left_out = "".join([row.detail for row in told if row.kind == "promotion_left_out"][-1:])
        at, why = await _promoted(connection, queue), " ".join(left_out.split())
        for line in Promotion(settings.promote, green, belongs, at, why).lines():
            yield line


async def _promoted(connection: AsyncConnection, queue: str) -> str | None:
    """Where the newest record that moved the ref, or found it in its place, left it."""
    h, newest = t.history.c, (R.order.desc(), R.number.desc())
    greens = sa.select(R.number).where(R.queue == queue, R.green_at.is_not(None)).order_by(*newest)
    numbers = (await connection.execute(greens.limit(GREENS))).scalars()
    mine = (h.queue == queue) & h.subject.in_([str(number) for number in numbers])
    told = sa.select(h.detail).where(mine, h.kind == "promoted").order_by(h.seq.desc()).limit(1)
    detail = (await connection.execute(told)).scalar()
    return detail.partition(": ")[2] if detail else None


async def _of_commit(
    connection: AsyncConnection, queue: str, uri: str, attempts: tuple[Request, ...]
) -> AsyncIterator[Line]:
    found = await covers_of(connection, queue, uri)
    commit = Commit(queue, uri, found.fact, attempts, found.by)
    if found.cover:
        greens = {"prior": found.prior_green, "next": found.next_green}
        commit = replace(commit, degree=found.cover.degree, greens=greens)
    if attempts and attempts[0].state is State.SUPERSEDED:
        told = await history_of(connection, queue, str(attempts[0].number))
        newer = [row.detail for row in told if row.kind == Cause.SUPERSEDED_BY_NEWER_HEAD]
        commit = replace(commit, superseded="".join(newer))
    for line in commit.lines():
        yield line
    red = {found.by.number} if found.by else set[int]()
    for number in sorted(red | {a.probe_of or a.number for a in attempts}):
        if search := await _bisection(connection, queue, number):
            yield search


async def _bisection(connection: AsyncConnection, queue: str, number: int) -> Line | None:
    if (found := await read_bisection(connection, queue, number)) is None:
        return None
    text = f"is bisected since {clock(found.started_at)}, {found.state}: the culprit is "
    text += found.culprit_uri or f"in ({found.good_uri}, {found.bad_uri}]"
    text += f"; {named(found.active)} probes {found.active.uri}" if found.active else ""
    text += f"; {found.detail}" if found.detail else ""
    return about(found.request, "bisection", text, found.started_at, found.ended_at)
