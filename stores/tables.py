"""The tables. Every key leads with the queue; what can be read from other rows is not stored."""

from __future__ import annotations

from typing import Final

import sqlalchemy as sa

from domain.build import Status
from domain.identity import MAX_NAME, MAX_NUMBER
from domain.request import VERDICTS, Cause, Origin, State, Strategy, Why, may_hold
from stores.columns import NAME, TEXT, TIME, key, one_of, size
from stores.columns import metadata as metadata  # noqa: PLC0414 - passed on
from stores.ranges import Searching
from stores.rows import Delivering


def _states_and_causes() -> str:
    """Exactly the rows of the table of endings."""
    allowed = [
        f"(origin = '{origin}' and state = '{state}' and coalesce(cause, '') = '{cause or ''}')"
        for origin in Origin
        for state in State
        for cause in (None, *Cause)
        if may_hold(origin, state, cause)
    ]
    return " or ".join(allowed)


OWES_RECORD: Final = f"recorded_at is null and {one_of('cause', sorted(VERDICTS))}"

installation: Final = sa.Table(
    "installation",
    metadata,
    sa.Column("only", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("id", TEXT, nullable=False),
    sa.Column("epoch", TIME, nullable=False),
    sa.CheckConstraint('"only" = 1', name="one_row"),
    sa.CheckConstraint("length(id) = 32 and epoch > 0", name="values"),
)

queues: Final = sa.Table(
    "queues",
    metadata,
    sa.Column("name", NAME, primary_key=True),
    sa.Column("next_number", sa.BigInteger, nullable=False),
    sa.Column("paused_reason", TEXT),
    sa.Column("version", sa.BigInteger, nullable=False),
    size("name", MAX_NAME),
    sa.CheckConstraint("next_number >= 1 and version >= 1", name="values"),
)

requests: Final = sa.Table(
    "requests",
    metadata,
    *key("queue"),
    sa.Column("number", sa.BigInteger, primary_key=True),
    sa.Column("order", sa.BigInteger, nullable=False),
    sa.Column("line", sa.BigInteger, nullable=False),
    sa.Column("uri", TEXT, nullable=False),
    sa.Column("origin", TEXT, nullable=False),
    sa.Column("committed_at", TIME),
    sa.Column("retry_of", sa.BigInteger),
    sa.Column("probe_of", sa.BigInteger),
    sa.Column("state", TEXT, nullable=False),
    sa.Column("cause", TEXT),
    sa.Column("strategy", TEXT),
    sa.Column("base_uri", TEXT),
    sa.Column("deadline_at", TIME),
    sa.Column("ending", TEXT),
    sa.Column("ending_attempt", sa.Integer),
    sa.Column("ending_at", TIME),
    sa.Column("terminal_build_id", TEXT),
    sa.Column("accepted_at", TIME, nullable=False),
    sa.Column("admitted_at", TIME),
    sa.Column("ended_at", TIME),
    sa.Column("green_at", TIME),
    sa.Column("recorded_at", TIME),
    sa.ForeignKeyConstraint(["queue"], ["queues.name"]),
    sa.ForeignKeyConstraint(["queue", "retry_of"], ["requests.queue", "requests.number"]),
    sa.ForeignKeyConstraint(["queue", "probe_of"], ["requests.queue", "requests.number"]),
    size("uri", 1024),
    sa.CheckConstraint(f"number between 1 and {MAX_NUMBER}", name="number"),
    sa.CheckConstraint(_states_and_causes(), name="endings"),
    sa.CheckConstraint(
        "(retry_of is not null) = (origin in ('retry', 'auto_retry')) and "
        "(probe_of is not null) = (origin = 'probe') and "
        '(origin <> \'head\' or "order" = number) and "order" <= number and line <= number',
        name="origin",
    ),
    sa.CheckConstraint(
        "(strategy is null) = (admitted_at is null) and (deadline_at is null) = (strategy is null) "
        f"and (strategy is null or {one_of('strategy', Strategy)}) and "
        "(base_uri is not null) = (strategy is not null and strategy = 'incremental_since_green') "
        "and (state <> 'processing' or strategy is not null) "
        "and (state not in ('accepted', 'superseded') or strategy is null)",
        name="strategy",
    ),
    sa.CheckConstraint(
        f"(ending is null or {one_of('ending', Why)}) and (ending is null) = "
        "(ending_attempt is null) and (ending is null) = (ending_at is null)",
        name="ending",
    ),
    sa.CheckConstraint(
        "accepted_at > 0 and (committed_at is null or committed_at > 0) and "
        "(admitted_at is null or admitted_at >= accepted_at) and "
        "(ended_at is null or ended_at >= coalesce(admitted_at, accepted_at)) and "
        "(ended_at is null) = (state in ('accepted', 'processing'))",
        name="times",
    ),
    sa.CheckConstraint(
        "(green_at is null or state = 'succeeded') and (recorded_at is null or "
        + one_of("coalesce(cause, '')", sorted(VERDICTS))
        + ")",
        name="record",
    ),
    sa.Index("requests_by_order", "queue", "order", "number"),
    sa.Index("requests_by_uri", "queue", "uri", "number"),
    # Without statistics, only a longer prefix of equals makes a planner choose these.
    sa.Index(
        "requests_active",
        "queue",
        "ended_at",
        "order",
        "number",
        sqlite_where=sa.text("ended_at is null"),
        postgresql_where=sa.text("ended_at is null"),
    ),
    sa.Index(
        "requests_unrecorded",
        "queue",
        "recorded_at",
        "order",
        "number",
        sqlite_where=sa.text(OWES_RECORD),
        postgresql_where=sa.text(OWES_RECORD),
    ),
    sa.Index(
        "requests_succeeded",
        "queue",
        "order",
        "number",
        sqlite_where=sa.text("state = 'succeeded'"),
        postgresql_where=sa.text("state = 'succeeded'"),
    ),
    sa.Index(
        "requests_green_of_line",
        "queue",
        "line",
        "order",
        "number",
        sqlite_where=sa.text("green_at is not null"),
        postgresql_where=sa.text("green_at is not null"),
    ),
    sa.Index(
        "requests_green",
        "queue",
        "order",
        "number",
        sqlite_where=sa.text("green_at is not null"),
        postgresql_where=sa.text("green_at is not null"),
    ),
)

coverage: Final = sa.Table(
    "coverage",
    metadata,
    *key("queue", "uri"),
    sa.Column("order", sa.BigInteger, nullable=False),
    sa.Column("offset", sa.Integer, nullable=False),
    sa.Column("request", sa.BigInteger, nullable=False),
    sa.Column("degree", sa.Float, nullable=False),
    sa.ForeignKeyConstraint(["queue", "order"], ["requests.queue", "requests.number"]),
    sa.ForeignKeyConstraint(["queue", "request"], ["requests.queue", "requests.number"]),
    size("uri", 1024),
    sa.CheckConstraint('degree between 0 and 1 and "offset" <= 0', name="values"),
)

bisections: Final = sa.Table(
    "bisections",
    metadata,
    *key("queue"),
    sa.Column("request", sa.BigInteger, primary_key=True),
    sa.Column("state", TEXT, nullable=False),
    sa.Column("good_uri", TEXT, nullable=False),
    sa.Column("bad_uri", TEXT, nullable=False),
    sa.Column("culprit_uri", TEXT),
    sa.Column("detail", TEXT, nullable=False),
    sa.Column("started_at", TIME, nullable=False),
    sa.Column("ended_at", TIME),
    sa.ForeignKeyConstraint(["queue", "request"], ["requests.queue", "requests.number"]),
    sa.CheckConstraint(
        f"{one_of('state', Searching)} and (ended_at is null) = (state = 'running') "
        "and (culprit_uri is not null) = (state = 'found')",
        name="states",
    ),
    sa.Index(
        "bisections_running",
        "queue",
        "state",
        "request",
        sqlite_where=sa.text("state = 'running'"),
        postgresql_where=sa.text("state = 'running'"),
    ),
)

builds: Final = sa.Table(
    "builds",
    metadata,
    *key("queue", "runner", "id"),
    sa.Column("request", sa.BigInteger, nullable=False),
    sa.Column("attempt", sa.Integer, nullable=False),
    sa.Column("status", TEXT, nullable=False),
    sa.Column("triggered_at", TIME, nullable=False),
    sa.Column("url", TEXT),
    sa.ForeignKeyConstraint(["queue", "request"], ["requests.queue", "requests.number"]),
    sa.UniqueConstraint("queue", "request", "attempt"),
    size("id", 255),
    sa.CheckConstraint(f"attempt >= 1 and {one_of('status', Status)}", name="values"),
)

facts: Final = sa.Table(
    "facts",
    metadata,
    *key("queue", "uri", "project"),
    sa.Column("request", sa.BigInteger, primary_key=True),
    sa.Column("degree", sa.Float, nullable=False),
    sa.Column("cause", TEXT, nullable=False),
    sa.Column("created_at", TIME, nullable=False),
    sa.ForeignKeyConstraint(["queue", "request"], ["requests.queue", "requests.number"]),
    size("uri", 1024),
    sa.CheckConstraint("length(project) <= 255", name="project_size"),
    sa.Index("facts_by_project", "queue", "project", "degree", "request"),
    sa.CheckConstraint(
        "degree between 0 and 1 and created_at > 0 "
        "and cause in ('build_succeeded', 'build_failed')",
        name="values",
    ),
)

history: Final = sa.Table(
    "history",
    metadata,
    *key("queue", "subject", "kind", "occurrence"),
    sa.Column("at", TIME, nullable=False),
    sa.Column("seq", sa.BigInteger, nullable=False),
    sa.Column("detail", TEXT, nullable=False),
    sa.Column("actor", TEXT),
    sa.CheckConstraint("at > 0", name="values"),
)

hook_deliveries: Final = sa.Table(
    "hook_deliveries",
    metadata,
    *key("queue", "event_id", "sink"),
    sa.Column("type", TEXT, nullable=False),
    sa.Column("request", sa.BigInteger, nullable=False),
    sa.Column("project", TEXT, nullable=False),
    sa.Column("sequence", sa.Integer, nullable=False),
    sa.Column("state", TEXT, nullable=False),
    sa.Column("last_error", TEXT, nullable=False),
    sa.Column("created_at", TIME, nullable=False),
    sa.Column("ended_at", TIME),
    sa.ForeignKeyConstraint(["queue", "request"], ["requests.queue", "requests.number"]),
    sa.CheckConstraint(one_of("state", Delivering), name="values"),
    sa.Index("deliveries_by_request", "queue", "request", "sequence"),
    sa.Index(
        "deliveries_pending",
        "queue",
        "state",
        "request",
        sqlite_where=sa.text("state = 'pending'"),
        postgresql_where=sa.text("state = 'pending'"),
    ),
)

dead_letters: Final = sa.Table(
    "dead_letters",
    metadata,
    *key("queue", "id"),
    sa.Column("kind", TEXT, nullable=False),
    sa.Column("subject", TEXT, nullable=False),
    sa.Column("cause", TEXT, nullable=False),
    sa.Column("detail", TEXT, nullable=False),
    sa.Column("created_at", TIME, nullable=False),
    sa.Column("resolved_at", TIME),
    sa.Column("resolved_by", TEXT),
    sa.CheckConstraint("(resolved_at is null) = (resolved_by is null)", name="resolved"),
    sa.Index(
        "dead_letters_open",
        "queue",
        "kind",
        "subject",
        unique=True,
        sqlite_where=sa.text("resolved_at is null"),
        postgresql_where=sa.text("resolved_at is null"),
    ),
)
