"""From the trigger to the verdict."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from temporalio.client import Client

from activities.failures import BUDGETS
from domain.build import Status
from domain.errors import Misconfigured, NoSuchBuild, Refused, RefusedForNow, RunnerOut
from domain.event import EventType
from domain.fact import Exit
from domain.request import Cause, State
from stores.rows import Request
from tests.trunk import Trunk, running_trunk
from workflows import ids, policies

QUICK = {"start_timeout": 1, "validation_timeout": 60, "cancel_grace": 1, "slot_grace": 120}


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call that hangs is given up after one second."""
    for policy in (policies.AT_HAND, policies.ONCE):
        monkeypatch.setitem(policy, "start_to_close_timeout", policies.SECOND)


@pytest_asyncio.fixture
async def hasty(client: Client, tmp_path: Path) -> AsyncIterator[Trunk]:
    """Builds must start within a second; cancels are waited for one second."""
    async with running_trunk(client, tmp_path, **QUICK) as trunk:
        trunk.runner.pushes = False
        yield trunk


async def triggered(trunk: Trunk, number: int = 1, attempt: int = 1) -> str:
    async def has_build() -> bool:
        return len(await trunk.store.builds(trunk.queue, number)) >= attempt

    await trunk.until(has_build)
    return (await trunk.store.builds(trunk.queue, number))[attempt - 1].id


async def kinds(trunk: Trunk, count: int) -> list[EventType]:
    async def heard() -> bool:
        return len(trunk.events()) >= count

    await trunk.until(heard)
    return [kind for kind, _ in trunk.events()]


async def failed_closed(trunk: Trunk, uri: str, cause: Cause) -> Request:
    """Cause, slot, event, dead letter, no fact: what failing closed always means."""
    request = await trunk.is_in(uri, State.FAILED)
    assert request.cause is cause
    assert (await trunk.state()).in_flight == ()
    assert await trunk.is_green(uri) is Exit.UNKNOWN
    letters = [d for d in await trunk.store.dead_letters(trunk.queue) if d.kind == "request"]
    assert [(d.subject, d.cause) for d in letters] == [(str(request.number), str(cause))]
    assert await kinds(trunk, 2) == [EventType.STARTED, EventType.ABANDONED]
    return request


@pytest.mark.spec("V94")
async def test_no_such_runner_fails_the_request_closed(trunk: Trunk) -> None:
    trunk.runner.fail("find", Misconfigured("no build runner is called 'fake'"))
    await trunk.report("A")
    await failed_closed(trunk, "A", Cause.TRIGGER_FAILED)
    assert trunk.runner.triggers == []


@pytest.mark.spec("V95")
@pytest.mark.parametrize(
    "error", [RunnerOut("502"), RefusedForNow("429"), TimeoutError(), ConnectionResetError()]
)
async def test_a_trigger_that_fails_for_a_while_is_tried_again(
    trunk: Trunk, error: Exception
) -> None:
    trunk.runner.fail("trigger", error, 3)
    await trunk.report("A")
    a = await trunk.succeeds("A")
    assert a.cause is Cause.BUILD_SUCCEEDED
    assert len(trunk.runner.builds) == 1


async def test_a_refusal_for_good_is_not_tried_again(trunk: Trunk) -> None:
    """V96 but for the automatic retry."""
    trunk.runner.fail("trigger", Refused("422: no pipeline of that name"))
    await trunk.report("A")
    await failed_closed(trunk, "A", Cause.TRIGGER_FAILED)
    assert len(trunk.runner.triggers) == 1
    (letter,) = await trunk.store.dead_letters(trunk.queue)
    assert "422: no pipeline of that name" in letter.detail


