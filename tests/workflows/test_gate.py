from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from temporalio.client import Client

from domain.errors import Misconfigured, SourceControlOut
from domain.event import HookEvent
from domain.gate import clock
from domain.request import Cause, State, Strategy
from stores.rows import Request
from tests.trunk import Trunk, running_trunk, trunk_worker
from workflows import ids
from workflows.queue import QueueWorkflow


async def green(trunk: Trunk, uri: str) -> Request:
    await trunk.report(uri)
    return await trunk.succeeds(uri)


@pytest.mark.spec("V50")
async def test_a_head_that_waits_for_a_slot_writes_nothing_and_says_who_holds_it(
    trunk: Trunk,
) -> None:
    await trunk.report("A", "B")
    before = await trunk.store.requests(trunk.queue)
    asked = dict(trunk.source.asked)
    history = await trunk.history(2)
    version = (await trunk.state()).version
    await trunk.handle.signal(QueueWorkflow.slot_freed)
    await trunk.until(lambda: _version_over(trunk, version))
    assert await trunk.store.requests(trunk.queue) == before
    assert await trunk.history(2) == history
    assert dict(trunk.source.asked) == asked
    a, b = await trunk.request("A"), await trunk.request("B")
    since = clock(b.accepted_at)
    held = f"request/{trunk.queue}/2 (B) waits since {since} for a slot held by "
    assert f"{held}request/{trunk.queue}/1" in await trunk.details()
    flies = f"request/{trunk.queue}/1 (head A) is in flight since {clock(a.admitted_at or 0)}"
    assert flies in await trunk.details()


async def _version_over(trunk: Trunk, version: int) -> bool:
    return (await trunk.state()).version > version


