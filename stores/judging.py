"""Inside an observation: one answer of a runner, and what follows from it."""

from __future__ import annotations

from typing import Final

import sqlalchemy as sa

from domain.act import Act
from domain.build import (
    Again,
    Cancel,
    Settle,
    Status,
    Wait,
    Watched,
    forward,
    judge,
    parse_status,
)
from domain.errors import Invariant
from domain.request import Cause, State, Transition, Why
from domain.settings import QueueSettings, ms
from stores import tables as t
from stores.read import (
    R,
    builds_of,
    count_history,
)
from stores.rows import Answer, Build, Follows, Judged, Next, Stage
from stores.transaction import Tx, move

STARTS: Final = 2


async def build_of(tx: Tx, answer: Answer) -> Build:
    for build in await builds_of(tx.connection, tx.queue, answer.request):
        if build.attempt == answer.attempt:
            return build
    raise Invariant(f"request/{tx.queue}/{answer.request} has no build {answer.attempt}")


async def too_late(tx: Tx, stage: Stage, build: Build, answer: Answer) -> Judged:
    """Nobody waits for this answer any more; of a verdict that differs the history tells."""
    said = parse_status(answer.said or "")
    if said is not None and said.is_terminal and not build.status.is_terminal:
        kind = "late_verdict" if stage.next is not Next.BUILD else "answer_ignored"
        await tx.note(answer.request, kind, f"{build.id}: {said}", occurrence=f"{build.id}:{said}")
    if stage.next is Next.BUILD:
        return Judged(Follows.AGAIN, build.status, reason="given_up")
    cause = str(stage.request.cause or "")
    return Judged(Follows.SETTLED, build.status, reason=cause, state=stage.request.state)


async def progress(tx: Tx, build: Build, answer: Answer) -> Status:
    """Store what moved forward; say once what was ignored."""
    said = parse_status(answer.said) if answer.said is not None else None
    status = forward(build.status, said)
    if status is build.status:
        if answer.said is not None and said is not build.status:
            once = f"{build.id}:{answer.said}"
            await tx.note(answer.request, "answer_ignored", once, occurrence=once)
        return status
    b = t.builds.c
    mine = (b.queue == tx.queue) & (b.runner == build.runner) & (b.id == build.id)
    await tx.connection.execute(sa.update(t.builds).where(mine).values(status=status))
    kind = "build_finished" if status.is_terminal else "build_running"
    await tx.note(answer.request, kind, status, occurrence=str(build.attempt))
    return status


async def watched_of(tx: Tx, stage: Stage, build: Build, settings: QueueSettings) -> Watched:
    request = stage.request
    ending = request.ending if request.ending_attempt == build.attempt else None
    number = request.number
    starts = await count_history(tx.connection, tx.queue, number, ["retriggered"])
    confirmed = await count_history(tx.connection, tx.queue, number, ["unconfirmed"])
    return Watched(
        build.status,
        request.deadline_at or 0,
        build.triggered_at + ms(settings.start_timeout),
        ending,
        (request.ending_at or 0) + ms(settings.cancel_grace),
        ms(settings.cancel_grace),
        STARTS - 1 - starts,
        settings.confirm_failures - confirmed,
        await failed_before(tx, number),
    )


async def failed_before(tx: Tx, number: int) -> str | None:
    """The build of the last attempt that failed and was to be confirmed."""
    h = t.history.c
    mine = (h.queue == tx.queue) & (h.subject == str(number)) & (h.kind == "unconfirmed")
    query = sa.select(h.occurrence).where(mine).order_by(h.seq.desc()).limit(1)
    attempt = (await tx.connection.execute(query)).scalar()
    builds = await builds_of(tx.connection, tx.queue, number)
    return next((build.id for build in builds if str(build.attempt) == attempt), None)


async def follow(tx: Tx, stage: Stage, build: Build, watched: Watched) -> Judged:
    number = stage.request.number
    match judge(watched, build.status, tx.at):
        case Wait(until):
            follows = Follows.WAIT if watched.ending is None else Follows.CANCEL
            return Judged(follows, build.status, until)
        case Cancel(why):
            await intend_cancel(tx, number, build.attempt, why)
            return Judged(Follows.CANCEL, build.status, tx.at + watched.cancel_grace, why)
        case Again(reason):
            kind = "unconfirmed" if reason == "confirm" else "retriggered"
            await _tell_of_cancel(tx, build, watched)
            await tx.note(number, kind, f"{build.id}: {reason}", occurrence=str(build.attempt))
            return Judged(Follows.AGAIN, build.status, reason=reason)
        case Settle() as end:
            return await _settle(tx, build, watched, end)


async def _tell_of_cancel(tx: Tx, build: Build, watched: Watched) -> None:
    """Of a cancel of ours that nobody confirmed, or that a verdict answered which cannot count."""
    if watched.ending is None:
        return
    if not build.status.is_terminal:
        once = str(build.attempt)
        await tx.note(build.request, "cancel_unconfirmed", build.id, occurrence=once)
    elif watched.ending is Why.START_TIMEOUT and build.status is not Status.CANCELLED:
        once = f"{build.id}:{build.status}"
        await tx.note(build.request, "answer_ignored", once, occurrence=once)


async def _settle(tx: Tx, build: Build, watched: Watched, end: Settle) -> Judged:
    number = build.request
    if build.status is Status.SUCCEEDED and end.state is State.SUCCEEDED and watched.failed_before:
        await tx.note(number, "flake", watched.failed_before)
    await _tell_of_cancel(tx, build, watched)
    detail = f"{build.runner}: {build.url or build.id}"
    decided = _decider(build, watched, end)
    state = await move(
        tx, Transition(number, end.state, tx.at, end.cause, detail, terminal_build_id=decided)
    )
    return Judged(Follows.SETTLED, build.status, reason=end.cause, state=state)


def _decider(build: Build, watched: Watched, end: Settle) -> str | None:
    """The build whose terminal status decided; one that was given up never does."""
    is_given_up = watched.ending is Why.START_TIMEOUT
    if end.cause is Cause.BUILD_FAILED and (is_given_up or build.status is not Status.FAILED):
        return watched.failed_before
    return build.id if build.status.is_terminal and not is_given_up else None


async def intend_cancel(tx: Tx, number: int, attempt: int, why: Why, by: Act | None = None) -> None:
    """Durable before the runner is asked to cancel; ``start_timeout`` gives way to the others."""
    mine = (R.queue == tx.queue) & (R.number == number) & R.ended_at.is_(None)
    free = R.ending.is_(None) | (R.ending == Why.START_TIMEOUT)
    await tx.connection.execute(
        sa.update(t.requests)
        .where(mine, free)
        .values(ending=why, ending_attempt=attempt, ending_at=tx.at)
    )
    once = "" if by else f"{attempt}:{why}"
    detail = f"{why}: {by.reason}" if by else why
    await tx.note(number, "cancel_requested", detail, occurrence=once, by=by)
