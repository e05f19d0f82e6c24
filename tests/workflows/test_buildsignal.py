"""While a build is watched: polls, wakes, silence, and the verdict."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from temporalio.client import Client
from temporalio.common import RetryPolicy
from temporalio.service import RPCError

from activities import failures
from activities.failures import BUDGETS
from domain.build import Status
from domain.errors import NoSuchBuild, RefusedForNow, RunnerOut
from domain.request import Cause, State
from stores import tables as t
from tests.trunk import Trunk, make_trunk, trunk_worker
from workflows import ids, policies

SECOND = policies.SECOND


def every(monkeypatch: pytest.MonkeyPatch, first: float, most: float) -> None:
    """The real waits of 2 to 30 s, scaled; the limit of a call and of a back-off as well."""
    retry = RetryPolicy(initial_interval=first * SECOND, maximum_interval=most * SECOND)
    monkeypatch.setitem(policies.POLL, "retry_policy", retry)
    monkeypatch.setitem(policies.POLL, "start_to_close_timeout", SECOND)
    for policy in (policies.AT_HAND, policies.ONCE):
        monkeypatch.setitem(policy, "start_to_close_timeout", SECOND)


@asynccontextmanager
async def stopped(client: Client, folder: Path, **settings: Any) -> AsyncIterator[Trunk]:
    """Without a worker; whoever runs one ends what runs."""
    trunk = await make_trunk(client, folder, **settings)
    trunk.runner.pushes = False
    try:
        yield trunk
    finally:
        await trunk.end_all()
        await trunk.parts.engine.dispose()


async def asked(trunk: Trunk, times: int) -> None:
    """So many times more than by now."""
    target = len(trunk.runner.asked) + times

    async def reached() -> bool:
        return len(trunk.runner.asked) >= target

    await trunk.until(reached)


@pytest.mark.spec("V107", "V429")
async def test_a_poll_that_hears_nothing_new_writes_nothing_anywhere(
    trunk: Trunk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However often it is polled; and the build ends as any other."""
    every(monkeypatch, 0.01, 0.01)
    trunk.runner.pushes = False
    await trunk.report("A")
    await trunk.tells(1, "build_running")
    await asked(trunk, 3)
    signal = trunk.client.get_workflow_handle(ids.buildsignal(trunk.queue, 1, 1))
    row, history = await trunk.store.builds(trunk.queue, 1), await trunk.history(1)
    version = (await trunk.state()).version
    length = (await signal.describe()).history_length
    await asked(trunk, 12)
    assert (await signal.describe()).history_length == length
    assert (await trunk.store.builds(trunk.queue, 1), await trunk.history(1)) == (row, history)
    assert (await trunk.state()).version == version
    a = await trunk.succeeds("A")
    assert a.cause is Cause.BUILD_SUCCEEDED


