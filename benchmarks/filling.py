"""A long life of a queue, put into its store at once: what a head leaves, for many heads."""

from __future__ import annotations

from typing import Final

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from stores import tables as t
from stores.engine import begin

NOW: Final = 1_800_000_000_000
COMMITS: Final = 10
"""Of a head: ``u41`` is the 41st, above ``u41-9`` … ``u41-1``."""
BUILT: Final = 10
"""Every tenth head is built, green, and covers what lies above the one before."""
COUNTED: Final = "with recursive n(i) as (select 1 union all select i + 1 from n where i < {last})"
GREEN: Final = f"i % {BUILT} = 0"
TOP: Final = f"(i + {BUILT - 1}) / {BUILT} * {BUILT}"
FILL: Final = (
    """insert into requests (queue, number, "order", line, uri, origin, state, cause, strategy,
        accepted_at, admitted_at, deadline_at, ended_at, green_at, recorded_at)
    {counted} select '{queue}', i, i, 1, 'u' || i, 'head',
        case when {green} then 'succeeded' else 'superseded' end,
        case when {green} then 'build_succeeded' else 'superseded_by_newer_head' end,
        case when {green} then 'full' end, {now}, case when {green} then {now} end,
        case when {green} then {now} end, {now}, case when {green} then {now} end,
        case when {green} then {now} end from n""",
    """insert into facts (queue, uri, project, request, degree, cause, created_at)
    {counted} select '{queue}', 'u' || i, '', i, 0.0, 'build_succeeded', {now} from n
        where {green}""",
    """insert into builds (queue, runner, id, request, attempt, status, triggered_at)
    {counted} select '{queue}', 'fake', 'b/' || i, i, 1, 'succeeded', {now} from n where {green}""",
    """insert into history (queue, subject, kind, occurrence, at, seq, detail)
    {counted} select '{queue}', cast(i as text), 'accepted', '', {now}, i, '' from n""",
    """insert into hook_deliveries (queue, event_id, sink, type, request, project, sequence, state,
        last_error, created_at)
    {counted} select '{queue}', 'e/' || i, 'log', 'validation.repository.recorded', i, '', 2,
        'delivered', '', {now} from n where {green}""",
    """insert into coverage (queue, uri, "order", "offset", request, degree)
    {counted}, below(k) as (select 0 union all select k + 1 from below where k < {most})
    select '{queue}', case when k = 0 then 'u' || i else 'u' || i || '-' || k end,
        {top}, ({top} - i) * -{commits} - k, {top}, 0.0 from n, below""",
)


async def fill(engine: AsyncEngine, queue: str, heads: int) -> None:
    """``heads`` requests, a multiple of ten, and ten times as many commits, each of them covered:
    a row for each, as verdicts write it.
    """
    words = {"queue": queue, "now": NOW, "green": GREEN, "top": TOP, "commits": COMMITS}
    words |= {"counted": COUNTED.format(last=heads), "most": COMMITS - 1}
    own = {"name": queue, "next_number": heads + 1, "version": 1}
    async with begin(engine) as connection:
        await _trusts_this(connection)
        await connection.execute(sa.insert(t.queues), own)
        for statement in FILL:
            await connection.execute(sa.text(statement.format(**words)))
        if connection.dialect.name == "postgresql":
            await connection.execute(sa.text("analyze"))  # as its autovacuum does


async def _trusts_this(connection: AsyncConnection) -> None:
    """Two foreign keys a commit take longer to look up than all the rest to write."""
    if connection.dialect.name == "postgresql":
        await connection.execute(sa.text("set local session_replication_role = replica"))
