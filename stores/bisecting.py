"""The search for what broke a red request: its row, its probes, its result."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from domain.act import Act
from domain.bisect import Observed, Probe, Said
from domain.errors import NotFound, Refused
from domain.event import EventType
from domain.fact import GREEN
from domain.identity import RequestId
from domain.request import Cause, Origin, State, Transition, Why
from stores import tables as t
from stores.covering import base_of
from stores.judging import intend_cancel
from stores.queueing import mint, next_number
from stores.ranges import Bisection, Searching
from stores.read import R, last_green, many, one, read_stage, the_request, top
from stores.rows import Request
from stores.transaction import Tx, move

B: Final = t.bisections.c
AT_ONCE: Final = 500


async def read_bisection(connection: AsyncConnection, queue: str, number: int) -> Bisection | None:
    mine = (B.queue == queue) & (B.request == number)
    row = (await connection.execute(sa.select(t.bisections).where(mine))).one_or_none()
    if row is None:
        return None
    red = await the_request(connection, queue, number)
    return Bisection(
        red,
        Searching(row.state),
        row.good_uri,
        row.bad_uri,
        row.culprit_uri,
        row.detail,
        row.started_at,
        row.ended_at,
        await base_of(connection, red) or row.good_uri,
        await _probes(connection, red),
    )


async def _probes(connection: AsyncConnection, red: Request) -> tuple[Request, ...]:
    """They stand in the red one's place, which an index knows."""
    place = (R.queue == red.queue) & (R.order == red.order)
    mine = sa.select(t.requests).where(place, R.probe_of == red.number)
    return await many(connection, mine.order_by(R.number))


async def start(tx: Tx, red: Request, by: Act | None = None) -> None:
    """``Refused`` with the reason where there is nothing to search, or a search already."""
    named = RequestId(tx.queue, red.number)
    if red.cause is not Cause.BUILD_FAILED or red.origin is Origin.PROBE:
        raise Refused(f"{named} is not red")
    if (base := await _green_below(tx.connection, red)) is None:
        raise Refused(f"{named} was built in full, and no older commit of its line is green")
    if (other := await _of_this_streak(tx, red)) is not None:
        raise Refused(f"{RequestId(tx.queue, other)} of the same red streak was bisected")
    values = {"queue": tx.queue, "request": red.number, "state": Searching.RUNNING, "detail": ""}
    values |= {"good_uri": base, "bad_uri": red.uri, "started_at": tx.at}
    await tx.connection.execute(sa.insert(t.bisections).values(values))
    await tx.note(red.number, "bisect_started", by.reason if by else "auto", by=by)
    tx.committed.wake_queue = True


async def _green_below(connection: AsyncConnection, red: Request) -> str | None:
    """What a rewrite has left behind may be green, and says nothing of what lies below."""
    if red.base_uri is not None:
        return red.base_uri
    older = (R.line == red.line) & (R.order < red.order) & R.green_at.is_not(None)
    green = await one(connection, top(red.queue, older))
    return green.uri if green else None


async def _of_this_streak(tx: Tx, red: Request) -> int | None:
    """A search that runs, or one since last green: one for each streak of red heads."""
    green = await one(tx.connection, last_green(tx.queue))
    since = R.order > (green.order if green and green.order < red.order else 0)
    searched = (
        sa.select(B.request)
        .join(t.requests, (R.queue == B.queue) & (R.number == B.request))
        .where(B.queue == tx.queue, (B.state == Searching.RUNNING) | since)
    )
    found: int | None = (await tx.connection.execute(searched.limit(1))).scalar()
    return found


async def observed_at(
    connection: AsyncConnection, queue: str, number: int, uris: Sequence[str]
) -> list[Observed]:
    """What attempts at these commits said, in the order of the attempts."""
    f = t.facts.c
    found: list[tuple[int, Observed]] = []
    for first in range(0, len(uris), AT_ONCE):
        mine = (f.queue == queue) & (f.project == "") & f.uri.in_(uris[first : first + AT_ONCE])
        facts = sa.select(f.uri, f.request, f.degree, R.probe_of).join(
            t.requests, (R.queue == f.queue) & (R.number == f.request)
        )
        for row in await connection.execute(facts.where(mine)):
            said = Said.GREEN if row.degree == GREEN else Said.RED
            found.append((row.request, Observed(row.uri, said, row.probe_of == number)))
    probes = await _probes(connection, await the_request(connection, queue, number))
    without = [probe for probe in probes if probe.cause and not probe.cause.has_verdict]
    found += [(p.number, Observed(p.uri, Said.NOTHING, is_probe=True)) for p in without]
    return [seen for _, seen in sorted(found, key=lambda each: each[0])]