@pytest.mark.spec("V109", "V108")
async def test_waits_grow_start_anew_with_a_change_and_end_with_a_wake(
    trunk: Trunk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scaled by ten: 0.2, 0.4, 0.8 s; the numbers of the policy are asserted beside it."""
    every(monkeypatch, 0.2, 30)
    trunk.runner.pushes = False
    trunk.runner.first_status = "accepted"
    at: list[tuple[float, str]] = []
    status = trunk.runner.status

    async def noted(build: str) -> str:
        said = await status(build)
        at.append((time.monotonic(), said))
        return said

    monkeypatch.setattr(trunk.runner, "status", noted)
    await trunk.report("A")
    build = await trunk.triggered()
    await asked(trunk, 4)
    trunk.runner.builds[build].status = "running"
    await trunk.tells(1, "build_running")
    await asked(trunk, 5)
    waits = [later - sooner for (sooner, _), (later, _) in itertools.pairwise(at)]
    first = [said for _, said in at].index("running")
    for wait, wanted in zip(waits, [0.2, 0.4, 0.8, 1.6], strict=False):
        assert wait >= wanted - 0.02
    assert waits[first + 1] < 3.2  # what would come next
    for wait, wanted in zip(waits[first + 1 :], [0.2, 0.4, 0.8], strict=False):
        assert wait >= wanted - 0.02
    woken = time.monotonic()
    await trunk.runner.finish("A", "succeeded")
    await trunk.recorded("A")
    assert time.monotonic() - woken < 3.2
    assert (await trunk.history(1)).count("build_running") == 1


@pytest.mark.spec("V110")
async def test_news_of_a_build_that_nobody_watches_yet_does_nothing(
    trunk: Trunk, monkeypatch: pytest.MonkeyPatch
) -> None:
    every(monkeypatch, 0.05, 0.2)
    trunk.runner.pushes = False
    trunk.runner.delay("trigger", 0.5)
    await trunk.report("A")
    handle = trunk.client.get_workflow_handle(ids.buildsignal(trunk.queue, 1, 1))
    with pytest.raises(RPCError, match="not found"):
        await handle.signal("news", "succeeded")
    assert await trunk.states() == "A pro"
    build = await trunk.triggered()
    await trunk.tells(1, "build_running")
    await handle.signal("news")
    await trunk.stays("A pro")
    trunk.runner.builds[build].status = "succeeded"
    assert (await trunk.recorded("A")).cause is Cause.BUILD_SUCCEEDED


@pytest.mark.spec("V114")
async def test_the_end_event_of_a_cancelled_build_is_of_its_transaction(
    trunk: Trunk, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def lost(*_: object) -> None:
        """Nobody delivers, so that the rows stay as they were written."""

    await trunk.report("A")
    await trunk.triggered()
    monkeypatch.setattr(trunk.parts.waker, "_hooks", lost)
    await trunk.build_ends("A", "cancelled")
    a = await trunk.is_in("A", State.CANCELLED)
    d = t.hook_deliveries.c
    async with trunk.parts.engine.connect() as connection:
        query = sa.select(d.created_at).where(d.type == "validation.repository.cancelled")
        assert [*(await connection.execute(query)).scalars()] == [a.ended_at]
    assert a.recorded_at is None
    assert await trunk.store.fact(trunk.queue, "A") is None
    assert await trunk.last_green() is None


@pytest.mark.spec("V115", "V116")
async def test_a_verdict_that_comes_again_or_changes_later_writes_nothing(trunk: Trunk) -> None:
    await trunk.report("A", "B")
    build = await trunk.triggered()
    await trunk.succeeds("A")
    await trunk.is_in("B", State.PROCESSING)
    await trunk.tells(1, "recorded")
    before = await trunk.request("A"), await trunk.history(1), await trunk.states()
    await trunk.observe_late(1, build)
    trunk.runner.builds[build].status = "failed"
    await trunk.observe_late(1, build)
    assert (await trunk.request("A"), await trunk.history(1), await trunk.states()) == before
    (row,) = await trunk.store.builds(trunk.queue, 1)
    assert row.status is Status.SUCCEEDED
    assert trunk.source.pushes == ["A"]


@pytest.mark.spec("V120")
async def test_outages_far_longer_than_the_budget_lose_nothing(
    trunk: Trunk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A budget of 0.8 s stands for ten minutes: four kinds of no answer for two seconds, and
    twice *no such build* for most of the budget with a good answer in between.
    """
    every(monkeypatch, 0.02, 0.05)
    monkeypatch.setitem(BUDGETS, "watch_build", (NoSuchBuild, 0.8))
    trunk.runner.pushes = False
    await trunk.report("A")
    await trunk.tells(1, "build_running")
    for error in (RunnerOut("502"), RefusedForNow("429"), PermissionError("401"), KeyError("?")):
        trunk.runner.fail("status", error, 1000)
        await asyncio.sleep(0.5)
        trunk.runner._errors.clear()
    for _ in range(2):
        await _no_such_build(trunk, 0.6)
        await asked(trunk, 3)
    await trunk.stays("A pro", 0.1)
    a = await trunk.succeeds("A")
    assert a.cause is Cause.BUILD_SUCCEEDED
    assert await trunk.store.dead_letters(trunk.queue) == []


async def _no_such_build(trunk: Trunk, seconds: float) -> None:
    trunk.runner.fail("status", NoSuchBuild("fake/1"), 1000)
    await asyncio.sleep(seconds)
    trunk.runner._errors.clear()


@pytest.mark.spec("V370")
async def test_hours_without_a_worker_are_no_failed_answers(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scaled: of a budget of 2 s a little is spent, nobody tries for 3 s, and more is spent."""
    every(monkeypatch, 0.02, 0.05)
    monkeypatch.setitem(policies.POLL, "start_to_close_timeout", 0.2 * SECOND)
    monkeypatch.setattr(failures, "MAX_BACK_OFF", 0.05)
    monkeypatch.setitem(BUDGETS, "watch_build", (NoSuchBuild, 2.0))
    async with stopped(client, tmp_path) as trunk:
        async with trunk_worker(trunk):
            await trunk.report("A")
            await trunk.tells(1, "build_running")
            trunk.runner.fail("status", NoSuchBuild("fake/1"), 1000)
            await asked(trunk, 3)
        await asyncio.sleep(3)
        async with trunk_worker(trunk):
            await asked(trunk, 4)
            await trunk.stays("A pro", 0.1)
            trunk.runner._errors.clear()
            await asked(trunk, 2)
            trunk.runner.fail("status", NoSuchBuild("fake/1"), 1000)
            a = await trunk.is_in("A", State.FAILED)
            assert a.cause is Cause.POLLING_EXHAUSTED
            await trunk.until(lambda: _cancelled(trunk, ["fake/1"]))


async def _cancelled(trunk: Trunk, builds: list[str]) -> bool:
    return trunk.runner.cancelled == builds


@pytest.mark.spec("V126")
async def test_after_restarts_exactly_one_activity_polls(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    every(monkeypatch, 0.2, 0.2)
    async with stopped(client, tmp_path) as trunk:
        async with trunk_worker(trunk):
            await trunk.report("A")
            await trunk.tells(1, "build_running")
        await asyncio.sleep(0.5)
        async with trunk_worker(trunk):
            await asked(trunk, 1)
            before = len(trunk.runner.asked)
            await asyncio.sleep(1.1)
            assert len(trunk.runner.asked) - before <= 6
            handle = client.get_workflow_handle(ids.buildsignal(trunk.queue, 1, 1))
            pending = (await handle.describe()).raw_description.pending_activities
            assert [activity.activity_type.name for activity in pending] == ["watch_build"]
            trunk.runner.builds["fake/1"].status = "succeeded"
            await trunk.recorded("A")
            assert (await trunk.history(1)).count("build_succeeded") == 1
