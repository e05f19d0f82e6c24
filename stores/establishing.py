"""A verdict becomes facts, all in one transaction: of the repository, and of its projects."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa

from domain.errors import Invariant
from domain.event import EventType
from domain.fact import BROKEN, GREEN, PARTLY
from domain.request import Cause
from domain.results import ProjectResult
from stores import tables as t
from stores.rows import Request
from stores.transaction import Tx

F = t.facts.c


async def write_facts(tx: Tx, request: Request, results: Sequence[ProjectResult] | None) -> None:
    """The facts of this attempt; an adopted one has its own already, by another request."""
    if request.cause not in (Cause.BUILD_SUCCEEDED, Cause.BUILD_FAILED):
        return
    await _refuse_strangers(tx, request.uri)
    degree = GREEN
    if request.cause is Cause.BUILD_FAILED:
        degree = PARTLY if results else BROKEN
    own = {"queue": tx.queue, "uri": request.uri, "request": request.number}
    own |= {"cause": request.cause, "created_at": tx.at}
    is_new = await tx.insert_once(t.facts, own | {"project": "", "degree": degree})
    await tx.note(request.number, "fact_recorded", f"degree {degree:g}")
    if results is None or not is_new:
        return
    if results:
        rows = [own | {"project": r.project, "degree": r.degree} for r in results]
        await tx.connection.execute(sa.insert(t.facts), rows)
    await tx.note(request.number, "project_facts_recorded", str(len(results)))


async def _refuse_strangers(tx: Tx, uri: str) -> None:
    r = t.requests.c
    stranger = (
        sa.select(F.request)
        .join(t.requests, (r.queue == F.queue) & (r.number == F.request))
        .where(F.queue == tx.queue, F.uri == uri, r.uri != F.uri)
    )
    if (other := (await tx.connection.execute(stranger)).scalar()) is not None:
        raise Invariant(f"fact of {uri} is by request {other}, no attempt at it")


async def own_degree(tx: Tx, request: Request) -> float:
    return (await _own(tx, request))[""]


async def announce_projects(tx: Tx, request: Request) -> None:
    """An event for each project fact of this attempt, before the repository's."""
    if not any(route.hears(EventType.PROJECT_RECORDED) for route in tx.routes):
        return
    for project in sorted(await _own(tx, request)):
        if project:
            await tx.announce(request.number, EventType.PROJECT_RECORDED, project)


async def _own(tx: Tx, request: Request) -> Mapping[str, float]:
    """Project → degree of this attempt; "" is the repository."""
    mine: Any = (F.queue == tx.queue) & (F.uri == request.uri) & (F.request == request.number)
    rows = await tx.connection.execute(sa.select(F.project, F.degree).where(mine))
    return {row.project: row.degree for row in rows}
