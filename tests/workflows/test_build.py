"""From an admitted request to a build that is watched: orders, outages, attempts."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import Client
from temporalio.common import RetryPolicy

from activities.failures import BUDGETS
from domain.build import Status
from domain.errors import RefusedForNow, RunnerOut, StoreOut
from domain.event import EventType
from domain.fact import Exit
from domain.request import Cause, State, Why
from stores.rows import Request
from tests.trunk import Trunk, make_trunk, running_trunk, trunk_worker
from wiring.parts import named
from workflows import ids, policies
from workflows.buildsignal import BuildSignalWorkflow
from workflows.messages import WatchBuild

SCALED = RetryPolicy(
    initial_interval=0.02 * policies.SECOND, maximum_interval=0.2 * policies.SECOND
)
"""Waits for a runner, one second standing for about two minutes."""


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for policy in (policies.RUNNER, policies.POLL, policies.POLL_PUSHED):
        monkeypatch.setitem(policy, "retry_policy", SCALED)


async def failed_closed(trunk: Trunk, uri: str, cause: Cause) -> Request:
    """Cause, slot, event, dead letter, no fact: what failing closed always means."""
    request = await trunk.is_in(uri, State.FAILED)
    assert request.cause is cause
    assert (await trunk.state()).in_flight == ()
    assert await trunk.is_green(uri) is Exit.UNKNOWN
    letters = [d for d in await trunk.store.dead_letters(trunk.queue) if d.kind == "request"]
    assert [(d.subject, d.cause) for d in letters] == [(str(request.number), str(cause))]

    async def heard() -> bool:
        return len(trunk.events()) == 2

    await trunk.until(heard)
    assert [kind for kind, _ in trunk.events()] == [EventType.STARTED, EventType.ABANDONED]
    return request


@pytest.mark.spec("V91", "V104")
async def test_the_runner_gets_all_that_identifies_a_build_and_it_is_watched(trunk: Trunk) -> None:
    await trunk.report("A")
    await trunk.succeeds("A")
    trunk.runner.first_status = "accepted"
    await trunk.report("B")
    build = await trunk.triggered(2)
    b = await trunk.request("B")
    request = f"request/{trunk.queue}/2"
    order = trunk.runner.triggers[-1]
    assert (order.queue, order.request, order.attempt) == (trunk.queue, 2, 1)
    assert (order.base_uri, order.head_uri, order.strategy) == ("A", "B", b.strategy)
    assert order.key == f"{trunk.fence.installation}/{request}"
    assert (order.wake, order.until) == (f"{request}/buildsignal/1", b.deadline_at)
    (row,) = await trunk.store.builds(trunk.queue, 2)
    assert (row.attempt, row.status, row.url) == (1, Status.ACCEPTED, f"memory:{build}")

    async def watched() -> bool:
        return build in trunk.runner.asked

    await trunk.until(watched)
    about = await trunk.client.get_workflow_handle(order.wake).describe()
    assert about.status is not None and about.status.name == "RUNNING"
    asked = dict(trunk.source.asked)
    await trunk.fails("B")
    covered = {"commits_between": 1}  # of the record, when the build is over
    assert dict(trunk.source.asked) == asked | covered


@pytest.mark.spec("V94")
async def test_a_runner_that_nobody_knows_fails_the_request_closed(
    client: Client, tmp_path: Path
) -> None:
    trunk = await make_trunk(client, tmp_path, runner="nobody")
    trunk.parts.extensions.runners = partial(named, "build runner", {})
    async with trunk_worker(trunk):
        await trunk.report("A", "B")
        await trunk.is_in("A", State.FAILED)
        b = await trunk.is_in("B", State.FAILED)
        assert b.cause is Cause.TRIGGER_FAILED
        letters = await trunk.store.dead_letters(trunk.queue)
        assert len(letters) == 2
        assert all("no build runner is called 'nobody'" in letter.detail for letter in letters)
        assert trunk.runner.triggers == []
        await trunk.end_all()
    await trunk.parts.engine.dispose()


@pytest.mark.spec("V95")
async def test_whatever_may_pass_is_tried_again_with_growing_waits(trunk: Trunk) -> None:
    """500, 502, 503, 504 are the runner's ``RunnerOut``; 408, 429 and a limit ``RefusedForNow``."""
    unknown = KeyError("nobody classified me")
    for error in (RunnerOut("502"), RefusedForNow("429"), TimeoutError(), OSError(), unknown) * 2:
        trunk.runner.fail("trigger", error)
    await trunk.report("A")
    a = await trunk.succeeds("A")
    assert a.cause is Cause.BUILD_SUCCEEDED
    assert len(trunk.runner.builds) == 1
    assert await trunk.store.dead_letters(trunk.queue) == []
    assert policies.BACK_OFF.backoff_coefficient == 2
    assert policies.BACK_OFF.maximum_attempts == 0