async def test_a_refusal_that_may_pass_is_given_up_after_its_budget(
    trunk: Trunk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """V97, its last part; the budget of ten minutes is one second here."""
    monkeypatch.setitem(BUDGETS, "trigger", (RefusedForNow, 1.0))
    trunk.runner.fail("trigger", RefusedForNow("429: slow down"), 100)
    await trunk.report("A")
    await failed_closed(trunk, "A", Cause.TRIGGER_FAILED)


@pytest.mark.spec("V97")
async def test_a_runner_that_is_out_until_the_deadline_is_a_validation_timeout(
    client: Client, tmp_path: Path
) -> None:
    """Waiting an outage out and the refusal's budget are told by the tests above."""
    async with running_trunk(client, tmp_path, validation_timeout=4) as trunk:
        trunk.runner.fail("trigger", RunnerOut("502"), 1000)
        await trunk.report("A")
        await failed_closed(trunk, "A", Cause.VALIDATION_TIMEOUT)


@pytest.mark.spec("V98")
async def test_a_trigger_whose_answer_was_lost_made_one_build(trunk: Trunk) -> None:
    trunk.runner.lose_answer("trigger")
    await trunk.report("A")
    await triggered(trunk)
    assert len(trunk.runner.builds) == 1
    assert len(await trunk.store.builds(trunk.queue, 1)) == 1
    assert "build_found" in await trunk.history(1)
    await trunk.succeeds("A")


@pytest.mark.spec("V102", "V369")
async def test_a_build_that_never_starts_is_triggered_once_more_then_given_up(
    hasty: Trunk,
) -> None:
    hasty.runner.first_status = "accepted"
    await hasty.report("A")
    a = await hasty.is_in("A", State.FAILED)
    assert a.cause is Cause.NEVER_STARTED
    history = await hasty.history(1)
    wanted = ["cancel_requested", "retriggered", "cancel_requested", "never_started"]
    assert [kind for kind in history if kind in wanted] == wanted
    assert [order.attempt for order in hasty.runner.triggers] == [1, 2]
    assert hasty.runner.cancelled == list(hasty.runner.builds)
    assert hasty.runner.asked.count("fake/1") >= 2
    await failed_closed(hasty, "A", Cause.NEVER_STARTED)


@pytest.mark.spec("V103")
async def test_a_given_up_attempt_never_settles(hasty: Trunk) -> None:
    hasty.runner.first_status = "accepted"
    hasty.runner.is_deaf = True
    await hasty.report("A")
    await triggered(hasty, 1, 2)
    hasty.runner.builds["fake/1"].status = "succeeded"
    await hasty.client.get_workflow_handle(ids.build(hasty.queue, 1)).describe()
    hasty.runner.builds["fake/2"].status = "running"
    await asyncio.sleep(1.5)
    assert (await hasty.request("A")).state is State.PROCESSING
    hasty.runner.builds["fake/2"].status = "failed"
    a = await hasty.recorded("A")
    assert (a.cause, a.terminal_build_id) == (Cause.BUILD_FAILED, "fake/2")


@pytest.mark.spec("V105")
async def test_a_build_is_asked_at_the_runner_that_its_row_names(trunk: Trunk) -> None:
    await trunk.report("A")
    await triggered(trunk)
    trunk.set(runner="another")
    await trunk.succeeds("A")
    (build,) = await trunk.store.builds(trunk.queue, 1)
    assert (build.runner, build.status) == ("fake", Status.SUCCEEDED)
    assert set(trunk.named) == {"fake"}


@pytest.mark.spec("V107", "V108")
async def test_an_unchanged_status_writes_nothing_and_a_change_is_said_once(hasty: Trunk) -> None:
    await hasty.report("A")
    build = await triggered(hasty)

    async def asked(times: int) -> bool:
        return hasty.runner.asked.count(build) >= times

    await hasty.until(lambda: asked(2))
    before = await hasty.history(1)
    await hasty.until(lambda: asked(4))
    assert await hasty.history(1) == before
    assert before.count("build_running") == 1
    (row,) = await hasty.store.builds(hasty.queue, 1)
    assert row.status is Status.RUNNING


@pytest.mark.spec("V109")
def test_the_waits_of_a_poll() -> None:
    def waits(policy: dict[str, object]) -> list[float]:
        retry = policy["retry_policy"]
        first = retry.initial_interval.total_seconds()  # type: ignore[attr-defined] # a RetryPolicy
        most = (retry.maximum_interval or 100 * retry.initial_interval).total_seconds()  # type: ignore[attr-defined] # as above
        return [min(first * retry.backoff_coefficient**n, most) for n in range(6)]  # type: ignore[attr-defined] # as above

    assert waits(policies.POLL) == [2, 4, 8, 16, 30, 30]
    assert waits(policies.POLL_PUSHED) == [60] * 6


@pytest.mark.spec("V110")
async def test_a_wake_carries_no_truth(trunk: Trunk) -> None:
    await trunk.report("A")
    build = await triggered(trunk)
    signal = trunk.client.get_workflow_handle(ids.buildsignal(trunk.queue, 1, 1))
    await asyncio.sleep(0.3)
    asked = trunk.runner.asked.count(build)
    await signal.signal("news")

    async def looked() -> bool:
        return trunk.runner.asked.count(build) > asked

    await trunk.until(looked)
    assert (await trunk.request("A")).state is State.PROCESSING
    await trunk.succeeds("A")


@pytest.mark.spec("V111")
async def test_an_unknown_or_older_answer_is_ignored_and_told_once(hasty: Trunk) -> None:
    await hasty.report("A")
    build = await triggered(hasty)

    async def running() -> bool:
        return (await hasty.store.builds(hasty.queue, 1))[0].status is Status.RUNNING

    await hasty.until(running)
    hasty.runner.answer(build, "purple", "accepted", "purple")

    async def told() -> bool:
        return (await hasty.history(1)).count("answer_ignored") == 2

    await hasty.until(told)
    await asyncio.sleep(2.5)
    assert (await hasty.history(1)).count("answer_ignored") == 2
    (row,) = await hasty.store.builds(hasty.queue, 1)
    assert row.status is Status.RUNNING
    await hasty.succeeds("A")


@pytest.mark.spec("V112")
async def test_a_success_settles_the_request_in_one_transaction(trunk: Trunk) -> None:
    await trunk.report("A")
    build = await triggered(trunk)
    await trunk.build_ends("A", "succeeded")
    a = await trunk.is_in("A", State.SUCCEEDED)
    (row,) = await trunk.store.builds(trunk.queue, 1)
    assert (a.cause, a.terminal_build_id) == (Cause.BUILD_SUCCEEDED, build)
    assert row.status is Status.SUCCEEDED
    assert await trunk.last_green() == (1, "A")
    assert (await trunk.state()).in_flight == ()
    (settled,) = [r for r in await trunk.store.history(trunk.queue, 1) if r.kind == a.cause]
    (finished,) = [
        r for r in await trunk.store.history(trunk.queue, 1) if r.kind == "build_finished"
    ]
    assert settled.at == finished.at == a.ended_at


@pytest.mark.spec("V113")
async def test_a_failure_without_confirmation_is_red(trunk: Trunk) -> None:
    await trunk.report("A")
    await trunk.succeeds("A")
    await trunk.report("B")
    b = await trunk.fails("B")
    assert (b.state, b.cause) == (State.FAILED, Cause.BUILD_FAILED)
    assert await trunk.last_green() == (1, "A")
    assert (await trunk.state()).in_flight == ()


@pytest.mark.spec("V114")
async def test_what_the_runner_cancelled_is_cancelled(trunk: Trunk) -> None:
    await trunk.report("A")
    await trunk.build_ends("A", "cancelled")
    a = await trunk.is_in("A", State.CANCELLED)
    assert a.cause is Cause.BUILD_CANCELLED
    assert await kinds(trunk, 2) == [EventType.STARTED, EventType.CANCELLED]
    assert await trunk.last_green() is None
    assert await trunk.store.fact(trunk.queue, "A") is None
    assert trunk.runner.cancelled == []


@pytest.mark.spec("V115")
async def test_a_verdict_that_is_delivered_twice_settles_once(trunk: Trunk) -> None:
    await trunk.report("A", "B")
    await triggered(trunk)
    for _ in range(3):
        await trunk.runner.finish("A", "succeeded")
    await trunk.recorded("A")
    history = await trunk.history(1)
    assert [history.count(kind) for kind in ("build_succeeded", "fact_recorded", "recorded")] == [
        1,
        1,
        1,
    ]
    await trunk.is_in("B", State.PROCESSING)


@pytest.mark.spec("V116")
async def test_a_terminal_build_is_never_asked_again(trunk: Trunk) -> None:
    trunk.source.before_push = _out
    await trunk.report("A")
    build = await triggered(trunk)
    await trunk.build_ends("A", "succeeded")
    await trunk.is_in("A", State.SUCCEEDED)
    await trunk.terminate(ids.build(trunk.queue, 1))
    trunk.runner.builds[build].status = "failed"
    trunk.runner.hang("status")  # who asks now waits for good
    trunk.source.before_push = lambda: None
    await trunk.drive(1)
    a = await trunk.recorded("A")
    assert a.cause is Cause.BUILD_SUCCEEDED
    trunk.runner.released.set()


def _out() -> None:
    raise ConnectionError("no answer")


@pytest.mark.spec("V120")
@pytest.mark.parametrize("error", [RunnerOut("502"), RefusedForNow("429"), ValueError("?")])
async def test_status_reads_that_fail_for_a_while_lose_nothing(
    hasty: Trunk, error: Exception
) -> None:
    hasty.runner.fail("status", error, 2)
    hasty.runner.verdicts["A"] = "succeeded"
    await hasty.report("A")
    a = await hasty.recorded("A")
    assert a.cause is Cause.BUILD_SUCCEEDED


async def test_a_build_that_the_runner_never_heard_of_is_given_up_after_the_budget(
    trunk: Trunk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """V121 but for the automatic retry; the budget of ten minutes is one second here."""
    trunk.runner.pushes = False
    monkeypatch.setitem(BUDGETS, "watch_build", (NoSuchBuild, 1.0))
    trunk.runner.fail("status", NoSuchBuild("fake/1"), 1000)
    await trunk.report("A")
    await failed_closed(trunk, "A", Cause.POLLING_EXHAUSTED)
    assert trunk.runner.cancelled == ["fake/1"]


@pytest.mark.spec("V68", "V123")
async def test_a_build_that_hangs_is_asked_cancelled_and_timed_out(
    client: Client, tmp_path: Path
) -> None:
    settings = {"validation_timeout": 2, "cancel_grace": 1}
    async with running_trunk(client, tmp_path, **settings) as trunk:
        await trunk.report("A", "B")
        build = await triggered(trunk)
        asked = trunk.runner.asked.count(build)
        a = await trunk.is_in("A", State.FAILED)
        assert a.cause is Cause.VALIDATION_TIMEOUT
        assert trunk.runner.asked.count(build) > asked
        assert trunk.runner.cancelled == [build]
        history = await trunk.history(1)
        assert history.index("cancel_requested") < history.index("validation_timeout")
        await trunk.is_in("B", State.PROCESSING)
        assert a.deadline_at == (a.admitted_at or 0) + 2000


async def test_a_verdict_that_comes_before_the_timeout_acts_stands(
    client: Client, tmp_path: Path
) -> None:
    """V371: the runner had an answer all along, and was not heard."""
    async with running_trunk(client, tmp_path, validation_timeout=2) as trunk:
        await trunk.report("A")
        build = await triggered(trunk)
        await asyncio.sleep(0.3)
        trunk.runner.builds[build].status = "succeeded"
        a = await trunk.recorded("A")
        assert a.cause is Cause.BUILD_SUCCEEDED
        assert trunk.runner.cancelled == []


@pytest.mark.spec("V124")
async def test_a_verdict_after_failing_closed_is_only_told(client: Client, tmp_path: Path) -> None:
    settings = {"validation_timeout": 2, "cancel_grace": 1}
    async with running_trunk(client, tmp_path, **settings) as trunk:
        trunk.runner.is_deaf = True
        await trunk.report("A")
        build = await triggered(trunk)
        before = await trunk.is_in("A", State.FAILED)
        assert "cancel_unconfirmed" in await trunk.history(1)
        trunk.runner.builds[build].status = "succeeded"
        await trunk.observe_late(1, build)
        assert await trunk.request("A") == before
        assert "late_verdict" in await trunk.history(1)
        assert await trunk.store.fact(trunk.queue, "A") is None
        await trunk.drive(1)
        assert await trunk.store.fact(trunk.queue, "A") is None


@pytest.mark.spec("V221")
async def test_without_confirmation_one_build_decides(trunk: Trunk) -> None:
    await trunk.report("A")
    await trunk.fails("A")
    assert len(trunk.runner.builds) == 1


@pytest.mark.spec("V222", "V224", "V225")
async def test_a_confirmation_that_succeeds_is_green_and_counts_a_flake(
    client: Client, tmp_path: Path
) -> None:
    async with running_trunk(client, tmp_path, confirm_failures=3) as trunk:
        await trunk.report("A", "B")
        await trunk.build_ends("A", "failed")
        await triggered(trunk, 1, 2)
        assert await trunk.states() == "A pro, B acc"
        assert await trunk.store.fact(trunk.queue, "A") is None
        a = await trunk.succeeds("A")
        assert (a.cause, a.terminal_build_id) == (Cause.BUILD_SUCCEEDED, "fake/2")
        history = await trunk.history(1)
        assert [history.count(kind) for kind in ("unconfirmed", "flake")] == [1, 1]
        first, second = trunk.runner.triggers[:2]
        assert (first.head_uri, first.base_uri) == (second.head_uri, second.base_uri)
        assert second.key == f"{first.key}#2"
        await kinds(trunk, 3)
        started = [n for kind, n in trunk.events() if kind is EventType.STARTED]
        assert started.count(1) == 1


@pytest.mark.spec("V223")
async def test_a_red_build_that_stays_red_is_one_broken_fact(
    client: Client, tmp_path: Path
) -> None:
    async with running_trunk(client, tmp_path, confirm_failures=2) as trunk:
        trunk.runner.verdicts["A"] = "failed"
        await trunk.report("A")
        a = await trunk.recorded("A")
        assert (a.cause, a.terminal_build_id) == (Cause.BUILD_FAILED, "fake/3")
        assert len(await trunk.store.builds(trunk.queue, 1)) == 3
        fact = await trunk.store.fact(trunk.queue, "A")
        assert fact and fact.degree == 1


@pytest.mark.spec("V363")
async def test_a_build_workflow_that_is_lost_takes_its_children_with_it(trunk: Trunk) -> None:
    await trunk.report("A")
    await triggered(trunk)
    signal = trunk.client.get_workflow_handle(ids.buildsignal(trunk.queue, 1, 1))

    async def asked() -> bool:
        return bool(trunk.runner.asked)

    await trunk.until(asked)
    first = (await signal.describe()).run_id
    await trunk.terminate(ids.build(trunk.queue, 1))
    again = asyncio.create_task(trunk.drive(1))

    async def anew() -> bool:
        return (await signal.describe()).run_id != first

    await trunk.until(anew)
    await trunk.succeeds("A")
    await again


@pytest.mark.spec("V364")
async def test_a_request_that_ends_between_find_and_trigger_is_not_built(
    trunk: Trunk, monkeypatch: pytest.MonkeyPatch
) -> None:
    find = trunk.runner.find

    async def and_then_it_ends(key: str, head_uri: str) -> object:
        found = await find(key, head_uri)
        await trunk.fail_closed(1)
        return found

    monkeypatch.setattr(trunk.runner, "find", and_then_it_ends)
    await trunk.report("A")
    await trunk.is_in("A", State.FAILED)
    await asyncio.sleep(0.5)
    assert trunk.runner.triggers == []


@pytest.mark.spec("V366")
async def test_a_build_that_died_with_its_runner_is_made_again_under_the_same_key(
    trunk: Trunk,
) -> None:
    await trunk.report("A")
    build = await triggered(trunk)
    deadline = (await trunk.request("A")).deadline_at
    trunk.runner.lose(build)
    await trunk.runner.finish("A", "running")

    async def again() -> bool:
        return len(trunk.runner.triggers) == 2

    await trunk.until(again)
    first, second = trunk.runner.triggers
    assert (first.key, first.attempt) == (second.key, second.attempt)
    a = await trunk.succeeds("A")
    history = await trunk.history(1)
    assert "build_lost" in history
    assert "unconfirmed" not in history
    assert a.deadline_at == deadline
    assert history.count("build_succeeded") == 1


@pytest.mark.spec("V367")
async def test_a_new_store_does_not_adopt_an_old_stores_build(
    client: Client, tmp_path: Path
) -> None:
    async with running_trunk(client, tmp_path / "old") as old:
        await old.report("A")
        await triggered(old)
        async with running_trunk(client, tmp_path / "new") as new:
            new.runner.builds = old.runner.builds
            await new.report("A")
            await triggered(new)
            one, other = old.runner.triggers[0].key, new.runner.triggers[0].key
            assert one.partition("/")[0] != other.partition("/")[0]
            assert len(old.runner.builds) == 2


@pytest.mark.spec("V429")
async def test_a_poll_adds_no_history(hasty: Trunk) -> None:
    await hasty.report("A")
    build = await triggered(hasty)
    signal = hasty.client.get_workflow_handle(ids.buildsignal(hasty.queue, 1, 1))

    async def asked(times: int) -> bool:
        return hasty.runner.asked.count(build) >= times

    await hasty.until(lambda: asked(3))
    before = (await signal.describe()).history_length
    await hasty.until(lambda: asked(5))
    assert (await signal.describe()).history_length == before
    await hasty.succeeds("A")
