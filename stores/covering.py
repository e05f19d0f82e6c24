"""Verdicts cover ranges: which commits a verdict speaks for, without being a fact of theirs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncConnection

from domain.fact import GREEN
from domain.request import Cause
from stores import tables as t
from stores.ranges import Cover, Covers, RangePage
from stores.read import R, attempts_at, facts_at, many, one, the_request, top
from stores.rows import Request
from stores.transaction import Tx

C: Final = t.coverage.c


async def base_of(connection: AsyncConnection, request: Request) -> str | None:
    """Where the range of its verdict begins: at its base, else at the newest older green commit,
    else at the newest older one that was built.
    """
    if request.base_uri is not None:
        return request.base_uri
    for known in (R.green_at.is_not(None), R.cause == Cause.BUILD_FAILED):
        older = await one(connection, top(request.queue, known, R.order < request.order))
        if older is not None:
            return older.uri
    return None


async def cover(tx: Tx, number: int, degree: float, page: RangePage) -> bool:
    """Whether the next page is to follow; the last one is told."""
    order, uris, first = await _order(tx, number), page.uris, page.first
    free = uris if degree == GREEN else await _until_covered(tx, number, uris)
    own: dict[str, Any] = {"queue": tx.queue, "order": order, "request": number, "degree": degree}
    await _write(tx, [own | {"uri": uri, "offset": first - at} for at, uri in enumerate(free)])
    goes_on = len(free) == len(uris) and not page.is_last
    if not goes_on:
        cut = ", cut there" if page.is_cut else ""
        await tx.note(number, "coverage_recorded", f"{len(free) - first} commits{cut}")
    return goes_on


async def _order(tx: Tx, number: int) -> int:
    return (await the_request(tx.connection, tx.queue, number)).order


async def _until_covered(tx: Tx, number: int, uris: Sequence[str]) -> Sequence[str]:
    """What another verdict covers is neither changed nor passed by one that is not green."""
    mine = (C.queue == tx.queue) & C.uri.in_(uris) & (C.request != number)
    covered = set((await tx.connection.execute(sa.select(C.uri).where(mine))).scalars())
    stop = next((at for at, uri in enumerate(uris) if uri in covered), len(uris))
    return uris[:stop]


async def _write(tx: Tx, rows: Sequence[dict[str, Any]]) -> None:
    """A green verdict overwrites what is not green, and lowers a position to an older order."""
    if not rows:
        return
    dialect = {"sqlite": sqlite, "postgresql": postgresql}[tx.connection.dialect.name]
    insert = dialect.insert(t.coverage)
    new, key = insert.excluded, ["queue", "uri"]
    repaired, older = (C.degree > GREEN) & (new.degree == GREEN), new.order < C.order
    changed = {
        "degree": sa.case((repaired, new.degree), else_=C.degree),
        "request": sa.case((repaired, new.request), else_=C.request),
        "offset": sa.case((older, new.offset), else_=C.offset),
        "order": sa.case((older, new.order), else_=C.order),
    }
    where = (new.degree == GREEN) & (repaired | older)
    statement = insert.on_conflict_do_update(index_elements=key, set_=changed, where=where)
    await tx.connection.execute(statement, rows)


async def covers_of(connection: AsyncConnection, queue: str, uri: str) -> Covers:
    """A seek for each question, however long the log; nothing is asked of source control."""
    attempts = await many(connection, attempts_at(queue, uri))
    fact = await facts_at(connection, queue, uri)
    mine = sa.select(t.coverage).where(C.queue == queue, C.uri == uri)
    row = (await connection.execute(mine)).one_or_none()
    if row is None:
        return Covers(uri, fact, attempts)
    found = Cover(row.uri, row.order, row.offset, row.request, row.degree)
    by = head = await the_request(connection, queue, found.request)
    if found.order != by.number:
        head = await the_request(connection, queue, found.order)
    prior = await one(connection, _green(queue, head.line, R.order < found.order, older=True))
    following = await one(connection, _green(queue, head.line, R.order >= found.order, older=False))
    return Covers(uri, fact, attempts, found, by, prior, following)


def _green(queue: str, line: int, where: sa.ColumnElement[bool], *, older: bool) -> sa.Select[Any]:
    mine = (R.queue == queue) & (R.line == line) & R.green_at.is_not(None)
    order = (R.order.desc(), R.number.desc()) if older else (R.order, R.number)
    return sa.select(t.requests).where(mine, where).order_by(*order).limit(1)
