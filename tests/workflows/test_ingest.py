from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path

import pytest
from temporalio.client import Client
from temporalio.service import RPCError

from domain.errors import SourceControlOut
from domain.request import Cause, State
from tests.trunk import Trunk, running_trunk
from workflows import ids
from workflows.queue import QueueWorkflow


@pytest.mark.spec("V16")
async def test_a_new_head_becomes_an_accepted_request_and_the_latest(trunk: Trunk) -> None:
    trunk.config.put(trunk.config.get(trunk.queue))
    assert await trunk.report("A") == [f"request/{trunk.queue}/1"]
    request = await trunk.request("A")
    assert (request.number, request.order, request.line) == (1, 1, 1)
    assert request.committed_at == int((trunk.source.times["A"] or 0) * 1000)
    state = await trunk.state()
    assert state.latest == request
    assert (await trunk.history(1))[:1] == ["accepted"]


@pytest.mark.spec("V17")
@pytest.mark.parametrize("status", ["succeeded", "failed", "cancelled", None])
async def test_a_head_that_is_reported_again_is_the_request_that_it_is(
    trunk: Trunk, status: str | None
) -> None:
    first = await trunk.report("A")
    await trunk.is_in("A", State.PROCESSING)
    if status:
        await trunk.build_ends("A", status)
    await trunk.until(lambda: _quiet(trunk, status))
    before = await trunk.store.requests(trunk.queue)
    history = await trunk.history(1)
    report = await trunk.look()
    assert (report.request, report.is_new) == (first[0], False)
    await trunk.stays(await trunk.states(), 0.2)
    assert await trunk.store.requests(trunk.queue) == before
    assert await trunk.history(1) == history
    assert len(trunk.runner.triggers) == 1


async def _quiet(trunk: Trunk, status: str | None) -> bool:
    last = {None: "build_running", "cancelled": "build_cancelled"}.get(status, "recorded")
    return last in await trunk.history(1)


@pytest.mark.spec("V18")
async def test_ingest_order_is_report_order(trunk: Trunk) -> None:
    await trunk.report("A")
    trunk.source.land("B")
    late, early = await asyncio.gather(trunk.look(), trunk.look())
    assert {late.request, early.request} == {f"request/{trunk.queue}/2"}
    await trunk.report("C")
    assert await trunk.states() == "A pro, B sup, C acc"


@pytest.mark.spec("V21")
async def test_a_hundred_pokes_during_a_look_are_one_more_look(trunk: Trunk) -> None:
    await trunk.report("A")
    await trunk.until(lambda: _looks(trunk, 2) if trunk.source.asked["latest"] > 1 else _true())
    trunk.source.hang()
    looks = trunk.source.asked["latest"]
    await trunk.handle.signal(QueueWorkflow.head_moved)
    await trunk.until(lambda: _looks(trunk, looks + 1))
    trunk.source.land("B")
    for _ in range(100):
        await trunk.handle.signal(QueueWorkflow.head_moved)
    trunk.source.answering.set()
    await trunk.until(lambda: _looks(trunk, looks + 2))
    await asyncio.sleep(0.5)
    assert trunk.source.asked["latest"] == looks + 2


async def _true() -> bool:
    return True


async def _looks(trunk: Trunk, count: int) -> bool:
    return trunk.source.asked["latest"] >= count


async def test_twenty_reports_of_one_head_are_one_request(trunk: Trunk) -> None:
    """One process; that they share their updates is the API's, and proven with it."""
    trunk.source.land("A")
    await trunk.start()
    reports = await asyncio.gather(*(trunk.look() for _ in range(8)))
    assert {report.request for report in reports} == {f"request/{trunk.queue}/1"}
    assert await trunk.states() in ("A acc", "A pro")


async def test_a_ref_that_does_not_exist_makes_no_request_until_it_does(trunk: Trunk) -> None:
    """V24 but for the counter."""
    report = await trunk.look()
    assert (report.request, report.kind) == (None, "NotFound")
    assert "no such ref" in report.error
    assert await trunk.states() == ""
    trunk.source.land("A")
    await trunk.poke()
    await trunk.is_in("A", State.PROCESSING)


async def test_source_control_that_is_out_for_a_while_loses_no_head(trunk: Trunk) -> None:
    """V25 but for its eleven minutes, which the budget's own tests prove."""
    trunk.source.errors.extend([SourceControlOut("no answer")] * 2)
    assert await trunk.report("A") == [f"request/{trunk.queue}/1"]
    assert await trunk.states() in ("A acc", "A pro")
    assert await trunk.history(1) == ["accepted"] or "admitted" in await trunk.history(1)


