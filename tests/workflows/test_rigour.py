"""What must hold when things are slow, out, repeated or wrong."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from temporalio.client import Client

from activities.failures import BUDGETS
from domain.errors import SourceControlOut, StoreOut
from domain.event import EventType
from domain.fact import Exit
from domain.request import Cause, State, Strategy
from stores import tables as t
from stores.rows import Request
from tests.trunk import Trunk, running_trunk


async def green(trunk: Trunk, uri: str) -> Request:
    await trunk.report(uri)
    return await trunk.succeeds(uri)


def out() -> None:
    raise SourceControlOut("no answer")


class FailsFor:
    """A store call that is out for a while, before or after its effect."""

    def __init__(self, call: Any, times: int, *, after: bool = False) -> None:
        self.call, self.times, self.after = call, times, after

    async def __call__(self, *arguments: Any, **named: Any) -> Any:
        self.times -= 1
        if self.times >= 0 and not self.after:
            raise StoreOut("the database is gone")
        answer = await self.call(*arguments, **named)
        if self.times >= 0:
            raise StoreOut("the answer was lost")
        return answer


async def keep_building(trunk: Trunk, seconds: float, build: float, pause: float) -> list[str]:
    """A new head every ``pause``; each build ends well after ``build`` seconds."""
    ends = time.monotonic() + seconds
    finishing: set[asyncio.Task[None]] = set()
    seen = 0
    uris: list[str] = []
    while time.monotonic() < ends:
        uris.append(f"H{len(uris):03}")
        trunk.source.land(uris[-1])
        await trunk.poke()
        for order in trunk.runner.triggers[seen:]:
            finishing.add(asyncio.create_task(_finish(trunk, order.head_uri, build)))
        seen = len(trunk.runner.triggers)
        await asyncio.sleep(pause)
    await asyncio.gather(*finishing)
    return uris


async def _finish(trunk: Trunk, uri: str, build: float) -> None:
    await asyncio.sleep(build)
    await trunk.build_ends(uri, "succeeded")


@pytest.mark.spec("V43")
async def test_a_steady_stream_of_heads_keeps_building_the_newest(trunk: Trunk) -> None:
    """Seconds stand for minutes: a head every 60 ms, builds of 0.6 s, for 6 s."""
    await keep_building(trunk, 6, 0.6, 0.06)
    requests = await trunk.store.requests(trunk.queue, limit=1000)
    built = [r for r in requests if r.admitted_at]
    assert len(built) >= 4
    for request in built:
        newer = [r for r in requests if r.number > request.number]
        assert all(r.accepted_at >= (request.admitted_at or 0) for r in newer)
    rest = [r for r in requests if not r.admitted_at and r.state is not State.ACCEPTED]
    assert rest
    assert {r.state for r in rest} == {State.SUPERSEDED}


@pytest.mark.spec("V375")
async def test_records_slower_than_builds_do_not_starve_the_ref(
    trunk: Trunk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seconds stand for minutes: builds of 0.2 s, records of 0.8 s."""
    promoted = trunk.source.promoted

    async def slow() -> str | None:
        await asyncio.sleep(0.8)
        return await promoted()

    monkeypatch.setattr(trunk.source, "promoted", slow)
    uris = await keep_building(trunk, 8, 0.2, 0.1)
    pushes = trunk.source.pushes
    assert len(pushes) >= 4
    assert [uris.index(uri) for uri in pushes] == sorted(uris.index(uri) for uri in pushes)


