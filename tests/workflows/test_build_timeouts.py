"""A timeout is judged on an answer: whatever the runner says, says late, or does not say."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from temporalio.client import Client
from temporalio.common import RetryPolicy

from domain.build import Status
from domain.errors import RunnerOut, StoreOut
from domain.request import Cause, State, Why
from stores import tables as t
from tests.trunk import Trunk, make_trunk, running_trunk, trunk_worker
from workflows import ids, policies

HASTY: dict[str, Any] = {"start_timeout": 1, "validation_timeout": 60, "cancel_grace": 1}
"""A build must start within a second; a cancel is waited for one second."""


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    often = RetryPolicy(
        initial_interval=0.1 * policies.SECOND, maximum_interval=0.2 * policies.SECOND
    )
    for policy in (policies.RUNNER, policies.POLL, policies.POLL_PUSHED):
        monkeypatch.setitem(policy, "retry_policy", often)
    for policy in (policies.AT_HAND, policies.ONCE):
        monkeypatch.setitem(policy, "start_to_close_timeout", policies.SECOND)


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


@pytest.mark.spec("V103")
@pytest.mark.parametrize("verdict", ["succeeded", "failed"])
async def test_a_verdict_of_an_attempt_that_was_given_up_is_ignored_and_counted(
    client: Client, tmp_path: Path, verdict: str
) -> None:
    """Before attempt 2 is triggered; attempt 2 then never starts either."""
    async with running_trunk(client, tmp_path, **HASTY | {"cancel_grace": 2}) as trunk:
        trunk.runner.pushes = False
        trunk.runner.first_status = "accepted"
        trunk.runner.is_deaf = True
        await trunk.report("A")
        await trunk.tells(1, "cancel_requested")
        assert (await trunk.request("A")).ending is Why.START_TIMEOUT
        trunk.runner.builds["fake/1"].status = verdict
        await trunk.triggered(1, 2)
        assert await trunk.states() == "A pro"
        ignored = [h for h in await trunk.store.history(trunk.queue, 1) if h.kind[:6] == "answer"]
        assert [(h.kind, h.detail) for h in ignored] == [("answer_ignored", f"fake/1:{verdict}")]
        a = await trunk.is_in("A", State.FAILED)
        assert (a.cause, a.terminal_build_id) == (Cause.NEVER_STARTED, None)
        assert await trunk.store.fact(trunk.queue, "A") is None


@pytest.mark.spec("V103")
async def test_a_verdict_of_an_old_attempt_is_ignored_while_the_next_one_runs(
    client: Client, tmp_path: Path
) -> None:
    async with running_trunk(client, tmp_path, **HASTY) as trunk:
        trunk.runner.first_status = "accepted"
        trunk.runner.is_deaf = True
        await trunk.report("A")
        await trunk.triggered(1, 2)
        assert "cancel_unconfirmed" in await trunk.history(1)
        await trunk.runner.finish("A", "running")
        trunk.runner.builds["fake/1"].status = "succeeded"
        await trunk.observe_late(1, "fake/1")
        assert "answer_ignored" in await trunk.history(1)
        await trunk.stays("A pro", 0.5)
        trunk.runner.builds["fake/2"].status = "failed"
        a = await trunk.recorded("A")
        assert (a.cause, a.terminal_build_id) == (Cause.BUILD_FAILED, "fake/2")


@pytest.mark.spec("V372")
async def test_the_intent_for_another_attempt_is_none_for_this_one(
    client: Client, tmp_path: Path
) -> None:
    async with running_trunk(client, tmp_path, **HASTY) as trunk:
        trunk.runner.first_status = "accepted"
        await trunk.report("A")
        await trunk.tells(1, "retriggered")
        trunk.runner.first_status = "running"
        await trunk.triggered(1, 2)
        trunk.runner.builds["fake/2"].status = "running"
        await trunk.tells(1, "build_running")
        await trunk.runner.finish("A", "cancelled")
        a = await trunk.is_in("A", State.CANCELLED)
        assert a.cause is Cause.BUILD_CANCELLED
        assert (a.ending, a.ending_attempt) == (Why.START_TIMEOUT, 1)


@pytest.mark.spec("V123", "V372")
@pytest.mark.parametrize(
    ("verdict", "cause"),
    [("succeeded", Cause.BUILD_SUCCEEDED), ("failed", Cause.BUILD_FAILED)],
)
async def test_a_verdict_after_the_intent_stands(
    client: Client, tmp_path: Path, verdict: str, cause: Cause
) -> None:
    settings = {"validation_timeout": 1, "cancel_grace": 5}
    async with running_trunk(client, tmp_path, **settings) as trunk:
        trunk.runner.is_deaf = True
        await trunk.report("A")
        build = await trunk.triggered()
        await trunk.tells(1, "cancel_requested")
        assert await trunk.states() == "A pro"
        await trunk.runner.finish("A", verdict)
        a = await trunk.recorded("A")
        assert (a.cause, a.ending, a.terminal_build_id) == (cause, Why.VALIDATION_TIMEOUT, build)
        assert (await trunk.history(1)).count("cancel_unconfirmed") == 0


@pytest.mark.spec("V123")
async def test_a_request_that_is_driven_again_gets_no_more_time(
    client: Client, tmp_path: Path
) -> None:
    async with running_trunk(client, tmp_path, validation_timeout=3, cancel_grace=1) as trunk:
        await trunk.report("A")
        await trunk.triggered()
        await asyncio.sleep(1.5)
        await trunk.terminate(ids.build(trunk.queue, 1))
        await trunk.drive(1)
        a = await trunk.is_in("A", State.FAILED)
        assert a.cause is Cause.VALIDATION_TIMEOUT
        assert a.deadline_at == (a.admitted_at or 0) + 3000
        assert 3000 <= (a.ended_at or 0) - (a.admitted_at or 0) < 5000


@pytest.mark.spec("V371")
async def test_a_build_that_ended_while_it_could_have_been_given_up_is_heard(
    client: Client, tmp_path: Path
) -> None:
    """``start_timeout`` and no worker; then also past ``slot_grace``, with a build row or none."""
    async with stopped(client, tmp_path, **HASTY) as trunk:
        trunk.runner.first_status = "accepted"
        async with trunk_worker(trunk):
            await trunk.report("A")
            await trunk.triggered()
        trunk.runner.builds["fake/1"].status = "succeeded"
        await asyncio.sleep(1.2)
        async with trunk_worker(trunk):
            a = await trunk.recorded("A")
            assert a.cause is Cause.BUILD_SUCCEEDED
            assert (len(trunk.runner.builds), trunk.runner.cancelled) == (1, [])


@pytest.mark.spec("V371")
@pytest.mark.parametrize("has_row", [True, False])
async def test_a_build_that_succeeded_is_heard_past_every_grace(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, has_row: bool
) -> None:
    settings = {"validation_timeout": 2, "cancel_grace": 1, "slot_grace": 1.2}
    async with stopped(client, tmp_path, **settings) as trunk:
        write = trunk.store.build_row

        async def never(*_: object, **__: object) -> None:
            raise StoreOut("the database is gone")

        if not has_row:
            monkeypatch.setattr(trunk.store, "build_row", never)
        async with trunk_worker(trunk):
            await trunk.report("A")
            await trunk.until(lambda: _made(trunk, 1))
            if has_row:
                await trunk.triggered()
        await trunk.runner.finish("A", "succeeded")
        await asyncio.sleep(3.5)
        monkeypatch.setattr(trunk.store, "build_row", write)
        assert bool(await trunk.store.builds(trunk.queue, 1)) is has_row
        async with trunk_worker(trunk):
            a = await trunk.recorded("A")
            assert a.cause is Cause.BUILD_SUCCEEDED
            assert await trunk.last_green() == (1, "A")
            assert trunk.source.promotion == "A"
            assert (len(trunk.runner.builds), trunk.runner.cancelled) == (1, [])


async def _made(trunk: Trunk, builds: int) -> bool:
    return len(trunk.runner.builds) == builds


@pytest.mark.spec("V371")
@pytest.mark.parametrize("method", ["find", "status"])
async def test_where_the_runner_does_not_answer_the_timeout_acts(
    client: Client, tmp_path: Path, method: str
) -> None:
    """V121 but for the budget and the automatic retry."""
    async with running_trunk(client, tmp_path, validation_timeout=1, cancel_grace=1) as trunk:
        trunk.runner.pushes = False
        trunk.runner.fail(method, RunnerOut("502"), 1000)
        trunk.runner.fail("cancel", RunnerOut("502"), 1000)
        await trunk.report("A")
        a = await trunk.is_in("A", State.FAILED)
        assert a.cause is Cause.VALIDATION_TIMEOUT
        assert await trunk.store.fact(trunk.queue, "A") is None
        wanted = ["cancel_requested", "cancel_unconfirmed"] if method == "status" else []
        assert [kind for kind in await trunk.history(1) if kind in wanted] == wanted


async def test_the_confirmed_failure_is_the_one_that_decides(
    client: Client, tmp_path: Path
) -> None:
    """V227 with an attempt that was given up, and failed late: it decides nothing."""
    settings = HASTY | {"confirm_failures": 1, "cancel_grace": 2}
    async with running_trunk(client, tmp_path, **settings) as trunk:
        trunk.runner.pushes = False
        trunk.runner.is_deaf = True
        await trunk.report("A")
        await trunk.triggered()
        trunk.runner.first_status = "accepted"
        trunk.runner.builds["fake/1"].status = "failed"
        await trunk.triggered(1, 2)
        await trunk.tells(1, "cancel_requested")
        trunk.runner.builds["fake/2"].status = "failed"
        await trunk.triggered(1, 3)
        a = await trunk.recorded("A")
        assert (a.cause, a.terminal_build_id) == (Cause.BUILD_FAILED, "fake/1")


@pytest.mark.parametrize("missing", ["build", "request"])
async def test_a_row_that_is_gone_is_a_dead_letter(
    client: Client, tmp_path: Path, missing: str
) -> None:
    """V122, its rows; of a request that is processing the ending is section 4's."""
    async with running_trunk(client, tmp_path) as trunk:
        await trunk.report("A")
        await trunk.triggered()
        await trunk.tells(1, "build_running")
        await _delete(trunk, missing)
        await trunk.runner.finish("A", "succeeded")

        async def told() -> bool:
            return bool(await trunk.store.dead_letters(trunk.queue))

        await trunk.until(told)
        (letter,) = await trunk.store.dead_letters(trunk.queue)
        assert (letter.kind, letter.subject) == ("request", "1")
        assert letter.cause == Cause.PROCESSING_FAILED
        assert await trunk.states() == ("A fai" if missing == "build" else "")
        assert await trunk.store.fact(trunk.queue, "A") is None


async def _delete(trunk: Trunk, missing: str) -> None:
    """As a hand in the database would."""
    tables = [t.builds] if missing == "build" else [t.builds, t.hook_deliveries, t.requests]
    async with trunk.parts.engine.begin() as connection:
        for table in tables:
            await connection.execute(sa.delete(table))


async def test_a_build_that_is_running_is_not_judged_by_its_start(
    client: Client, tmp_path: Path
) -> None:
    async with running_trunk(client, tmp_path, **HASTY) as trunk:
        await trunk.report("A")
        await trunk.triggered()
        await trunk.tells(1, "build_running")
        await trunk.stays("A pro", 1.5)
        (row,) = await trunk.store.builds(trunk.queue, 1)
        assert (row.status, trunk.runner.cancelled) == (Status.RUNNING, [])