@pytest.mark.spec("V29")
async def test_the_same_commit_in_two_queues_is_two_requests(
    client: Client, tmp_path: Path
) -> None:
    async with (
        running_trunk(client, tmp_path / "a") as one,
        running_trunk(client, tmp_path / "b") as other,
    ):
        await one.report("A")
        await other.report("A")
        await one.fails("A")
        await other.succeeds("A")
        facts = [await t.store.fact(t.queue, "A") for t in (one, other)]
        assert [fact and fact.degree for fact in facts] == [1, 0]


@pytest.mark.spec("V31")
async def test_an_accepted_request_survives_the_loss_of_its_queue_workflow(trunk: Trunk) -> None:
    await trunk.report("A", "B")
    assert await trunk.states() == "A pro, B acc"
    await trunk.terminate(ids.queue(trunk.queue))
    await trunk.succeeds("A")
    await trunk.start()
    await trunk.is_in("B", State.PROCESSING)


@pytest.mark.spec("V32")
async def test_a_queue_that_has_just_started_looks_once_by_itself(trunk: Trunk) -> None:
    trunk.source.land("A")
    await trunk.start()
    await trunk.is_in("A", State.PROCESSING)


@pytest.mark.spec("V37")
async def test_a_watch_wakes_the_queue_once_the_remote_is_back(trunk: Trunk) -> None:
    await trunk.report("A")
    trunk.set(watch_interval=1)
    trunk.source.out = True
    async with trunk.watched() as watch:
        await trunk.until(lambda: _asked(trunk, "refs"))
        trunk.source.land("B")
        trunk.source.out = False
        await trunk.until(lambda: _accepted(trunk, "B"))
        (pending,) = (await watch.describe()).raw_description.pending_activities
        assert pending.attempt >= 2


@pytest.mark.spec("V36")
async def test_an_unmoved_ref_costs_no_signal_and_no_history(trunk: Trunk) -> None:
    """That the other queues of a remote are not woken is the activity's own test."""
    await trunk.report("A")
    trunk.set(watch_interval=1)
    async with trunk.watched() as watch:
        await trunk.until(lambda: _asked(trunk, "refs", 3))
        assert len((await watch.fetch_history()).events) <= 5
        events = (await trunk.handle.fetch_history()).events
        assert not any(e.HasField("workflow_execution_signaled_event_attributes") for e in events)
        trunk.source.land("B")
        await trunk.until(lambda: _accepted(trunk, "B"))


async def _asked(trunk: Trunk, method: str, count: int = 1) -> bool:
    return trunk.source.asked[method] >= count


async def _accepted(trunk: Trunk, uri: str) -> bool:
    return bool(await trunk.store.attempts(trunk.queue, uri))


@pytest.mark.spec("V358")
async def test_a_slow_look_holds_neither_the_gate_nor_what_is_owed(trunk: Trunk) -> None:
    """Pause, resume, retry and cancel are updates of a later release; they ask no look either."""
    await trunk.report("A", "B")
    trunk.source.hang()
    trunk.source.land("C")
    await trunk.poke()
    await trunk.until(lambda: _asked(trunk, "latest", 3))
    await trunk.build_ends("A", "failed")
    await trunk.recorded("A")
    await trunk.is_in("B", State.PROCESSING)
    trunk.source.answering.set()
    await trunk.until(lambda: _accepted(trunk, "C"))
    assert await trunk.states() == "A fai, B pro, C acc"


@pytest.mark.spec("V38", "V39")
async def test_newer_heads_supersede_at_ingest_not_at_the_gate(trunk: Trunk) -> None:
    await trunk.report("A", "B", "C")
    b = await trunk.request("B")
    assert (b.state, b.cause) == (State.SUPERSEDED, Cause.SUPERSEDED_BY_NEWER_HEAD)
    assert b.ended_at == (await trunk.request("C")).accepted_at
    assert await trunk.history(2) == ["accepted", "superseded_by_newer_head"]
    (_, why) = await trunk.store.history(trunk.queue, 2)
    assert why.detail == f"by request/{trunk.queue}/3"
    await trunk.report("D")
    assert await trunk.states() == "A pro, B sup, C sup, D acc"
    assert all(event.request == 1 for event in trunk.sink.heard)
    assert [order.head_uri for order in trunk.runner.triggers] == ["A"]


