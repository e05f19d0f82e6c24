"""What the queue tries again by itself: nobody has to be awake."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from temporalio.client import Client
from temporalio.common import RetryPolicy

from activities import failures
from domain import gate
from domain.act import ITSELF, Verb
from domain.errors import Misconfigured, NoSuchBuild, Refused, RefusedForNow, RunnerOut
from domain.event import EventType
from domain.request import Cause, Origin, State
from domain.settings import Route
from extensions.hooks.fake import FakeSink
from tests.trunk import Trunk, running_trunk
from workflows import policies

MINUTE = 20
"""Milliseconds, in these stories."""
LONG_ENOUGH_TO_ACT = 2_000


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate, "AGAIN_FIRST_MS", 10 * MINUTE)
    monkeypatch.setattr(gate, "AGAIN_MOST_MS", 60 * MINUTE)
    often = RetryPolicy(
        initial_interval=0.05 * policies.SECOND, maximum_interval=0.1 * policies.SECOND
    )
    for policy in (policies.RUNNER, policies.POLL, policies.POLL_PUSHED):
        monkeypatch.setitem(policy, "retry_policy", often)


@pytest_asyncio.fixture
async def trunk(client: Client, tmp_path: Path) -> AsyncIterator[Trunk]:
    async with running_trunk(client, tmp_path, cancel_grace=1) as trunk:
        yield trunk


def refuse(trunk: Trunk, times: int) -> None:
    trunk.runner.fail("find", Refused("401: no such token"), times)


async def test_what_is_abandoned_again_by_itself_is_no_news(client: Client, tmp_path: Path) -> None:
    async with running_trunk(client, tmp_path, hooks=(Route("one", edges=True),)) as trunk:
        one = trunk.sinks["one"] = FakeSink()
        refuse(trunk, 3)
        await trunk.report("A")
        await trunk.until(lambda: _attempts(trunk, 4))
        await trunk.build_ends("A", "failed")
        await trunk.recorded("A")

        async def both_heard() -> bool:
            heard = [(event.type, event.request) for event in one.heard]
            return heard == [(EventType.ABANDONED, 1), (EventType.RECORDED, 4)]

        await trunk.until(both_heard)


@pytest.mark.spec("V381", "V8")
async def test_the_latest_head_is_tried_again_after_10_20_40_60_60_minutes_until_a_verdict(
    trunk: Trunk,
) -> None:
    refuse(trunk, 5)
    await trunk.report("A")
    await trunk.until(lambda: _attempts(trunk, 6))
    await trunk.succeeds("A")
    attempts = list(reversed(await trunk.store.attempts(trunk.queue, "A")))
    assert [r.cause for r in attempts] == [Cause.TRIGGER_FAILED] * 5 + [Cause.BUILD_SUCCEEDED]
    waits = [after.accepted_at - (before.ended_at or 0) for before, after in pairwise(attempts)]
    least = [minutes * MINUTE for minutes in (10, 20, 40, 60, 60)]
    assert all(waited >= due for waited, due in zip(waits, least, strict=True)), waits
    await trunk.stays(await trunk.states())
    assert await trunk.last_green() == (6, "A")


async def _attempts(trunk: Trunk, count: int) -> bool:
    return len(await trunk.store.attempts(trunk.queue, trunk.source.tip or "")) >= count


@pytest.mark.spec("V382")
async def test_an_automatic_retry_is_a_new_request_signed_by_lastgreen(trunk: Trunk) -> None:
    refuse(trunk, 1)
    await trunk.report("A")
    await trunk.until(lambda: _attempts(trunk, 2))
    await trunk.triggered(2)
    old, new = await trunk.store.request(trunk.queue, 1), await trunk.store.request(trunk.queue, 2)
    assert (new.origin, new.retry_of, new.order) == (Origin.AUTO_RETRY, 1, old.order)
    latest = (await trunk.state()).latest
    assert latest is not None
    assert latest.number == 2
    (build,) = await trunk.store.builds(trunk.queue, 2)
    (order,) = trunk.runner.triggers
    assert order.key.endswith(f"request/{trunk.queue}/2")
    assert trunk.runner.builds[build.id].order == order
    (told,) = [r for r in await trunk.store.history(trunk.queue, 1) if r.kind == "retried"]
    assert (told.actor, told.detail) == (ITSELF, f"request/{trunk.queue}/2: trigger_failed")
    assert await trunk.store.dead_letters(trunk.queue) == []
    assert "dead_letter_resolved" in await trunk.history(1)


@pytest.mark.spec("V383")
async def test_a_newer_head_ends_the_automatic_retry_that_is_due(
    trunk: Trunk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gate, "AGAIN_FIRST_MS", 1_000)
    monkeypatch.setattr(gate, "AGAIN_MOST_MS", 1_000)
    refuse(trunk, 2)
    await trunk.report("A")
    await trunk.is_in("A", State.FAILED)
    await trunk.report("B")
    await trunk.is_in("B", State.FAILED)
    await trunk.until(lambda: _attempts(trunk, 2))
    assert len(await trunk.store.attempts(trunk.queue, "A")) == 1
    first, again = reversed(await trunk.store.attempts(trunk.queue, "B"))
    assert again.accepted_at - (first.ended_at or 0) >= 1_000


@pytest.mark.spec("V383")
async def test_an_automatic_retry_that_waits_is_superseded_by_a_newer_head_and_one_in_flight_is_not(
    trunk: Trunk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gate, "AGAIN_FIRST_MS", LONG_ENOUGH_TO_ACT)
    await trunk.report("A")
    await trunk.fails("A")
    refuse(trunk, 1)
    await trunk.report("B")
    await trunk.is_in("B", State.FAILED)
    await trunk.act(Verb.RETRY, 1)  # it has the only slot
    await trunk.until(lambda: _attempts(trunk, 2))
    await trunk.report("C")
    assert await trunk.states() == "A fai, B fai, A pro, B sup, C acc"
    refuse(trunk, 1)
    await trunk.fails("A")
    await trunk.is_in("C", State.FAILED)
    await trunk.until(lambda: _attempts(trunk, 2))
    await trunk.report("D")
    assert (await trunk.request("C")).state is State.PROCESSING


@pytest.mark.spec("V384")
async def test_a_paused_queue_makes_no_automatic_retry_until_it_is_resumed(
    trunk: Trunk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gate, "AGAIN_FIRST_MS", LONG_ENOUGH_TO_ACT)
    refuse(trunk, 1)
    await trunk.act(Verb.PAUSE)
    await trunk.report("A")
    await trunk.act(Verb.RESUME)
    await trunk.is_in("A", State.FAILED)
    await trunk.act(Verb.PAUSE)
    await trunk.stays("A fai", seconds=LONG_ENOUGH_TO_ACT / 1000 + 0.5)
    await trunk.act(Verb.RESUME)
    await trunk.until(lambda: _attempts(trunk, 2))


async def _hung(trunk: Trunk) -> None:
    trunk.runner.is_deaf = True
    trunk.set(validation_timeout=1)
    await trunk.report("A")


async def _broken(trunk: Trunk) -> None:
    trunk.runner.fail("status", Misconfigured("can never end"), 1)
    await trunk.report("A")


async def _red(trunk: Trunk) -> None:
    await trunk.report("A")
    await trunk.build_ends("A", "failed")


async def _cancelled_there(trunk: Trunk) -> None:
    await trunk.report("A")
    await trunk.build_ends("A", "cancelled")


async def _cancelled_here(trunk: Trunk) -> None:
    await trunk.report("A")
    await trunk.triggered()
    await trunk.act(Verb.CANCEL, 1)


@pytest.mark.spec("V385")
@pytest.mark.parametrize(
    ("ends", "cause"),
    [
        (_hung, Cause.VALIDATION_TIMEOUT),
        (_broken, Cause.PROCESSING_FAILED),
        (_red, Cause.BUILD_FAILED),
        (_cancelled_there, Cause.BUILD_CANCELLED),
        (_cancelled_here, Cause.CANCELLED_BY_PERSON),
    ],
)
async def test_no_other_ending_is_tried_again(trunk: Trunk, ends: Any, cause: Cause) -> None:
    await ends(trunk)
    await trunk.until(lambda: _ended(trunk))
    assert (await trunk.request("A")).cause is cause
    await asyncio.sleep(0.3)
    await trunk.poke()
    await trunk.stays(await trunk.states(), seconds=0.5)
    assert len(await trunk.store.attempts(trunk.queue, "A")) == 1


async def _ended(trunk: Trunk) -> bool:
    return (await trunk.request("A")).cause is not None


@pytest.mark.spec("V385")
async def test_none_is_made_of_a_request_that_is_not_the_latest(trunk: Trunk) -> None:
    refuse(trunk, 1)
    await trunk.act(Verb.PAUSE)
    await trunk.report("A")
    trunk.runner.hang("find")
    await trunk.act(Verb.RESUME)
    await trunk.report("B")
    trunk.runner.released.set()
    await trunk.is_in("A", State.FAILED)
    await trunk.succeeds("B")
    await trunk.stays("A fai, B suc", seconds=0.5)


@pytest.mark.spec("V386")
async def test_it_is_made_once_and_in_time_when_the_queue_continues_as_new_or_is_started_anew(
    trunk: Trunk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gate, "AGAIN_FIRST_MS", 1_500)
    monkeypatch.setattr(gate, "AGAIN_MOST_MS", 1_500)
    refuse(trunk, 1)
    await trunk.report("A")
    await trunk.is_in("A", State.FAILED)
    monkeypatch.setattr(policies, "LONG_HISTORY", 1)
    await trunk.poke()
    await asyncio.sleep(0.3)
    monkeypatch.setattr(policies, "LONG_HISTORY", 2_000)
    await trunk.handle.terminate("by a test")
    await trunk.start()
    await trunk.until(lambda: _attempts(trunk, 2))
    first, again = reversed(await trunk.store.attempts(trunk.queue, "A"))
    assert 1_500 <= again.accepted_at - (first.ended_at or 0) < 4_000
    await trunk.poke()
    await asyncio.sleep(0.2)
    assert len(await trunk.store.attempts(trunk.queue, "A")) == 2


@pytest.mark.spec("V354")
async def test_an_outage_of_the_runner_fails_nothing_and_a_refusal_for_too_long_is_mended_alone(
    trunk: Trunk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(failures.BUDGETS, "trigger", (RefusedForNow, 10 * MINUTE / 1000))
    trunk.runner.fail("find", RunnerOut("502"), 11)
    await trunk.report("A")
    a = await trunk.succeeds("A")
    assert (a.number, len(trunk.runner.builds)) == (1, 1)
    trunk.runner.fail("find", RefusedForNow("429"), 8)
    await trunk.report("B")
    b = await trunk.is_in("B", State.FAILED)
    assert (b.number, b.cause) == (2, Cause.TRIGGER_FAILED)
    assert await trunk.store.fact(trunk.queue, "B") is None
    assert (await trunk.state()).in_flight == ()
    await trunk.until(lambda: _attempts(trunk, 2))
    assert (EventType.ABANDONED, 2) in trunk.events()
    assert "dead_letter_opened" in await trunk.history(2)
    trunk.runner._errors["find"].clear()
    await trunk.until(lambda: _is_flying(trunk, "B"))
    again = await trunk.succeeds("B")
    assert (again.retry_of, again.origin) == (2, Origin.AUTO_RETRY)
    assert await trunk.last_green() == (again.number, "B")
    fact = await trunk.store.fact(trunk.queue, "B")
    assert fact is not None
    assert fact.request == again.number
    assert trunk.source.promotion == "B"
    assert await trunk.store.dead_letters(trunk.queue) == []


async def _is_flying(trunk: Trunk, uri: str) -> bool:
    return (await trunk.request(uri)).state is State.PROCESSING


@pytest.mark.spec("V381")
@pytest.mark.parametrize("error", [NoSuchBuild("gone"), None])
async def test_polling_in_vain_and_never_starting_are_tried_again_too(
    trunk: Trunk, monkeypatch: pytest.MonkeyPatch, error: Exception | None
) -> None:
    monkeypatch.setitem(failures.BUDGETS, "watch_build", (NoSuchBuild, 0.2))
    trunk.runner.pushes = False
    trunk.runner.first_status = "running" if error else "accepted"
    if error:
        trunk.runner.fail("status", error, 1_000)
    else:
        trunk.set(start_timeout=1)
    await trunk.report("A")
    await trunk.until(lambda: _attempts(trunk, 2))
    first = await trunk.store.request(trunk.queue, 1)
    assert first.cause is (Cause.POLLING_EXHAUSTED if error else Cause.NEVER_STARTED)
