"""The writes: what belongs together is one transaction."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import Final

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncEngine

from domain.act import ITSELF, Act, Verb
from domain.bisect import Probe
from domain.build import LOST
from domain.errors import Invariant, NotFound, Refused
from domain.event import EventType
from domain.gate import (
    Ancestry,
    Hold,
    Pair,
    Reason,
    Seen,
)
from domain.request import ENDINGS, Cause, State, Transition
from domain.results import ProjectResult
from domain.settings import QueueSettings, ms
from stores import tables as t
from stores.bisecting import end, mint_probe, start
from stores.contract import AfterCommit
from stores.covering import base_of, cover
from stores.establishing import announce_projects, own_degree, write_facts
from stores.judging import (
    build_of,
    failed_before,
    follow,
    progress,
    too_late,
    watched_of,
)
from stores.people import act
from stores.queueing import adopt, gate, mint_head, retry_by_itself
from stores.ranges import RangePage
from stores.read import (
    R,
    builds_of,
    count_history,
    facts_at,
    many,
    one,
    owed,
    read_stage,
    the_request,
    top,
)
from stores.reader import SqlReader
from stores.rows import (
    Answer,
    Build,
    Delivering,
    Delivery,
    Failure,
    Follows,
    Happening,
    Ingested,
    Judged,
    Next,
    Recorded,
    Request,
    Stamp,
    Turned,
)
from stores.transaction import Tx, move, supersede, transaction
from stores.view import everything_owed, told_of

OWED_WAKE_MS: Final = 5 * 60_000
OF_ITS_OWN: Final = frozenset({Cause.PROCESSING_FAILED, Cause.CANCELLED_BY_PERSON})
"""What hides no red build that was to be confirmed."""
WRITTEN: Final = Act("written", Verb.RETRY_LETTER, ITSELF, "the fact is written")


class SqlStore(SqlReader):
    def __init__(self, engine: AsyncEngine, after_commit: AfterCommit) -> None:
        super().__init__(engine)
        self._after_commit = after_commit

    @asynccontextmanager
    async def _write(
        self, stamp: Stamp, settings: QueueSettings | None = None
    ) -> AsyncIterator[Tx]:
        async with transaction(self._engine, stamp, settings.hooks if settings else ()) as tx:
            yield tx
        self._after_commit(stamp.fence, stamp.queue, tx.committed)

    async def ingest(self, stamp: Stamp, seen: Seen, settings: QueueSettings) -> Ingested:
        async with self._write(stamp, settings) as tx:
            latest = await one(tx.connection, top(tx.queue))
            if latest is not None and latest.uri == seen.uri:
                return Ingested(latest.number, is_new=False)
            number = await mint_head(tx, seen, latest)
            rewrite = seen.is_rewrite
            await supersede(tx, settings.max_concurrent, everything_older=rewrite)
            adopted = await adopt(tx, number, seen.uri)
            return Ingested(number, is_new=True, adopted=adopted)

    async def turn(
        self, stamp: Stamp, settings: QueueSettings | None, known: Mapping[Pair, Ancestry]
    ) -> Turned:
        async with self._write(stamp, settings) as tx:
            before = {request.number for request in await many(tx.connection, owed(tx.queue))}
            due = await retry_by_itself(tx, settings) if settings else None
            step = await gate(tx, settings, known) if settings else Hold(Reason.NOT_CONFIGURED)
            must = await everything_owed(tx.connection, tx.queue, tx.at, settings, before)
            wakes = [stamp.at + OWED_WAKE_MS] if must else []
            wakes += [due] if due else []
            if settings and isinstance(step, Hold) and step.reason is Reason.NO_FREE_SLOT:
                wakes.append(stamp.at + ms(settings.gate_wait))
            lines = tuple((await told_of(tx.connection, tx.queue, step)).lines())
            return Turned(step, must, min(wakes, default=None), lines)

    async def build_row(self, stamp: Stamp, build: Build, *, found: bool) -> None:
        async with self._write(stamp) as tx:
            values = {
                "queue": tx.queue,
                "runner": build.runner,
                "id": build.id,
                "request": build.request,
                "attempt": build.attempt,
                "status": build.status,
                "triggered_at": build.triggered_at,
                "url": build.url,
            }
            mine = await builds_of(tx.connection, tx.queue, build.request)
            stored = next((known for known in mine if known.attempt == build.attempt), None)
            if stored is None:
                await tx.connection.execute(sa.insert(t.builds).values(values))
            elif await _was_lost(tx, stored):
                await _make_anew(tx, stored, build)
            kind = "build_found" if found else "build_triggered"
            await tx.note(
                build.request,
                kind,
                f"{build.runner}: {build.url or build.id}",
                occurrence=str(build.attempt),
            )

    async def observe(self, stamp: Stamp, answer: Answer, settings: QueueSettings) -> Judged:
        async with self._write(stamp, settings) as tx:
            stage = await read_stage(tx.connection, tx.queue, answer.request)
            build = await build_of(tx, answer)
            if stage.next is not Next.BUILD or answer.attempt != stage.attempt:
                return await too_late(tx, stage, build, answer)
            if answer.said == LOST:
                once = f"{build.id}@{build.triggered_at}"
                await tx.note(answer.request, "build_lost", build.id, occurrence=once)
                return Judged(Follows.AGAIN, build.status, reason=LOST)
            said = await progress(tx, build, answer)
            watched = await watched_of(tx, stage, build, settings)
            return await follow(tx, stage, replace(build, status=said), watched)

    async def fail(
        self, stamp: Stamp, failure: Failure, settings: QueueSettings | None
    ) -> Request | None:
        async with self._write(stamp, settings) as tx:
            number = failure.request
            red = await failed_before(tx, number)
            (ends,) = ENDINGS[failure.cause].enters
            step = Transition(number, ends, tx.at, failure.cause, failure.detail)
            if red is not None and failure.cause not in OF_ITS_OWN:
                step = replace(step, cause=Cause.BUILD_FAILED, terminal_build_id=red)
            try:
                await move(tx, step)
            except NotFound:
                await tx.dead_letter("request", str(number), failure.cause, failure.detail)
                return None
            return await the_request(tx.connection, tx.queue, number)

    async def facts(
        self,
        stamp: Stamp,
        number: int,
        results: Sequence[ProjectResult] | None = (),
        *,
        bisects: bool = False,
    ) -> Recorded | None:
        async with self._write(stamp) as tx:
            request = await the_request(tx.connection, tx.queue, number)
            if not request.state.is_terminal:
                raise Invariant(f"request/{tx.queue}/{number} is {request.state} at record")
            if request.cause is None or not request.cause.has_verdict:
                return None
            await write_facts(tx, request, results)
            fact = await facts_at(tx.connection, tx.queue, request.uri)
            if fact is None:
                raise Invariant(f"request/{tx.queue}/{number} has a verdict, and no fact stands")
            is_new_green = fact.is_green and request.state is State.SUCCEEDED
            if is_new_green and request.green_at is None and request.probe_of is None:
                mine = (R.queue == tx.queue) & (R.number == number)
                await tx.connection.execute(
                    sa.update(t.requests).where(mine).values(green_at=tx.at)
                )
            await tx.resolve("record", str(number), WRITTEN)
            if bisects and not fact.is_green:
                with suppress(Refused):
                    await start(tx, request)
            if request.cause is Cause.ADOPTED_FACT:
                return Recorded(fact.is_green)
            base = await base_of(tx.connection, request)
            alone = RangePage((request.uri,), 0, is_last=base is None)
            await cover(tx, number, await own_degree(tx, request), alone)
            return Recorded(fact.is_green, head=request.uri, base=base)

    async def cover(self, stamp: Stamp, number: int, page: RangePage) -> bool:
        async with self._write(stamp) as tx:
            request = await the_request(tx.connection, tx.queue, number)
            return await cover(tx, number, await own_degree(tx, request), page)

    async def announce(
        self, stamp: Stamp, number: int, settings: QueueSettings | None, told: Happening | None
    ) -> None:
        async with self._write(stamp, settings) as tx:
            if told is not None:
                await tx.happened(told)
            mine = (R.queue == tx.queue) & (R.number == number) & R.recorded_at.is_(None)
            done = sa.update(t.requests).where(mine).values(recorded_at=tx.at)
            if (await tx.connection.execute(done)).rowcount:
                request = await the_request(tx.connection, tx.queue, number)
                if request.probe_of is not None:
                    tx.committed.wake_bisections.add(request.probe_of)
                await announce_projects(tx, request)
                await tx.announce(number, EventType.RECORDED)
                await tx.note(number, "recorded")

    async def act(self, stamp: Stamp, ask: Act, settings: QueueSettings | None) -> Happening:
        async with self._write(stamp, settings) as tx:
            return await act(tx, ask)

    async def probe(
        self, stamp: Stamp, number: int, probe: Probe, committed_at: int | None
    ) -> None:
        async with self._write(stamp) as tx:
            await mint_probe(tx, number, probe, committed_at)

    async def end_bisection(
        self,
        stamp: Stamp,
        number: int,
        culprit: str | None,
        detail: str,
        settings: QueueSettings | None,
    ) -> None:
        async with self._write(stamp, settings) as tx:
            await end(tx, number, culprit, detail)

    async def note(self, stamp: Stamp, happening: Happening) -> None:
        async with self._write(stamp) as tx:
            await tx.happened(happening)

    async def dead_letter(self, stamp: Stamp, kind: str, failure: Failure) -> None:
        async with self._write(stamp) as tx:
            await tx.dead_letter(kind, str(failure.request), failure.cause, failure.detail)
            if kind == "record":
                await tx.note(failure.request, "record_abandoned", failure.detail)

    async def delivered(self, stamp: Stamp, delivery: Delivery, letter: str = "") -> None:
        async with self._write(stamp) as tx:
            d = t.hook_deliveries.c
            mine = (
                (d.queue == tx.queue)
                & (d.event_id == delivery.event.id)
                & (d.sink == delivery.sink)
                & (d.state == Delivering.PENDING)
            )
            done = (
                sa.update(t.hook_deliveries)
                .where(mine)
                .values(state=delivery.state, last_error=delivery.last_error[:4000], ended_at=tx.at)
            )
            changed = (await tx.connection.execute(done)).rowcount
            if changed and delivery.state is Delivering.DEAD:
                subject = f"{delivery.event.id} to {delivery.sink}"
                await tx.dead_letter("hook", subject, "undeliverable", letter)


async def _was_lost(tx: Tx, build: Build) -> bool:
    lost = await count_history(tx.connection, tx.queue, build.request, ["build_lost"])
    return lost > 0


async def _make_anew(tx: Tx, lost: Build, anew: Build) -> None:
    """Same attempt, status as it was: the one that is gone is in the history."""
    b = t.builds.c
    mine = (b.queue == tx.queue) & (b.runner == lost.runner) & (b.id == lost.id)
    values = {"id": anew.id, "url": anew.url, "triggered_at": anew.triggered_at}
    await tx.connection.execute(sa.update(t.builds).where(mine).values(values))
