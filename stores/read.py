"""What is read on one connection. Each is a seek on an index; nothing here takes a lock."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from domain.build import Status
from domain.errors import Fenced, NotFound, WrongInstallation
from domain.event import EventType, HookEvent
from domain.fact import Fact, authoritative
from domain.identity import Fence
from domain.request import Cause, Origin, State, Strategy, Why
from stores import tables as t
from stores.rows import (
    Build,
    DeadLetter,
    Delivering,
    Delivery,
    Happening,
    Next,
    Request,
    Stage,
)

R: Final = t.requests.c
AGAIN: Final = ("retriggered", "unconfirmed")
"""What the history says when an attempt is followed by another."""
ENUMS: Final = {
    "origin": Origin,
    "state": State,
    "cause": Cause,
    "strategy": Strategy,
    "ending": Why,
}


def request_of(row: sa.Row[Any]) -> Request:
    values = dict(row._mapping)  # noqa: SLF001 - SQLAlchemy's public name for it
    for name, kind in ENUMS.items():
        values[name] = None if values[name] is None else kind(values[name])
    return Request(**values)


def top(queue: str, *where: sa.ColumnElement[bool]) -> sa.Select[Any]:
    """The newest by (order, number) that is no probe: forward only is the meaning of max."""
    mine = (R.queue == queue) & (R.origin != Origin.PROBE)
    newest = (R.order.desc(), R.number.desc())
    return sa.select(t.requests).where(mine, *where).order_by(*newest).limit(1)


def last_green(queue: str) -> sa.Select[Any]:
    return top(queue, R.state == State.SUCCEEDED)


def holder(queue: str) -> sa.Select[Any]:
    return top(queue, R.green_at.is_not(None))


def attempts_at(queue: str, uri: str) -> sa.Select[Any]:
    """The newest first."""
    mine = sa.select(t.requests).where(R.queue == queue, R.uri == uri)
    return mine.order_by(R.number.desc())


def owed(queue: str, *where: sa.ColumnElement[bool]) -> sa.CompoundSelect[Any]:
    """The only answer to which requests must run: what holds a slot, or owes its record.
    Two seeks, each in the words of its index: any other way a planner reads the whole queue.
    """
    mine = sa.select(t.requests).where(R.queue == queue, *where)
    active = mine.where(R.state == State.PROCESSING, R.ended_at.is_(None))
    unrecorded = mine.where(sa.text(t.OWES_RECORD))
    return active.union_all(unrecorded).order_by(sa.column("order"), sa.column("number"))


async def is_change(connection: AsyncConnection, queue: str, number: int, kind: EventType) -> bool:
    """Whether the event tells of something new: what is abandoned again by itself is not."""
    if kind is EventType.ABANDONED:
        request = await the_request(connection, queue, number)
        return request.origin is not Origin.AUTO_RETRY
    return kind is EventType.CULPRIT_FOUND or (
        kind is EventType.RECORDED and await _changes_colour(connection, queue, number)
    )


async def _changes_colour(connection: AsyncConnection, queue: str, number: int) -> bool:
    """Whether this verdict, being the newest, differs from the one before; a queue begins green."""
    two = await many(connection, top(queue, R.recorded_at.is_not(None)).limit(2))
    green = [request.state is State.SUCCEEDED for request in two]
    before = green[1] if len(two) > 1 else True
    return bool(two) and two[0].number == number and green[0] is not before


async def one(connection: AsyncConnection, query: sa.Select[Any]) -> Request | None:
    row = (await connection.execute(query)).one_or_none()
    return None if row is None else request_of(row)


async def many(
    connection: AsyncConnection, query: sa.Select[Any] | sa.CompoundSelect[Any]
) -> tuple[Request, ...]:
    return tuple(request_of(row) for row in await connection.execute(query))


async def the_request(connection: AsyncConnection, queue: str, number: int) -> Request:
    query = sa.select(t.requests).where(R.queue == queue, R.number == number)
    if (request := await one(connection, query)) is None:
        raise NotFound(f"request/{queue}/{number} does not exist")
    return request


async def check_fence(connection: AsyncConnection, fence: Fence, *, lock: bool = False) -> None:
    query = sa.select(t.installation.c.id, t.installation.c.epoch)
    row = (await connection.execute(query.with_for_update(read=True) if lock else query)).one()
    if row.id != fence.installation:
        raise WrongInstallation(
            f"this store is installation {row.id}, the workflow belongs to {fence.installation}"
        )
    if row.epoch != fence.epoch:
        raise Fenced(f"the store is in epoch {row.epoch}, the workflow in {fence.epoch}")


async def facts_at(
    connection: AsyncConnection, queue: str, uri: str, project: str = ""
) -> Fact | None:
    f = t.facts.c
    query = sa.select(f.uri, f.project, f.request, f.degree, f.cause, f.created_at).where(
        f.queue == queue, f.uri == uri, f.project == project
    )
    rows = await connection.execute(query)
    return authoritative(
        [Fact(u, p, request, degree, Cause(c), at) for u, p, request, degree, c, at in rows]
    )


async def builds_of(connection: AsyncConnection, queue: str, number: int) -> list[Build]:
    b = t.builds.c
    query = (
        sa.select(b.runner, b.id, b.request, b.attempt, b.status, b.triggered_at, b.url)
        .where(b.queue == queue, b.request == number)
        .order_by(b.attempt)
    )
    return [
        Build(runner, key, request, attempt, Status(status), at, url)
        for runner, key, request, attempt, status, at, url in await connection.execute(query)
    ]


async def count_history(
    connection: AsyncConnection, queue: str, number: int, kinds: Sequence[str]
) -> int:
    h = t.history.c
    mine = (h.queue == queue) & (h.subject == str(number)) & h.kind.in_(kinds)
    return (await connection.execute(sa.select(sa.func.count()).where(mine))).scalar_one()


async def read_stage(connection: AsyncConnection, queue: str, number: int) -> Stage:
    request = await the_request(connection, queue, number)
    attempt = 1 + await count_history(connection, queue, number, AGAIN)
    builds = await builds_of(connection, queue, number)
    build = next((build for build in builds if build.attempt == attempt), None)
    if request.state is State.PROCESSING:
        return Stage(Next.BUILD, request, attempt, build)
    return Stage(Next.RECORD if request.owes_record else Next.NOTHING, request, attempt, build)


def subject_of(queue: str) -> str:
    """The queue as a subject of its own history: no request's number."""
    return f"queue/{queue}"


