"""One transaction, one ``move``: whoever is in here holds the queue's row."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from domain.act import ITSELF, Act
from domain.errors import Invariant, NotFound
from domain.event import EventType, HookEvent
from domain.request import ENDINGS, Cause, State, Transition, is_arrow
from domain.settings import Route
from stores import tables as t
from stores.engine import begin
from stores.read import R, check_fence, is_change, subject_of
from stores.rows import Committed, Delivering, Happening, Stamp

STEPS: Final = 1_000
"""History rows of one transaction that keep their order; bulk rows share one step."""
SEQUENCE: Final[Mapping[EventType, int]] = {
    EventType.STARTED: 0,
    EventType.PROJECT_RECORDED: 1,
    EventType.RECORDED: 2,
    EventType.CANCELLED: 2,
    EventType.ABANDONED: 2,
    EventType.CULPRIT_FOUND: 3,
}


@dataclass(slots=True)
class Tx:
    connection: AsyncConnection
    stamp: Stamp
    version: int
    routes: tuple[Route, ...]
    committed: Committed = field(default_factory=Committed)
    steps: int = 0

    @property
    def queue(self) -> str:
        return self.stamp.queue

    @property
    def itself(self) -> str:
        """The queue as a subject of its history: no request's number."""
        return subject_of(self.queue)

    @property
    def at(self) -> int:
        return self.stamp.at

    def next_seq(self) -> int:
        self.steps += 1
        return self.version * STEPS + self.steps

    async def insert_once(self, table: sa.Table, values: Mapping[str, Any]) -> bool:
        """Whether the row is new; one of the same key stays as it is."""
        dialect = {"sqlite": sqlite, "postgresql": postgresql}[self.connection.dialect.name]
        key = list(table.primary_key.columns)
        statement = (
            dialect.insert(table)
            .values(values)
            .on_conflict_do_nothing(index_elements=key)
            .returning(key[0])
        )
        return (await self.connection.execute(statement)).first() is not None

    async def note(
        self,
        subject: int | str,
        kind: str,
        detail: str = "",
        *,
        occurrence: str = "",
        by: Act | None = None,
    ) -> bool:
        """Add to the history, once; a row really added is what counts and what is told."""
        once = occurrence or (by.id if by else "")
        actor = by.actor if by else None
        row = Happening(self.queue, str(subject), kind, once, self.at, detail[:4000], actor)
        return await self.happened(row)

    async def happened(self, row: Happening) -> bool:
        values = {
            "queue": self.queue,
            "subject": row.subject,
            "kind": row.kind,
            "occurrence": row.occurrence,
            "at": self.at,
            "seq": self.next_seq(),
            "detail": row.detail,
            "actor": row.actor,
        }
        added = await self.insert_once(t.history, values)
        if added:
            self.committed.happenings.append(replace(row, at=self.at))
        return added

    async def announce(self, number: int, kind: EventType, project: str = "") -> None:
        """Delivery rows of one event, for each sink that hears it: the outbox."""
        event = HookEvent(self.stamp.fence.installation, kind, self.queue, number, self.at, project)
        asked = any(route.edges for route in self.routes)
        is_edge = asked and await is_change(self.connection, self.queue, number, kind)
        for route in self.routes:
            if not route.hears(kind, is_edge=is_edge):
                continue
            values = {
                "queue": self.queue,
                "event_id": event.id,
                "sink": route.sink,
                "type": kind,
                "request": number,
                "project": project,
                "sequence": SEQUENCE[kind],
                "state": Delivering.PENDING,
                "last_error": "",
                "created_at": self.at,
            }
            if await self.insert_once(t.hook_deliveries, values):
                self.committed.wake_hooks.add(number)

    async def dead_letter(self, kind: str, subject: str, cause: str, detail: str) -> None:
        """At most one open one for (kind, subject)."""
        d = t.dead_letters.c
        mine = (d.queue == self.queue) & (d.kind == kind) & (d.subject == subject)
        is_open = sa.select(d.id).where(mine, d.resolved_at.is_(None))
        if (await self.connection.execute(is_open)).first():
            return
        letter = f"{kind}/{subject}/{self.version}"
        values = {
            "queue": self.queue,
            "id": letter,
            "kind": kind,
            "subject": subject,
            "cause": cause,
            "detail": detail[:4000],
            "created_at": self.at,
        }
        await self.connection.execute(sa.insert(t.dead_letters).values(values))
        await self.note(subject, "dead_letter_opened", f"{kind}: {cause}", occurrence=letter)

    async def resolve(self, kind: str, subject: str, by: Act) -> None:
        """Close what is open of that kind about that subject."""
        d = t.dead_letters.c
        mine = (d.queue == self.queue) & (d.kind == kind) & (d.subject == subject)
        done = (
            sa.update(t.dead_letters)
            .where(mine, d.resolved_at.is_(None))
            .values(resolved_at=self.at, resolved_by=by.actor)
            .returning(d.id)
        )
        for letter in (await self.connection.execute(done)).scalars():
            once = letter if by.actor == ITSELF else ""
            detail = f"{kind}: {by.reason}"
            await self.note(subject, "dead_letter_resolved", detail, occurrence=once, by=by)


