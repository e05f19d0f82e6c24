"""Nobody was there: workers that were down, remotes that were out, answers that came meanwhile."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import Client

from activities.failures import BUDGETS
from domain.errors import SourceControlOut
from domain.event import EventType
from domain.request import Cause, State, Strategy
from tests.trunk import Trunk, make_trunk, trunk_worker


@pytest.mark.spec("V371")
async def test_a_build_that_succeeded_while_no_worker_ran_is_green_past_its_deadline(
    client: Client, tmp_path: Path
) -> None:
    trunk = await make_trunk(client, tmp_path, validation_timeout=3, slot_grace=121)
    trunk.runner.pushes = False
    async with trunk_worker(trunk):
        await trunk.report("A")

        async def has_build() -> bool:
            return bool(await trunk.store.builds(trunk.queue, 1))

        await trunk.until(has_build)
    await trunk.runner.finish("A", "succeeded")
    await asyncio.sleep(3.5)
    async with trunk_worker(trunk):
        a = await trunk.recorded("A")
        assert a.cause is Cause.BUILD_SUCCEEDED
        assert (a.ended_at or 0) > (a.deadline_at or 0)
        assert trunk.source.promotion == "A"
        assert await trunk.last_green() == (1, "A")
        assert trunk.runner.cancelled == []
        await trunk.end_all()
    await trunk.parts.engine.dispose()


async def test_a_build_whose_row_was_never_written_is_found_past_the_deadline(
    client: Client, tmp_path: Path
) -> None:
    """V371, where ``find`` is what is asked once more."""
    trunk = await make_trunk(client, tmp_path, validation_timeout=3, slot_grace=121)
    trunk.runner.lose_answer("trigger", 1)
    trunk.runner.fail("find", SourceControlOut("not yet"), 0)
    async with trunk_worker(trunk):
        trunk.runner.delay("find", 0)
        await trunk.report("A")

        async def is_there() -> bool:
            return bool(trunk.runner.builds)

        await trunk.until(is_there)
    await trunk.runner.finish("A", "succeeded")
    await asyncio.sleep(3.5)
    async with trunk_worker(trunk):
        a = await trunk.recorded("A")
        assert a.cause is Cause.BUILD_SUCCEEDED
        assert len(trunk.runner.builds) == 1
        await trunk.end_all()
    await trunk.parts.engine.dispose()


@pytest.mark.spec("V25")
async def test_a_look_that_source_control_never_answers_is_given_up_until_the_next_wake(
    trunk: Trunk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The budget of ten minutes is one second here; a shorter outage is told beside the looks."""
    monkeypatch.setitem(BUDGETS, "look", (Exception, 1.0))
    trunk.source.land("A")
    trunk.source.out = True
    report = await trunk.look()
    assert (report.request, report.kind) == (None, "BudgetSpent")
    assert "no answer" in report.error
    assert await trunk.states() == ""
    trunk.source.out = False
    await trunk.poke()
    await trunk.is_in("A", State.PROCESSING)


@pytest.mark.spec("V355")
async def test_a_build_that_hangs_ends_at_its_deadline_and_the_next_head_goes_on(
    client: Client, tmp_path: Path
) -> None:
    settings: dict[str, Any] = {"validation_timeout": 2, "cancel_grace": 1, "slot_grace": 30}
    trunk = await make_trunk(client, tmp_path, **settings)
    trunk.runner.pushes, trunk.runner.is_deaf = False, True
    async with trunk_worker(trunk):
        await trunk.report("A", "B")
        build = await trunk.triggered()
        asked = len(trunk.runner.asked)
        a = await trunk.is_in("A", State.FAILED)
        assert a.cause is Cause.VALIDATION_TIMEOUT
        assert len(trunk.runner.asked) > asked
        assert trunk.runner.cancelled == [build]
        trunk.set(validation_timeout=60)
        b = await trunk.succeeds("B")
        assert (b.strategy, await trunk.last_green()) == (Strategy.FULL, (2, "B"))
        trunk.runner.builds[build].status = "succeeded"
        await trunk.observe_late(1, build)
        told = await trunk.history(1)
        assert {"cancel_unconfirmed", "late_verdict"} <= set(told)
        assert (EventType.ABANDONED, 1) in trunk.events()
        assert (EventType.RECORDED, 1) not in trunk.events()
        await trunk.stays("A fai, B suc")
        assert await trunk.store.fact(trunk.queue, "A") is None
        assert await trunk.last_green() == (2, "B")
        await trunk.end_all()
    await trunk.parts.engine.dispose()


@pytest.mark.spec("V355")
async def test_a_build_that_succeeded_while_nobody_was_there_for_hours_is_green(
    client: Client, tmp_path: Path
) -> None:
    trunk = await make_trunk(client, tmp_path, validation_timeout=2, slot_grace=121)
    trunk.runner.pushes = False
    async with trunk_worker(trunk):
        await trunk.report("A")
        await trunk.triggered()
    await trunk.runner.finish("A", "succeeded")
    await asyncio.sleep(3)
    async with trunk_worker(trunk):
        a = await trunk.recorded("A")
        assert (a.state, await trunk.last_green()) == (State.SUCCEEDED, (1, "A"))
        assert trunk.runner.cancelled == []
        await trunk.end_all()
    await trunk.parts.engine.dispose()