async def mint_probe(tx: Tx, number: int, probe: Probe, committed_at: int | None) -> None:
    """One at a time: while another probe of the queue waits or is built, none is made."""
    found = await _running(tx, number)
    active = (R.queue == tx.queue) & (R.origin == Origin.PROBE) & R.ended_at.is_(None)
    if found is None or found.active is not None:
        return
    if await one(tx.connection, sa.select(t.requests).where(active).limit(1)):
        return  # of another search, whose place it is
    new = await next_number(tx)
    red = found.request
    about = {"order": red.order, "line": red.line, "uri": probe.uri, "probe_of": red.number}
    await mint(tx, new, Origin.PROBE, about | {"committed_at": committed_at})
    await _write(tx, number, good_uri=probe.good, bad_uri=probe.bad)
    once = str(new)
    narrowed = f"({probe.good}, {probe.bad}]: {RequestId(tx.queue, new)} builds {probe.uri}"
    await tx.note(number, "bisect_narrowed", narrowed, occurrence=once)
    await tx.note(new, "accepted", f"probe of {RequestId(tx.queue, number)}")
    tx.committed.wake_queue = True


async def end(tx: Tx, number: int, culprit: str | None, detail: str) -> None:
    """The result, with what is said of it; of a search that is over nothing."""
    if await _running(tx, number) is None:
        return
    state = Searching.FOUND if culprit else Searching.INCONCLUSIVE
    await _write(tx, number, state=state, culprit_uri=culprit, detail=detail, ended_at=tx.at)
    if culprit:
        await tx.note(number, "culprit_found", f"{culprit} {detail}")
        await tx.announce(number, EventType.CULPRIT_FOUND)
    else:
        await tx.note(number, "bisect_ended", detail)
        await tx.dead_letter("bisect", str(number), "inconclusive", detail)


async def cancel(tx: Tx, number: int, by: Act) -> None:
    """Its probe is cancelled as by a person; facts that were made stay."""
    if (found := await read_bisection(tx.connection, tx.queue, number)) is None:
        raise NotFound(f"{RequestId(tx.queue, number)} is not bisected")
    if found.state is not Searching.RUNNING:
        raise Refused(f"the bisection of {RequestId(tx.queue, number)} has ended: {found.state}")
    await _write(tx, number, state=Searching.CANCELLED, detail=by.reason, ended_at=tx.at)
    await tx.note(number, "bisect_ended", f"cancelled: {by.reason}", by=by)
    tx.committed.wake_bisections.add(number)
    if (probe := found.active) is not None:
        await cancel_request(tx, probe, by)


async def cancel_request(tx: Tx, request: Request, by: Act) -> None:
    """A waiting one ends at once; of one in flight the intent is written, and its build asked."""
    named = RequestId(tx.queue, request.number)
    if request.state.is_terminal:
        raise Refused(f"{named} has ended: {request.state}, {request.cause}")
    if request.state is State.ACCEPTED:
        cause = Cause.CANCELLED_BY_PERSON
        await move(tx, Transition(request.number, State.CANCELLED, tx.at, cause, by.reason, by=by))
        return
    if request.ending in (Why.PERSON, Why.VALIDATION_TIMEOUT):
        raise Refused(f"{named} is being ended already: {request.ending}")
    stage = await read_stage(tx.connection, tx.queue, request.number)
    await intend_cancel(tx, request.number, stage.attempt, Why.PERSON, by)
    tx.committed.wake_builds.add((request.number, stage.attempt))


async def _running(tx: Tx, number: int) -> Bisection | None:
    found = await read_bisection(tx.connection, tx.queue, number)
    return found if found is not None and found.state is Searching.RUNNING else None


async def _write(tx: Tx, number: int, **values: Any) -> None:  # noqa: ANN401 - columns
    mine = (B.queue == tx.queue) & (B.request == number)
    await tx.connection.execute(sa.update(t.bisections).where(mine).values(values))