@pytest.mark.spec("V51")
async def test_a_lost_slot_freed_costs_no_more_than_gate_wait(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_trunk(client, tmp_path, gate_wait=1) as trunk:
        await trunk.report("A", "B")
        monkeypatch.setattr(trunk.parts.waker, "queue", _nobody)
        await trunk.build_ends("A", "failed")
        await trunk.is_in("B", State.PROCESSING)
        b, a = await trunk.request("B"), await trunk.request("A")
        assert (b.admitted_at or 0) - (a.ended_at or 0) < 2_500


async def _nobody(*_: object) -> None:
    """A wake that gets lost."""


@pytest.mark.spec("V52")
async def test_slot_freed_carries_no_truth(trunk: Trunk) -> None:
    await trunk.report("A", "B")
    for _ in range(5):
        await trunk.handle.signal(QueueWorkflow.slot_freed)
    await trunk.stays("A pro, B acc")
    await trunk.build_ends("A", "failed")
    await trunk.is_in("B", State.PROCESSING)


@pytest.mark.spec("V55", "V56")
async def test_the_cap_is_read_at_each_check_of_the_gate(trunk: Trunk) -> None:
    await trunk.report("A", "B")
    assert await trunk.states() == "A pro, B acc"
    trunk.set(max_concurrent=3)
    await trunk.handle.signal(QueueWorkflow.slot_freed)
    await trunk.is_in("B", State.PROCESSING)
    await trunk.report("C")
    await trunk.is_in("C", State.PROCESSING)
    trunk.set(max_concurrent=1)
    await trunk.report("D")
    await trunk.stays("A pro, B pro, C pro, D acc")
    await trunk.build_ends("A", "failed")
    await trunk.build_ends("B", "failed")
    await trunk.recorded("B")
    await trunk.stays("A fai, B fai, C pro, D acc")
    await trunk.build_ends("C", "failed")
    await trunk.is_in("D", State.PROCESSING)
    assert trunk.runner.cancelled == []


@pytest.mark.spec("V57")
async def test_a_queue_that_waits_holds_up_no_other(client: Client, tmp_path: Path) -> None:
    async with (
        running_trunk(client, tmp_path / "a") as busy,
        running_trunk(client, tmp_path / "b") as idle,
    ):
        await busy.report("A", "B")
        await idle.report("A")
        await idle.is_in("A", State.PROCESSING)
        assert await busy.states() == "A pro, B acc"


@pytest.mark.spec("V58")
async def test_newer_heads_never_cancel_a_build(trunk: Trunk) -> None:
    await trunk.report(*"ABCDEFG")
    await trunk.succeeds("A")
    assert trunk.runner.cancelled == []


@pytest.mark.spec("V59")
@pytest.mark.parametrize("status", ["succeeded", "failed", "cancelled", "refused"])
async def test_whatever_ends_a_build_frees_the_slot(trunk: Trunk, status: str) -> None:
    if status == "refused":
        trunk.runner.fail("trigger", Misconfigured("no such pipeline"))
    await trunk.report("A")
    if status != "refused":
        await trunk.build_ends("A", status)
    await trunk.until(lambda: _free(trunk))
    await trunk.report("B")
    await trunk.is_in("B", State.PROCESSING)


async def _free(trunk: Trunk) -> bool:
    state = await trunk.state()
    return state.in_flight == () and state.waiting == ()


@pytest.mark.spec("V60")
async def test_the_slot_is_held_through_trigger_polls_and_confirmation_until_settle(
    client: Client, tmp_path: Path
) -> None:
    async with running_trunk(client, tmp_path, confirm_failures=1) as trunk:
        await trunk.report("A", "B")
        await trunk.build_ends("A", "failed")
        await trunk.until(lambda: _triggers(trunk, 2))
        await trunk.terminate(f"request/{trunk.queue}/1")
        await trunk.stays("A pro, B acc")
        assert [r.number for r in (await trunk.state()).in_flight] == [1]


async def _triggers(trunk: Trunk, count: int) -> bool:
    return len(trunk.runner.triggers) >= count


@pytest.mark.spec("V61")
async def test_a_record_that_hangs_holds_neither_the_slot_nor_the_base(trunk: Trunk) -> None:
    await green(trunk, "Z")
    await trunk.report("A", "B")
    trunk.source.before_push = _out
    await trunk.build_ends("A", "succeeded")
    b = await trunk.is_in("B", State.PROCESSING)
    assert b.base_uri == "A"
    a = await trunk.request("A")
    assert (a.state, a.recorded_at) == (State.SUCCEEDED, None)
    trunk.source.before_push = lambda: None
    await trunk.recorded("A")


def _out() -> None:
    raise SourceControlOut("no answer")


@pytest.mark.spec("V69")
async def test_a_queue_that_is_not_configured_waits_and_goes_on_when_it_returns(
    trunk: Trunk,
) -> None:
    await trunk.report("A", "B")
    await trunk.until(lambda: _has_build(trunk, 1))
    settings = trunk.config.get(trunk.queue)
    trunk.config.remove(trunk.queue)
    await trunk.build_ends("A", "succeeded")
    await trunk.recorded("A")
    await trunk.handle.signal(QueueWorkflow.slot_freed)
    await trunk.stays("A suc, B acc")
    assert "not configured" in await trunk.details()
    trunk.config.put(settings)
    await trunk.handle.signal(QueueWorkflow.slot_freed)
    await trunk.is_in("B", State.PROCESSING)


@pytest.mark.spec("V71", "V92")
async def test_without_a_last_green_the_build_is_full_and_nobody_is_asked(trunk: Trunk) -> None:
    await trunk.report("A")
    a = await trunk.is_in("A", State.PROCESSING)
    assert (a.strategy, a.base_uri) == (Strategy.FULL, None)
    assert trunk.source.asked["is_ancestor"] == 0
    await trunk.until(lambda: _triggers(trunk, 1))
    assert trunk.runner.triggers[0].base_uri is None


@pytest.mark.spec("V72", "V91")
async def test_on_top_of_last_green_the_build_is_incremental(trunk: Trunk) -> None:
    await green(trunk, "A")
    await trunk.report("B")
    b = await trunk.is_in("B", State.PROCESSING)
    assert (b.strategy, b.base_uri) == (Strategy.INCREMENTAL, "A")
    await trunk.until(lambda: _triggers(trunk, 2))
    order = trunk.runner.triggers[-1]
    assert (order.base_uri, order.head_uri, order.attempt) == ("A", "B", 1)
    assert order.key == f"{trunk.fence.installation}/request/{trunk.queue}/2"
    await trunk.until(lambda: _has_build(trunk, 2))
    (build,) = await trunk.store.builds(trunk.queue, 2)
    assert (build.attempt, build.url) == (1, f"memory:{build.id}")


async def _has_build(trunk: Trunk, number: int) -> bool:
    return bool(await trunk.store.builds(trunk.queue, number))


@pytest.mark.spec("V73")
async def test_after_a_rewrite_the_old_green_is_no_base(trunk: Trunk) -> None:
    await green(trunk, "A")
    trunk.source.rewrite(None, "X")
    await trunk.look()
    x = await trunk.is_in("X", State.PROCESSING)
    assert (x.strategy, x.base_uri) == (Strategy.FULL, None)
    (_, admitted, *_) = await trunk.store.history(trunk.queue, 2)
    assert (admitted.kind, admitted.detail) == ("admitted", "full: rewritten")


@pytest.mark.spec("V74")
async def test_unknown_ancestry_means_full_and_no_retry(trunk: Trunk) -> None:
    await green(trunk, "A")
    trunk.source.land("B")
    del trunk.source.parents["A"]
    trunk.source.parents["B"] = None
    await trunk.look()
    b = await trunk.is_in("B", State.PROCESSING)
    assert (b.strategy, b.base_uri) == (Strategy.FULL, None)
    (_, admitted, *_) = await trunk.store.history(trunk.queue, 2)
    assert admitted.detail == "full: unknown_ancestry"


@pytest.mark.spec("V75")
async def test_source_control_that_is_out_at_the_gate_is_waited_for(trunk: Trunk) -> None:
    await green(trunk, "A")
    await trunk.report("B", "C")
    await _forget(trunk)
    trunk.source.out = True
    await trunk.build_ends("B", "succeeded")
    await trunk.until(lambda: _asked_ancestry(trunk))
    await trunk.stays("A suc, B suc, C acc")
    assert "source control" in await trunk.details()
    assert (await trunk.state()).in_flight == ()
    trunk.source.out = False
    c = await trunk.is_in("C", State.PROCESSING)
    assert c.base_uri == "B"


async def _forget(trunk: Trunk) -> None:
    """A new run of the queue, which knows nothing of the look that brought the head."""
    looks = trunk.source.asked["latest"]
    await trunk.terminate(ids.queue(trunk.queue))
    await trunk.start()

    async def has_looked() -> bool:
        return trunk.source.asked["latest"] > looks

    await trunk.until(has_looked)
    await asyncio.sleep(0.3)


async def _asked_ancestry(trunk: Trunk) -> bool:
    handle = trunk.client.get_workflow_handle(ids.queue(trunk.queue))
    pending = (await handle.describe()).raw_description.pending_activities
    return any(a.activity_type.name == "ancestry" and a.attempt > 1 for a in pending)


@pytest.mark.spec("V76")
async def test_source_control_misconfigured_for_good_fails_the_head_closed(trunk: Trunk) -> None:
    await green(trunk, "A")
    await trunk.report("B", "C")
    await _forget(trunk)
    trunk.source.hang()
    await trunk.build_ends("B", "succeeded")
    await trunk.until(lambda: _asking(trunk))
    trunk.source.errors.extend([Misconfigured("credentials named but absent")] * 2)
    trunk.source.answering.set()
    c = await trunk.is_in("C", State.FAILED)
    assert (c.cause, c.admitted_at) == (Cause.PROCESSING_FAILED, None)
    letters = await trunk.store.dead_letters(trunk.queue)
    assert [(d.kind, d.subject) for d in letters if d.kind == "request"] == [("request", "3")]
    await trunk.until(lambda: _heard(trunk, "validation.repository.abandoned"))
    assert await trunk.store.fact(trunk.queue, "C") is None


async def _asking(trunk: Trunk) -> bool:
    handle = trunk.client.get_workflow_handle(ids.queue(trunk.queue))
    pending = (await handle.describe()).raw_description.pending_activities
    return any(a.activity_type.name == "ancestry" for a in pending)


async def _heard(trunk: Trunk, kind: str) -> bool:
    return any(event.type == kind for event in trunk.sink.heard)


@pytest.mark.spec("V81", "V85")
async def test_the_state_is_durable_before_anyone_is_told_or_asked(trunk: Trunk) -> None:
    seen: list[tuple[State, Strategy | None]] = []

    async def read(event: HookEvent) -> None:
        request = await trunk.store.request(event.queue, event.request)
        seen.append((request.state, request.strategy))

    trunk.sink.reads = read
    trunk.runner.hang("trigger")
    await trunk.report("A")
    await trunk.until(lambda: _triggers(trunk, 1))
    assert (await trunk.request("A")).state is State.PROCESSING
    await trunk.until(lambda: _heard(trunk, "validation.repository.started"))
    trunk.runner.released.set()
    assert seen[0][0] is not State.ACCEPTED
    assert seen[0][1] is Strategy.FULL


@pytest.mark.spec("V87", "V326")
async def test_a_build_workflow_that_runs_is_started_only_once(trunk: Trunk) -> None:
    await trunk.report("A")
    await trunk.is_in("A", State.PROCESSING)
    await trunk.terminate(ids.queue(trunk.queue))
    await trunk.start()
    await trunk.handle.signal(QueueWorkflow.slot_freed)
    await asyncio.sleep(0.3)
    assert len(trunk.runner.triggers) == 1
    await trunk.succeeds("A")
    assert "driven_again" not in await trunk.history(1)


@pytest.mark.spec("V88", "V258")
async def test_a_request_whose_workflow_was_lost_is_driven_again(trunk: Trunk) -> None:
    await trunk.report("A")
    await trunk.until(lambda: _has_build(trunk, 1))
    before = await trunk.request("A")
    await trunk.terminate(ids.build(trunk.queue, 1))
    await trunk.terminate(ids.queue(trunk.queue))
    await trunk.start()
    a = await trunk.succeeds("A")
    assert "driven_again" in await trunk.history(1)
    assert len(trunk.runner.triggers) == 1
    assert (a.strategy, a.base_uri, a.deadline_at) == (
        before.strategy,
        before.base_uri,
        before.deadline_at,
    )
    assert [e.type for e in trunk.sink.heard if e.request == 1].count(trunk.sink.heard[0].type) == 1


@pytest.mark.spec("V89")
async def test_a_request_that_is_done_is_driven_to_no_effect(trunk: Trunk) -> None:
    await green(trunk, "A")
    await trunk.until(lambda: _heard(trunk, "validation.repository.recorded"))
    history, calls = await trunk.history(1), trunk.sink.calls
    await trunk.drive(1)
    assert await trunk.history(1) == history
    assert (len(trunk.runner.triggers), trunk.sink.calls) == (1, calls)


@pytest.mark.spec("V126")
async def test_a_worker_that_comes_back_goes_on_with_the_wait(
    client: Client, tmp_path: Path
) -> None:
    from tests.trunk import make_trunk

    trunk = await make_trunk(client, tmp_path)
    async with trunk_worker(trunk):
        await trunk.report("A")
        await trunk.until(lambda: _has_build(trunk, 1))
    await trunk.runner.finish("A", "succeeded")
    async with trunk_worker(trunk):
        await trunk.recorded("A")
        assert (await trunk.history(1)).count("build_finished") == 1
        await trunk.end_all()
    await trunk.parts.engine.dispose()