@asynccontextmanager
async def transaction(
    engine: AsyncEngine, stamp: Stamp, routes: tuple[Route, ...] = ()
) -> AsyncIterator[Tx]:
    """Fenced, and the only writer of its queue until it commits."""
    async with begin(engine) as connection:
        await check_fence(connection, stamp.fence, lock=True)
        yield Tx(connection, stamp, await _take_queue_row(connection, stamp.queue), routes)


async def _take_queue_row(connection: AsyncConnection, queue: str) -> int:
    dialect = {"sqlite": sqlite, "postgresql": postgresql}[connection.dialect.name]
    statement = (
        dialect.insert(t.queues)
        .values(name=queue, next_number=1, version=1)
        .on_conflict_do_update(index_elements=["name"], set_={"version": t.queues.c.version + 1})
        .returning(t.queues.c.version)
    )
    version: int = (await connection.execute(statement)).scalar_one()
    return version


async def move(tx: Tx, step: Transition) -> State:
    """The only place that changes one request's state; answers the state that stands."""
    mine = (R.queue == tx.queue) & (R.number == step.request)
    read = sa.select(R.state, R.accepted_at, R.admitted_at, R.probe_of).where(mine)
    row = (await tx.connection.execute(read)).one_or_none()
    if row is None:
        raise NotFound(f"request/{tx.queue}/{step.request} does not exist")
    state = State(row.state)
    if state is step.to or state.is_terminal:
        return state
    if not is_arrow(state, step.to, step.cause):
        raise Invariant(f"request/{tx.queue}/{step.request}: {state} -> {step.to} ({step.cause})")
    # Two workflows' clocks may differ a little; the order of a request's times does not.
    step = replace(step, at=max(step.at, row.accepted_at, row.admitted_at or 0))
    written = {name: value for name, value in _columns(step).items() if value is not None}
    await tx.connection.execute(sa.update(t.requests).where(mine).values(state=step.to, **written))
    await tx.note(step.request, step.cause or "admitted", step.detail, by=step.by)
    await _say(tx, step)
    if state is State.PROCESSING:
        tx.committed.wake_queue |= await _someone_waits(tx)
    if row.probe_of is not None and step.to.is_terminal:
        tx.committed.wake_bisections.add(row.probe_of)
    return step.to


async def _someone_waits(tx: Tx) -> bool:
    waits = (R.queue == tx.queue) & (R.state == State.ACCEPTED) & R.ended_at.is_(None)
    query = sa.select(sa.exists(sa.select(R.number).where(waits)))
    return bool((await tx.connection.execute(query)).scalar_one())


def _columns(step: Transition) -> dict[str, Any]:
    return {
        "cause": step.cause,
        "ended_at" if step.cause else "admitted_at": step.at,
        "strategy": step.strategy,
        "base_uri": step.base_uri,
        "deadline_at": step.deadline_at,
        "terminal_build_id": step.terminal_build_id,
        "green_at": step.green_at,
    }


async def _say(tx: Tx, step: Transition) -> None:
    if step.cause is None:
        await tx.announce(step.request, EventType.STARTED)
        return
    ending = ENDINGS[step.cause]
    if ending.says:
        await tx.announce(step.request, EventType(ending.says))
    if ending.dead_letter:
        await tx.dead_letter("request", str(step.request), step.cause, step.detail)


async def supersede(tx: Tx, keep: int, *, everything_older: bool = False) -> None:
    """The set-based sibling of ``move``: one statement, however long the backlog is."""
    heads = (R.queue == tx.queue) & R.origin.in_(("head", "auto_retry"))
    by_age = sa.select(R.order).where(heads & (R.origin == "head")).order_by(R.order.desc())
    oldest_kept = by_age.limit(1).offset(0 if everything_older else keep - 1).scalar_subquery()
    waits = heads & (R.state == State.ACCEPTED) & R.ended_at.is_(None) & (R.order < oldest_kept)
    cause = Cause.SUPERSEDED_BY_NEWER_HEAD
    ended_at = sa.case((R.accepted_at > tx.at, R.accepted_at), else_=tx.at)
    statement = (
        sa.update(t.requests)
        .where(waits)
        .values(state=State.SUPERSEDED, cause=cause, ended_at=ended_at)
        .returning(R.number)
    )
    ended = sorted((await tx.connection.execute(statement)).scalars())
    if not ended:
        return
    newest = (await tx.connection.execute(by_age.limit(1))).scalar_one()
    detail = f"by request/{tx.queue}/{newest}"
    await _note_all(tx, [Happening(tx.queue, str(n), cause, "", tx.at, detail) for n in ended])


async def _note_all(tx: Tx, rows: list[Happening]) -> None:
    seq = tx.next_seq()
    values = [
        {"queue": row.queue, "subject": row.subject, "kind": row.kind, "at": row.at}
        | {"occurrence": row.occurrence, "detail": row.detail, "seq": seq}
        for row in rows
    ]
    await tx.connection.execute(sa.insert(t.history), values)
    tx.committed.happenings.extend(rows)