async def test_an_outage_far_longer_than_any_budget_is_waited_out(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """V97, first part: ten times the budget of a refusal, and of the time to start in."""
    monkeypatch.setitem(BUDGETS, "trigger", (RefusedForNow, 0.2))
    async with running_trunk(client, tmp_path, start_timeout=1) as trunk:
        trunk.runner.first_status = "accepted"
        trunk.runner.fail("find", RunnerOut("502"), 1000)
        await trunk.report("A")
        await asyncio.sleep(2)
        assert await trunk.states() == "A pro"
        trunk.runner._errors.clear()
        await trunk.triggered()
        (row,) = await trunk.store.builds(trunk.queue, 1)
        a = await trunk.request("A")
        assert row.triggered_at >= (a.admitted_at or 0) + 1500
        await trunk.runner.finish("A", "accepted")
        await asyncio.sleep(0.5)
        await trunk.runner.finish("A", "running")
        assert trunk.runner.cancelled == []
        a = await trunk.succeeds("A")
        assert a.cause is Cause.BUILD_SUCCEEDED
        assert len(trunk.runner.triggers) == 1


@pytest.mark.spec("V101", "V98")
@pytest.mark.parametrize("after", [False, True])
async def test_a_build_row_that_cannot_be_written_costs_no_second_build(
    trunk: Trunk, monkeypatch: pytest.MonkeyPatch, *, after: bool
) -> None:
    write, fails = trunk.store.build_row, [StoreOut("the database is gone")] * (1 if after else 4)

    async def now_and_then(*given: Any, **options: Any) -> None:
        if fails and not after:
            raise fails.pop()
        await write(*given, **options)
        if fails:
            raise fails.pop()

    monkeypatch.setattr(trunk.store, "build_row", now_and_then)
    await trunk.report("A")
    await trunk.triggered()
    await trunk.succeeds("A")
    assert (fails, len(trunk.runner.triggers)) == ([], 1)
    assert len(await trunk.store.builds(trunk.queue, 1)) == 1


@pytest.mark.spec("V105")
async def test_a_cancel_goes_to_the_runner_that_the_row_names(
    client: Client, tmp_path: Path
) -> None:
    async with running_trunk(client, tmp_path, validation_timeout=2, cancel_grace=1) as trunk:
        await trunk.report("A")
        build = await trunk.triggered()
        trunk.set(runner="another")
        await failed_closed(trunk, "A", Cause.VALIDATION_TIMEOUT)
        assert trunk.runner.cancelled == [build]
        assert set(trunk.named) == {"fake"}


@pytest.mark.spec("V363")
async def test_a_record_that_runs_ends_with_its_parent_and_is_made_by_the_next(
    trunk: Trunk,
) -> None:
    trunk.source.before_push = _out
    await trunk.report("A")
    await trunk.build_ends("A", "succeeded")
    await trunk.tells(1, "fact_recorded")
    record = trunk.client.get_workflow_handle(ids.record(trunk.queue, 1))
    first = (await record.describe()).run_id
    await trunk.terminate(ids.build(trunk.queue, 1))
    again = asyncio.create_task(trunk.drive(1))

    async def anew() -> bool:
        return (await record.describe()).run_id != first

    await trunk.until(anew)
    ended = await trunk.client.get_workflow_handle(record.id, run_id=first).describe()
    assert ended.status is not None and ended.status.name == "TERMINATED"
    trunk.source.before_push = lambda: None
    await trunk.recorded("A")
    await again
    assert (await trunk.history(1)).count("recorded") == 1


def _out() -> None:
    raise ConnectionError("no answer")


@pytest.mark.spec("V363")
async def test_a_child_that_somebody_else_left_is_waited_out(trunk: Trunk) -> None:
    await trunk.report("A")
    await trunk.triggered()
    signal = ids.buildsignal(trunk.queue, 1, 1)
    await trunk.until(lambda: _asked(trunk, 1))
    asked = await _question(trunk, signal)
    await trunk.terminate(ids.build(trunk.queue, 1))
    await trunk.until(lambda: _closed(trunk, signal))
    await trunk.client.start_workflow(
        BuildSignalWorkflow.run, asked, id=signal, task_queue=trunk.queue
    )
    again = asyncio.create_task(trunk.drive(1))
    await trunk.tells(1, "driven_again")
    await asyncio.sleep(0.5)
    await trunk.build_ends("A", "succeeded")
    await trunk.recorded("A")
    await again
    assert (await trunk.history(1)).count("build_succeeded") == 1


async def _question(trunk: Trunk, workflow_id: str) -> WatchBuild:
    history = await trunk.client.get_workflow_handle(workflow_id).fetch_history()
    given = history.events[0].workflow_execution_started_event_attributes.input.payloads
    (asked,) = await trunk.client.data_converter.decode(given, [WatchBuild])
    assert isinstance(asked, WatchBuild)
    return asked


async def _asked(trunk: Trunk, times: int) -> bool:
    return len(trunk.runner.asked) >= times


async def _closed(trunk: Trunk, workflow_id: str) -> bool:
    about = await trunk.client.get_workflow_handle(workflow_id).describe()
    return about.close_time is not None


@pytest.mark.spec("V366")
async def test_of_a_lost_build_the_new_one_is_stored_and_its_verdict_counts(trunk: Trunk) -> None:
    await trunk.report("A")
    lost = await trunk.triggered()
    await trunk.tells(1, "build_running")
    trunk.runner.first_status = "accepted"
    trunk.runner.lose(lost)
    await trunk.runner.finish("A", "")
    await trunk.tells(1, "build_lost")

    async def made_anew() -> bool:
        return len(trunk.runner.builds) == 2

    await trunk.until(made_anew)
    (row,) = await trunk.store.builds(trunk.queue, 1)
    assert row.status is Status.RUNNING
    a = await trunk.succeeds("A")
    (row,) = await trunk.store.builds(trunk.queue, 1)
    assert (row.id, row.attempt, row.status) == ("fake/2", 1, Status.SUCCEEDED)
    assert a.terminal_build_id == "fake/2"
    told = [h.detail for h in await trunk.store.history(trunk.queue, 1) if h.kind == "build_lost"]
    assert told == [lost]
    assert replace(trunk.runner.triggers[0]) == trunk.runner.triggers[1]


async def test_every_cancel_is_an_intent_before_the_runner_hears_of_it(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """V368 but for a person's; V102 with its keys, V99."""
    settings = {"start_timeout": 1, "validation_timeout": 60, "cancel_grace": 1}
    async with running_trunk(client, tmp_path, **settings) as trunk:
        seen: list[tuple[str, Why | None, int | None]] = []
        cancel = trunk.runner.cancel

        async def looks_first(build: str) -> None:
            request = await trunk.request("A")
            seen.append((build, request.ending, request.ending_attempt))
            await cancel(build)

        monkeypatch.setattr(trunk.runner, "cancel", looks_first)
        trunk.runner.first_status = "accepted"
        await trunk.report("A")
        await failed_closed(trunk, "A", Cause.NEVER_STARTED)
        why = Why.START_TIMEOUT
        assert seen == [("fake/1", why, 1), ("fake/2", why, 2)]
        key = f"{trunk.fence.installation}/request/{trunk.queue}/1"
        assert [order.key for order in trunk.runner.triggers] == [key, f"{key}#2"]
        history = await trunk.history(1)
        assert "build_cancelled" not in history
        assert history.count("cancel_requested") == 2
