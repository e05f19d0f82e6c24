"""A red build that is to be confirmed: whatever happens between its attempts."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from temporalio.client import Client
from temporalio.common import RetryPolicy
from temporalio.service import RPCError

from activities import failures
from domain.act import Verb
from domain.errors import Misconfigured, NoSuchBuild, Refused
from domain.fact import Exit
from domain.request import Cause, State
from tests.trunk import Trunk, running_trunk
from workflows import policies


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    often = RetryPolicy(
        initial_interval=0.05 * policies.SECOND, maximum_interval=0.1 * policies.SECOND
    )
    for policy in (policies.RUNNER, policies.POLL, policies.POLL_PUSHED):
        monkeypatch.setitem(policy, "retry_policy", often)


@pytest_asyncio.fixture
async def trunk(client: Client, tmp_path: Path) -> AsyncIterator[Trunk]:
    settings: dict[str, Any] = {"confirm_failures": 2, "cancel_grace": 1, "slot_grace": 2}
    async with running_trunk(client, tmp_path, **settings) as trunk:
        yield trunk


async def failed_once(trunk: Trunk) -> str:
    """The build that failed; its confirmation is under way."""
    await trunk.report("A")
    first = await trunk.triggered()
    await trunk.build_ends("A", "failed")
    await trunk.triggered(1, 2)
    return first


@pytest.mark.spec("V226")
async def test_a_first_attempt_that_the_runner_cancels_is_not_confirmed(trunk: Trunk) -> None:
    await trunk.report("A")
    await trunk.build_ends("A", "cancelled")
    a = await trunk.is_in("A", State.CANCELLED)
    assert (a.cause, len(trunk.runner.builds)) == (Cause.BUILD_CANCELLED, 1)


@pytest.mark.spec("V226")
async def test_a_confirmation_that_the_runner_cancels_is_one_spent_attempt(trunk: Trunk) -> None:
    first = await failed_once(trunk)
    await trunk.build_ends("A", "cancelled")
    a = await trunk.recorded("A")
    assert (a.cause, a.terminal_build_id) == (Cause.BUILD_FAILED, first)


async def _cannot_be_triggered(trunk: Trunk, _: pytest.MonkeyPatch) -> None:
    trunk.runner.fail("find", Refused("401"), 100)


async def _cannot_be_read(trunk: Trunk, _: pytest.MonkeyPatch) -> None:
    trunk.runner.fail("status", NoSuchBuild("gone"), 10_000)


async def _never_starts(trunk: Trunk, _: pytest.MonkeyPatch) -> None:
    trunk.runner.first_status = "accepted"
    trunk.set(start_timeout=1)


async def _never_ends(trunk: Trunk, _: pytest.MonkeyPatch) -> None:
    pass  # until the deadline


@pytest.mark.spec("V227")
@pytest.mark.parametrize(
    "happens", [_cannot_be_triggered, _cannot_be_read, _never_starts, _never_ends]
)
async def test_a_failure_that_nothing_contradicts_is_broken(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, happens: Any
) -> None:
    monkeypatch.setitem(failures.BUDGETS, "watch_build", (NoSuchBuild, 0.2))
    long = 3 if happens is _never_ends else 60
    settings: dict[str, Any] = {"confirm_failures": 1, "cancel_grace": 1, "slot_grace": 2}
    async with running_trunk(client, tmp_path, validation_timeout=long, **settings) as trunk:
        trunk.runner.pushes = False
        await trunk.report("A")
        first = await trunk.triggered()
        await happens(trunk, monkeypatch)
        trunk.runner.builds[first].status = "failed"
        if happens is _cannot_be_read:
            trunk.runner._errors.clear()
            await trunk.triggered(1, 2)
            await happens(trunk, monkeypatch)
        a = await trunk.recorded("A")
        assert (a.state, a.cause) == (State.FAILED, Cause.BUILD_FAILED)
        assert a.terminal_build_id == first
        assert await trunk.is_green("A") is Exit.BROKEN
        assert await trunk.store.dead_letters(trunk.queue) == []


@pytest.mark.spec("V228")
async def test_a_person_who_cancels_between_attempts_ends_it_without_a_fact(trunk: Trunk) -> None:
    await failed_once(trunk)
    await trunk.act(Verb.CANCEL, 1)
    a = await trunk.is_in("A", State.CANCELLED)
    assert a.cause is Cause.CANCELLED_BY_PERSON
    assert await trunk.store.fact(trunk.queue, "A") is None
    assert len(trunk.runner.builds) == 2


@pytest.mark.spec("V229")
async def test_what_the_setting_is_when_a_failure_is_judged_counts(trunk: Trunk) -> None:
    first = await failed_once(trunk)
    trunk.set(confirm_failures=0)
    assert trunk.runner.builds[first].status == "failed"
    await trunk.build_ends("A", "failed")
    a = await trunk.recorded("A")
    assert (a.cause, len(trunk.runner.builds)) == (Cause.BUILD_FAILED, 2)


async def test_a_build_that_can_never_end_is_a_failure_of_the_system_even_after_a_red_one(
    trunk: Trunk,
) -> None:
    await failed_once(trunk)
    trunk.runner.fail("status", Misconfigured("never"), 1)
    news = trunk.client.get_workflow_handle(trunk.runner.build_of("A").order.wake)

    async def is_told() -> bool:
        with suppress(RPCError):
            await news.signal("news")
            return True
        return False

    await trunk.until(is_told)
    a = await trunk.is_in("A", State.FAILED)
    assert a.cause is Cause.PROCESSING_FAILED