async def paused_reason(connection: AsyncConnection, queue: str) -> str | None:
    query = sa.select(t.queues.c.paused_reason).where(t.queues.c.name == queue)
    reason: str | None = (await connection.execute(query)).scalar()
    return reason


async def history_of(connection: AsyncConnection, queue: str, subject: str) -> list[Happening]:
    return await _happened(connection, queue, t.history.c.subject == subject)


async def audit_of(connection: AsyncConnection, queue: str) -> list[Happening]:
    return await _happened(connection, queue, t.history.c.actor.is_not(None))


async def _happened(
    connection: AsyncConnection, queue: str, which: sa.ColumnElement[bool]
) -> list[Happening]:
    h = t.history.c
    query = sa.select(h.queue, h.subject, h.kind, h.occurrence, h.at, h.detail, h.actor)
    rows = await connection.execute(query.where(h.queue == queue, which).order_by(h.seq))
    return [Happening(*row) for row in rows]


async def pausing(connection: AsyncConnection, queue: str) -> Happening | None:
    told = await _happened(
        connection,
        queue,
        (t.history.c.subject == subject_of(queue)) & (t.history.c.kind == "paused"),
    )
    return told[-1] if told else None


def letters(queue: str) -> sa.Select[Any]:
    d = t.dead_letters.c
    told = (d.id, d.kind, d.subject, d.cause, d.detail, d.created_at, d.resolved_at, d.resolved_by)
    return sa.select(*told).where(d.queue == queue)


async def read_letter(connection: AsyncConnection, queue: str, letter: str) -> DeadLetter:
    query = letters(queue).where(t.dead_letters.c.id == letter)
    if (row := (await connection.execute(query)).one_or_none()) is None:
        raise NotFound(f"queue {queue} has no dead letter {letter!r}")
    return DeadLetter(*row)


def delivery_of(installation: str, row: sa.Row[Any]) -> Delivery:
    kind = EventType(row.type)
    event = HookEvent(installation, kind, row.queue, row.request, row.created_at, row.project)
    return Delivery(event, row.sink, row.sequence, Delivering(row.state), row.last_error)
