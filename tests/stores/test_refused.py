"""What the database itself refuses, and how that is told."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
import sqlalchemy as sa

from domain.errors import Invariant, StoreOut, ValueRefused
from domain.request import Cause, Origin, State, may_hold
from stores import tables as t
from stores.engine import begin
from tests.stores.story import NOW, QUEUE, Story, a_request

ADMITTED: dict[str, Any] = {"strategy": "full", "admitted_at": NOW, "deadline_at": NOW}
DONE: dict[str, Any] = {"cause": "build_succeeded", "ended_at": NOW} | ADMITTED
BAD_REQUESTS: list[dict[str, Any]] = [
    {"queue": "nobody"},
    {"number": 0, "order": 0},
    {"number": -1, "order": -1},
    {"number": 1, "order": 1},
    {"order": 49},
    {"order": 51, "origin": "retry", "retry_of": 1},
    {"line": 51},
    {"uri": ""},
    {"uri": "x" * 1025},
    {"uri": None},
    {"origin": "whim"},
    {"origin": "retry"},
    {"origin": "auto_retry"},
    {"origin": "probe"},
    {"origin": "probe", "retry_of": 1},
    {"retry_of": 1},
    {"probe_of": 1},
    {"origin": "retry", "retry_of": 77, "order": 1},
    {"origin": "probe", "probe_of": 77, "order": 1},
    {"committed_at": 0},
    {"state": "sleeping"},
    {"state": None},
    {"cause": "build_failed"},
    {"ended_at": NOW},
    {"green_at": NOW},
    {"recorded_at": NOW},
    {"state": "processing"},
    {"strategy": "full"},
    ADMITTED,
    {"state": "processing", **ADMITTED, "base_uri": "A"},
    {"state": "processing", **ADMITTED, "strategy": "incremental_since_green"},
    {"state": "processing", **ADMITTED, "strategy": "sideways", "base_uri": "A"},
    {"state": "processing", **ADMITTED, "deadline_at": None},
    {"state": "processing", **ADMITTED, "admitted_at": NOW - 1},
    {"state": "processing", **DONE},
    {"state": "succeeded", **DONE, "ended_at": None},
    {"state": "succeeded", **DONE, "ended_at": NOW - 1},
    {"state": "succeeded", **DONE, "cause": None},
    {"state": "failed", **DONE},
    {"state": "failed", **DONE, "cause": "build_failed", "green_at": NOW},
    {"state": "failed", **DONE, "cause": "never_started", "recorded_at": NOW},
    {"state": "superseded", "cause": "superseded_by_newer_head", "ended_at": 1},
    {"state": "superseded", "cause": "superseded_by_newer_head", "ended_at": NOW, **ADMITTED},
    {"ending": "person"},
    {"ending": "whim", "ending_attempt": 1, "ending_at": NOW},
    {"ending_attempt": 1, "ending_at": NOW},
    {"accepted_at": 0},
]
OTHERS: dict[str, tuple[dict[str, Any], list[dict[str, Any]]]] = {
    "queues": (
        {"name": "q", "next_number": 1, "version": 1},
        [{"name": ""}, {"name": "q" * 201}, {"next_number": 0}, {"version": 0}],
    ),
    "builds": (
        {"runner": "r", "id": "i", "request": 1, "attempt": 2}
        | {"status": "running", "triggered_at": NOW},
        [
            {"status": "lost"},
            {"status": "unknown"},
            {"attempt": 0},
            {"attempt": 1},
            {"request": 9},
            {"id": ""},
            {"id": "i" * 256},
            {"queue": "nobody"},
        ],
    ),
    "facts": (
        {"uri": "A", "project": "app", "request": 1, "degree": 0.0}
        | {"cause": "build_succeeded", "created_at": NOW},
        [
            {"degree": 1.1},
            {"degree": -0.1},
            {"degree": float("nan")},
            {"degree": None},
            {"cause": "never_started"},
            {"cause": "adopted_fact"},
            {"created_at": 0},
            {"request": 9},
            {"project": ""},
        ],
    ),
    "history": (
        {"subject": "1", "kind": "promoted", "occurrence": "", "at": NOW, "seq": 1, "detail": ""},
        [{"at": 0}, {"kind": "accepted"}, {"detail": None}],
    ),
    "hook_deliveries": (
        {"event_id": "e", "sink": "log", "type": "x", "request": 1, "project": "", "sequence": 0}
        | {"state": "pending", "last_error": "", "created_at": NOW},
        [{"state": "lost"}, {"request": 9}, {"queue": "nobody"}],
    ),
    "dead_letters": (
        {
            "id": "d",
            "kind": "record",
            "subject": "1",
            "cause": "c",
            "detail": "",
            "created_at": NOW,
        },
        [{"kind": "request"}, {"resolved_at": NOW}, {"resolved_by": "me"}],
    ),
    "installation": ({"only": 1, "id": "0" * 32, "epoch": 1}, []),
}


async def is_stored(story: Story, table: sa.Table, row: dict[str, Any]) -> bool:
    """Whether the database takes the row; it is taken back at once."""
    try:
        async with begin(story.engine) as connection:
            await connection.execute(sa.insert(table).values(row))
            await connection.rollback()
    except Invariant:
        return False
    return True


@pytest.mark.spec("V92", "V93", "V305")
async def test_a_request_that_breaks_an_invariant_is_refused(story: Story) -> None:
    await story.validate("A")
    good = a_request(50)
    assert await is_stored(story, t.requests, good)
    for change in BAD_REQUESTS:
        assert not await is_stored(story, t.requests, good | change), change


@pytest.mark.spec("V305", "V396")
@pytest.mark.parametrize("table", OTHERS)
async def test_a_row_of_another_table_that_breaks_an_invariant_is_refused(
    story: Story, table: str
) -> None:
    await story.validate("A")
    await story.put(
        t.dead_letters,
        {"id": "1", "kind": "request", "subject": "1", "cause": "c", "detail": "d"}
        | {"created_at": NOW},
    )
    good, bad = OTHERS[table]
    own = {} if table in ("queues", "installation") else {"queue": QUEUE}
    if table == "installation":
        for only in (1, 2):
            assert not await is_stored(story, t.installation, good | {"only": only})
    else:
        assert await is_stored(story, t.metadata.tables[table], own | good)
    for change in bad:
        row = own | good | change
        if change == {"project": ""}:
            assert not await is_stored(story, t.facts, row), "a fact exists already"
        else:
            assert not await is_stored(story, t.metadata.tables[table], row), change


@pytest.mark.spec("V13")
async def test_exactly_the_pairs_of_the_table_of_endings_are_stored(story: Story) -> None:
    await story.validate("A")
    for origin, state, cause in product(Origin, State, (None, *Cause)):
        target = {} if origin is Origin.HEAD else {"order": 1}
        of = "probe_of" if origin is Origin.PROBE else "retry_of"
        target |= {} if origin is Origin.HEAD else {of: 1}
        row = a_request(50, state) | {"origin": origin, "cause": cause} | target
        row |= {"queue": QUEUE}
        expected = may_hold(origin, state, cause)
        assert await is_stored(story, t.requests, row) is expected, (origin, state, cause)


@pytest.mark.spec("V300", "V397")
@pytest.mark.parametrize(
    ("table", "change"),
    [
        ("requests", {"uri": "x" * 1025}),
        ("requests", {"uri": ""}),
        ("requests", {"uri": "NUL \x00 inside"}),
        ("requests", {"uri": "lone \ud800 surrogate"}),
        ("requests", {"number": 2**63, "order": 2**63}),
        ("requests", {"accepted_at": 2**63}),
        ("requests", {"accepted_at": 0}),
        ("builds", {"id": "x" * 256}),
        ("facts", {"uri": "x" * 1025}),
        ("facts", {"project": "x" * 256}),
        ("facts", {"degree": 1.5}),
        ("queues", {"name": "x" * 201}),
        ("history", {"detail": "NUL \x00 inside"}),
    ],
)
async def test_a_value_that_the_store_refuses_is_no_outage_and_leaves_nothing(
    story: Story, table: str, change: dict[str, Any]
) -> None:
    await story.validate("A")
    before = await story.rows()
    good = a_request(50) if table == "requests" else OTHERS[table][0]
    row = good | ({} if table == "queues" else {"queue": QUEUE}) | change

    async def write() -> None:
        async with begin(story.engine) as connection:
            await connection.execute(sa.update(t.queues).values(version=99))
            await connection.execute(sa.insert(t.metadata.tables[table]).values(row))

    with pytest.raises(ValueRefused):
        await write()
    assert await story.rows() == before


@pytest.mark.spec("V397")
@pytest.mark.parametrize("uri", ["x" * 1025, "", "lone \ud800 surrogate", "a NUL: \x00"])
async def test_an_ingest_past_the_domain_is_refused_as_a_value(story: Story, uri: str) -> None:
    await story.report("A")
    before = await story.rows()
    with pytest.raises(ValueRefused):
        await story.report(uri)
    assert await story.rows() == before


@pytest.mark.spec("V302")
async def test_an_empty_queue_name_binds_no_store(story: Story) -> None:
    before = await story.rows()
    nameless = story.elsewhere("main")
    nameless.queue = ""
    for act in (nameless.turn, lambda: nameless.report("A"), lambda: nameless.trigger(1)):
        with pytest.raises(ValueRefused):
            await act()
    assert await story.rows() == before


@pytest.mark.spec("V301")
async def test_a_driver_error_is_told_as_what_it_is(story: Story) -> None:
    await story.report("A")
    with pytest.raises(StoreOut, match="nowhere") as told:
        async with begin(story.engine) as connection:
            await connection.exec_driver_sql("select * from nowhere")
    assert isinstance(told.value.__cause__, sa.exc.DBAPIError)
    again = {"name": QUEUE, "next_number": 1, "version": 1}
    for wrapped in (sa.insert(t.queues).values(again), sa.insert(t.queues).values([again, again])):
        with pytest.raises(Invariant, match="a row of that identity exists") as twice:
            async with begin(story.engine) as connection:
                await connection.execute(wrapped)
        assert not isinstance(twice.value, ValueRefused)
