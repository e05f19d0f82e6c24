from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from temporalio.client import Client

from domain.event import EventType
from domain.request import Cause, State
from tests.trunk import Trunk, running_trunk
from workflows import ids, policies
from workflows.hook import HookWorkflow
from workflows.messages import RequestInput


@pytest.fixture(autouse=True)
def _minutes_are_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is owed is looked for every second in place of every five minutes."""
    monkeypatch.setattr("workflows.policies.DRIVE_AGAIN_MS", 900)
    monkeypatch.setattr("stores.write.OWED_WAKE_MS", 1_000)


async def triggered(trunk: Trunk, number: int = 1) -> None:
    async def has_build() -> bool:
        return bool(await trunk.store.builds(trunk.queue, number))

    await trunk.until(has_build)


async def test_a_build_workflow_that_was_terminated_is_started_again(trunk: Trunk) -> None:
    """V64, first half."""
    await trunk.report("A", "B")
    await triggered(trunk)
    before = await trunk.request("A")
    await trunk.terminate(ids.build(trunk.queue, 1))

    async def again() -> bool:
        return "driven_again" in await trunk.history(1)

    await trunk.until(again)
    a = await trunk.request("A")
    assert (a.strategy, a.base_uri, a.deadline_at) == (
        before.strategy,
        before.base_uri,
        before.deadline_at,
    )
    assert await trunk.states() == "A pro, B acc"
    await trunk.succeeds("A")
    assert [order.head_uri for order in trunk.runner.triggers].count("A") == 1


@pytest.mark.spec("V64")
async def test_a_build_workflow_that_cannot_get_on_is_started_anew_past_its_grace(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The half with a workflow that was terminated is told by the test above."""
    monkeypatch.setattr("workflows.policies.DRIVE_AGAIN_MS", 60_000)
    for policy in (policies.AT_HAND, policies.ONCE):
        monkeypatch.setitem(policy, "start_to_close_timeout", 2 * policies.SECOND)
    settings = {"validation_timeout": 2, "cancel_grace": 1, "slot_grace": 1.5}
    async with running_trunk(client, tmp_path, **settings) as trunk:
        await trunk.report("A", "B")
        await triggered(trunk)
        build = client.get_workflow_handle(ids.build(trunk.queue, 1))
        first = (await build.describe()).run_id
        trunk.runner.hang("status")
        trunk.runner.hang("cancel")
        a = await trunk.is_in("A", State.FAILED)
        assert a.cause is Cause.VALIDATION_TIMEOUT
        assert (await build.describe()).run_id != first
        kinds = await trunk.history(1)
        assert kinds.count("driven_again") == 1
        assert kinds.index("cancel_requested") < kinds.index("validation_timeout")
        b = await trunk.is_in("B", State.PROCESSING)
        assert (b.admitted_at or 0) >= (a.ended_at or 0)
        trunk.runner.released.set()


@pytest.mark.spec("V361")
async def test_what_is_owed_wakes_the_queue_and_a_quiet_queue_sets_no_timer(trunk: Trunk) -> None:
    await trunk.report("A", "B", "C")
    await trunk.build_ends("A", "failed")
    await trunk.is_in("C", State.PROCESSING)
    await trunk.fails("C")
    history = await trunk.history(2)
    await asyncio.sleep(1.5)
    version = (await trunk.state()).version
    await asyncio.sleep(2.5)
    assert (await trunk.state()).version == version
    assert await trunk.history(2) == history
    assert history[-1] == "superseded_by_newer_head"


@pytest.mark.spec("V393")
async def test_an_end_event_whose_wake_was_lost_goes_out_by_the_next_turn(
    trunk: Trunk, monkeypatch: pytest.MonkeyPatch
) -> None:
    await trunk.report("A")
    await triggered(trunk)

    async def lost(*_: object) -> None:
        """The worker died right after the transaction."""

    monkeypatch.setattr(trunk.parts.waker, "_hooks", lost)
    await trunk.build_ends("A", "cancelled")
    await trunk.is_in("A", State.CANCELLED)

    async def heard() -> bool:
        return EventType.CANCELLED in [kind for kind, _ in trunk.events()]

    await trunk.until(heard)
    assert [kind for kind, _ in trunk.events()].count(EventType.CANCELLED) == 1


@pytest.mark.spec("V395")
async def test_a_hook_workflow_that_completed_delivers_what_comes_later(trunk: Trunk) -> None:
    await trunk.report("A")

    async def started() -> bool:
        return len(trunk.events()) == 1

    await trunk.until(started)
    handle = trunk.client.get_workflow_handle(ids.hooks(trunk.queue, 1))
    await handle.result()
    await trunk.succeeds("A")

    async def ended() -> bool:
        return len(trunk.events()) == 2

    await trunk.until(ended)
    await handle.result()
    calls = trunk.sink.calls
    await trunk.client.execute_workflow(
        HookWorkflow.run,
        RequestInput(trunk.fence, trunk.queue, 1),
        id=ids.hooks(trunk.queue, 1),
        task_queue=trunk.queue,
    )
    assert trunk.sink.calls == calls


async def test_no_start_is_refused_because_its_id_was_used_before(trunk: Trunk) -> None:
    """Bisections come later."""
    await trunk.report("A")
    await trunk.succeeds("A")
    used = [ids.build(trunk.queue, 1), ids.buildsignal(trunk.queue, 1, 1)]
    used += [ids.record(trunk.queue, 1), ids.hooks(trunk.queue, 1)]
    for workflow_id in used:
        await trunk.terminate(workflow_id)
    before = await trunk.history(1)
    await trunk.drive(1)
    assert await trunk.history(1) == before
    await trunk.terminate(ids.queue(trunk.queue))
    await trunk.report("B")
    await triggered(trunk, 2)
    await trunk.terminate(ids.build(trunk.queue, 2))
    await trunk.succeeds("B")
    assert trunk.source.promotion == "B"


@pytest.mark.spec("V90")
async def test_a_request_that_is_not_there_is_driven_to_a_dead_letter(trunk: Trunk) -> None:
    await trunk.report("A")
    await trunk.succeeds("A")
    await trunk.drive_missing(99)
    letters = await trunk.store.dead_letters(trunk.queue)
    assert [(letter.kind, letter.subject) for letter in letters] == [("request", "99")]
    assert len(trunk.runner.triggers) == 1
    assert await trunk.states() == "A suc"