@pytest.mark.spec("V53")
async def test_a_head_may_wait_for_days(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wait of many ``gate_wait``s of 1 s, over several runs of the queue."""
    monkeypatch.setattr("workflows.policies.LONG_HISTORY", 30)
    async with running_trunk(client, tmp_path, gate_wait=1) as trunk:
        await trunk.report("A", "B")
        first = (await trunk.handle.describe()).run_id
        await asyncio.sleep(8)
        described = await trunk.handle.describe()
        assert described.run_id != first
        assert described.history_length < 60
        assert await trunk.states() == "A pro, B acc"
        await trunk.build_ends("A", "failed")
        await trunk.is_in("B", State.PROCESSING)
        assert await trunk.store.dead_letters(trunk.queue) == []


@pytest.mark.spec("V70", "V197", "V198")
async def test_nothing_overtakes_a_head_that_may_not_be_admitted(
    client: Client, tmp_path: Path
) -> None:
    async with running_trunk(client, tmp_path, max_concurrent=3) as trunk:
        await trunk.report("A", "B")
        await trunk.is_in("B", State.PROCESSING)
        trunk.source.rewrite(None, "X")
        await trunk.look()
        await trunk.report("Y")
        await trunk.stays("A pro, B pro, X acc, Y acc")
        await trunk.build_ends("A", "failed")
        await trunk.recorded("A")
        await trunk.stays("A fai, B pro, X acc, Y acc")
        await trunk.build_ends("B", "failed")
        x = await trunk.is_in("X", State.PROCESSING)
        assert x.strategy is Strategy.FULL
        await trunk.is_in("Y", State.PROCESSING)


@pytest.mark.spec("V79", "V191")
async def test_strategy_base_and_deadline_stay_when_last_green_moves(
    client: Client, tmp_path: Path
) -> None:
    async with running_trunk(client, tmp_path, max_concurrent=2) as trunk:
        await green(trunk, "A")
        await trunk.report("B", "C")
        c = await trunk.is_in("C", State.PROCESSING)
        await trunk.succeeds("B")
        assert await trunk.last_green() == (2, "B")
        await trunk.terminate(f"request/{trunk.queue}/3")
        await trunk.terminate(f"queue/{trunk.queue}")
        await trunk.start()
        await trunk.succeeds("C")
        done = await trunk.request("C")
        assert (done.strategy, done.base_uri) == (Strategy.INCREMENTAL, "A")
        assert done.deadline_at == c.deadline_at


@pytest.mark.spec("V104")
async def test_a_build_asks_source_control_nothing(trunk: Trunk) -> None:
    await green(trunk, "A")
    await trunk.report("B")
    await trunk.is_in("B", State.PROCESSING)
    asked = dict(trunk.source.asked)
    await trunk.build_ends("B", "failed")
    await trunk.recorded("B")
    by_its_record = {"commits_between": 1}
    assert dict(trunk.source.asked) == asked | by_its_record


async def fact_by_hand(trunk: Trunk, uri: str, request: int, degree: float) -> None:
    async with trunk.parts.engine.begin() as connection:
        values = {"queue": trunk.queue, "uri": uri, "project": "", "request": request}
        values |= {"degree": degree, "cause": "build_failed", "created_at": 5}
        await connection.execute(sa.insert(t.facts).values(values))


@pytest.mark.spec("V142")
async def test_the_stored_fact_decides_not_the_request(trunk: Trunk) -> None:
    await trunk.report("A")
    await fact_by_hand(trunk, "A", 1, 1.0)
    a = await trunk.succeeds("A")
    assert (a.state, a.green_at) == (State.SUCCEEDED, None)
    fact = await trunk.store.fact(trunk.queue, "A")
    assert fact and (fact.degree, fact.created_at) == (1.0, 5)
    assert trunk.source.asked["promote"] == 0


@pytest.mark.spec("V143")
async def test_a_fact_of_a_request_that_is_no_attempt_is_an_invariant_error(trunk: Trunk) -> None:
    await green(trunk, "A")
    await trunk.report("B")
    await trunk.is_in("B", State.PROCESSING)
    await fact_by_hand(trunk, "B", 1, 0.0)
    await trunk.build_ends("B", "succeeded")

    async def told() -> bool:
        return bool(await trunk.store.dead_letters(trunk.queue))

    await trunk.until(told)
    (letter,) = await trunk.store.dead_letters(trunk.queue)
    assert (letter.kind, letter.subject) == ("record", "2")
    assert "record_abandoned" in await trunk.history(2)
    b = await trunk.request("B")
    assert (b.state, b.cause) == (State.SUCCEEDED, Cause.BUILD_SUCCEEDED)
    assert trunk.source.promotion == "A"
    assert [n for kind, n in trunk.events() if kind is EventType.RECORDED] == [1]


@pytest.mark.spec("V148")
@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("call", ["facts", "announce"])
async def test_a_store_that_is_out_in_the_middle_of_record_is_waited_out(
    trunk: Trunk, monkeypatch: pytest.MonkeyPatch, call: str, *, after: bool
) -> None:
    await trunk.report("A")
    failing = FailsFor(getattr(trunk.store, call), 5, after=after)
    monkeypatch.setattr(trunk.store, call, failing)
    await trunk.build_ends("A", "succeeded")
    await trunk.until(lambda: _spent(failing))
    await trunk.recorded("A")
    history = await trunk.history(1)
    assert len(history) == len(set(history))
    assert trunk.source.pushes == ["A"]
    assert await trunk.store.dead_letters(trunk.queue) == []

    async def heard() -> bool:
        return len(trunk.events()) == 2

    await trunk.until(heard)
    assert len(trunk.sink.ids) == 2


async def _spent(failing: FailsFor) -> bool:
    return failing.times <= 0


@pytest.mark.spec("V133")
async def test_a_success_without_its_fact_is_a_base_and_not_yet_green(
    trunk: Trunk, monkeypatch: pytest.MonkeyPatch
) -> None:
    await trunk.report("A", "B")
    facts = trunk.store.facts
    monkeypatch.setattr(trunk.store, "facts", FailsFor(facts, 1000))
    await trunk.build_ends("A", "succeeded")
    b = await trunk.is_in("B", State.PROCESSING)
    assert b.base_uri == "A"
    assert await trunk.is_green("A") is Exit.UNKNOWN
    assert await trunk.is_green("B") is Exit.PENDING
    monkeypatch.setattr(trunk.store, "facts", facts)
    await trunk.recorded("A")
    assert await trunk.is_green("A") is Exit.GREEN


async def test_a_remote_that_is_out_is_left_out_after_the_budget(
    trunk: Trunk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """V158 but for the retry of its dead letter; the budget of ten minutes is one second here."""
    monkeypatch.setitem(BUDGETS, "publish", (Exception, 1.0))
    trunk.source.before_push = out
    await green(trunk, "A")
    (letter,) = await trunk.store.dead_letters(trunk.queue)
    assert letter.kind == "promotion"
    assert "no answer (for " in letter.detail
    assert "promotion_left_out" in await trunk.history(1)
    assert trunk.source.promotion is None
    trunk.source.before_push = lambda: None
    await green(trunk, "B")
    assert trunk.source.promotion == "B"


async def test_a_remote_that_comes_back_is_promoted_to_before_the_event(trunk: Trunk) -> None:
    """V158, first half."""
    trunk.source.before_push = out
    await trunk.report("A")
    await trunk.build_ends("A", "succeeded")
    await trunk.is_in("A", State.SUCCEEDED)
    await asyncio.sleep(1.0)
    assert (await trunk.request("A")).recorded_at is None
    trunk.source.before_push = lambda: None
    await trunk.recorded("A")
    assert (await trunk.history(1))[-2:] == ["promoted", "recorded"]


@pytest.mark.spec("V163")
@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("call", ["facts", "announce", "queue"])
async def test_whatever_crashes_in_record_the_ref_names_only_green_facts(
    trunk: Trunk, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, call: str, *, after: bool
) -> None:
    seen: list[int] = []

    def look() -> None:
        with sqlite3.connect(tmp_path / "store.db") as connection:
            query = "select count(*) from facts where uri = 'A' and degree = 0"
            seen.append(connection.execute(query).fetchone()[0])

    await trunk.report("A")
    trunk.source.before_push = look
    await trunk.is_in("A", State.PROCESSING)
    monkeypatch.setattr(trunk.store, call, FailsFor(getattr(trunk.store, call), 2, after=after))
    await trunk.runner.finish("A", "succeeded")
    await trunk.build_ends("A", "succeeded")
    await trunk.recorded("A")
    assert seen == [1]
    assert trunk.source.promotion == "A"


@pytest.mark.spec("V359")
async def test_a_commit_time_that_cannot_be_is_unknown_and_never_in_the_way(trunk: Trunk) -> None:
    future = time.time() + 10 * 86_400
    given = {"A": 1_700_000_000.0, "B": None, "C": 0.0, "D": -5.0, "E": future}
    stored = {}
    for uri, at in given.items():
        trunk.source.times[uri] = at
        await trunk.report(uri)
        stored[uri] = (await trunk.request(uri)).committed_at
    assert stored == {"A": 1_700_000_000_000, "B": None, "C": None, "D": None, "E": None}
    assert trunk.source.asked["change_info"] == 0


@pytest.mark.spec("V10")
@pytest.mark.parametrize("uri", ["x" * 1025, "", "a\nb"])
async def test_a_uri_that_breaks_the_contract_is_refused_and_nothing_stored(
    trunk: Trunk, monkeypatch: pytest.MonkeyPatch, uri: str
) -> None:
    monkeypatch.setattr("extensions.sourcecontrol.fake.commit_uri", lambda text: text)
    trunk.source.latest_answers.append(uri)
    trunk.source.tip = uri
    report = await trunk.look()
    assert (report.request, report.kind) == (None, "Malformed")
    assert await trunk.states() == ""