@pytest.mark.spec("V46")
async def test_the_gate_never_asks_for_the_live_head(trunk: Trunk) -> None:
    await trunk.report("A", "B")
    trunk.source.land("C")
    looks = trunk.source.asked["latest"]
    await trunk.succeeds("A")
    await trunk.is_in("B", State.PROCESSING)
    assert trunk.source.asked["latest"] == looks


@pytest.mark.spec("V47")
async def test_what_landed_while_no_worker_ran_is_one_request(trunk: Trunk) -> None:
    await trunk.report("A")
    trunk.source.land(*(f"B{n}" for n in range(50)))
    await trunk.poke()
    await trunk.until(lambda: _accepted(trunk, "B49"))
    assert await trunk.states() == "A pro, B49 acc"


@pytest.mark.spec("V279")
async def test_a_head_behind_the_last_is_believed_only_when_a_second_look_agrees(
    trunk: Trunk,
) -> None:
    await trunk.report("A", "B", "C")
    trunk.source.latest_answers.append("B")
    report = await trunk.look()
    assert report.request == f"request/{trunk.queue}/3"
    assert await trunk.states() == "A pro, B sup, C acc"

    trunk.source.latest_answers.append("B")
    trunk.source.land("D")
    await trunk.look()
    assert await trunk.states() == "A pro, B sup, C sup, D acc"

    trunk.source.rewrite("B")
    await trunk.look()
    assert await trunk.states() == "A pro, B sup, C sup, D sup, B acc"


@pytest.mark.spec("V280")
async def test_a_commit_that_was_named_before_needs_a_second_look_also_after_a_reset(
    trunk: Trunk,
) -> None:
    await trunk.report("A")
    await trunk.succeeds("A")
    await trunk.report("B")
    looks = trunk.source.asked["latest"]
    await trunk.report("C")
    assert trunk.source.asked["latest"] == looks + 1  # one look is enough for a new head ahead
    trunk.source.rewrite("A")
    await trunk.look()
    assert (await trunk.state()).latest == await trunk.request("A")
    trunk.source.latest_answers.append("C")
    await trunk.look()
    assert (await trunk.request("A")).number == 4  # the replica's C was not believed
    assert await trunk.last_green() == (4, "A")
    trunk.source.land("D")
    trunk.source.rewrite("A")
    trunk.source.latest_answers.append("D")
    await trunk.look()
    assert (await trunk.request("D")).number == 5  # coalesced away, never named: as any head
    await trunk.look()
    latest = (await trunk.state()).latest
    assert latest and latest.uri == "A"


@pytest.mark.spec("V281")
async def test_wakes_during_the_second_look_are_one_look_after_it(
    client: Client, tmp_path: Path
) -> None:
    async with running_trunk(client, tmp_path, rewind_confirm=1) as trunk:
        await trunk.report("A", "B")
        looks = trunk.source.asked["latest"]
        trunk.source.rewrite("A")
        first = asyncio.create_task(trunk.look())
        await trunk.until(lambda: _looks(trunk, looks + 1))
        others = [asyncio.create_task(trunk.look()) for _ in range(5)]
        reports = await asyncio.gather(first, *others)
        assert {report.request for report in reports} == {f"request/{trunk.queue}/3"}
        assert trunk.source.asked["latest"] == looks + 3


@pytest.mark.spec("V282")
async def test_a_last_green_that_is_gone_everywhere_means_a_full_build(trunk: Trunk) -> None:
    await trunk.report("A")
    await trunk.succeeds("A")
    trunk.source.land("B")
    trunk.source.parents["B"] = None
    del trunk.source.parents["A"]
    await trunk.look()
    b = await trunk.is_in("B", State.PROCESSING)
    assert b.base_uri is None
    await trunk.succeeds("B")
    assert await trunk.last_green() == (2, "B")
    assert trunk.source.promotion == "B"


@pytest.mark.spec("V33")
async def test_a_report_around_continue_as_new_is_answered_once(
    trunk: Trunk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workflows.policies.LONG_HISTORY", 25)
    for uri in "ABCDEFGH":
        (request,) = await trunk.report(uri)
        assert request == f"request/{trunk.queue}/{'ABCDEFGH'.index(uri) + 1}"
    first = await trunk.handle.describe()
    assert first.raw_description.workflow_execution_info.first_run_id != first.run_id
    with suppress(RPCError):
        await trunk.poke()
    assert await trunk.states() == "A pro, B sup, C sup, D sup, E sup, F sup, G sup, H acc"
