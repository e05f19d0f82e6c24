"""Pause, resume, retry and cancel, as a person asks for them at night."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from temporalio.client import Client
from temporalio.common import RetryPolicy

from domain.act import Act, Verb
from domain.errors import Malformed, NotFound, Refused, RunnerOut
from domain.event import EventType
from domain.fact import Exit
from domain.gate import clock
from domain.request import Cause, State, Why
from tests.trunk import Trunk, make_trunk, running_trunk, trunk_worker
from wiring.asking import Asking
from workflows import ids, policies


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    often = RetryPolicy(initial_interval=0.1 * policies.SECOND, maximum_interval=policies.SECOND)
    for policy in (policies.RUNNER, policies.POLL, policies.POLL_PUSHED):
        monkeypatch.setitem(policy, "retry_policy", often)


@pytest.mark.spec("V246")
async def test_a_paused_queue_ingests_and_supersedes_and_admits_nothing_until_it_is_resumed(
    trunk: Trunk,
) -> None:
    await trunk.report("A")
    await trunk.act(Verb.PAUSE)
    await trunk.report("B", "C")
    await trunk.succeeds("A")
    await trunk.stays("A suc, B sup, C acc")
    paused = (await trunk.state()).paused
    assert paused is not None
    assert (paused.actor, paused.detail, paused.at > 0) == ("ada", "because", True)
    why = f"the queue is paused by ada since {clock(paused.at)} (because)"
    assert f"request/{trunk.queue}/3 (C) waits since" in await trunk.details()
    assert why in await trunk.details()
    await trunk.act(Verb.RESUME)
    await trunk.is_in("C", State.PROCESSING)
    assert (await trunk.state()).paused is None


@pytest.mark.spec("V247")
async def test_a_pause_needs_a_reason_and_a_second_one_replaces_it(trunk: Trunk) -> None:
    await trunk.report("A")
    with pytest.raises(Malformed, match="needs a reason"):
        Act("1", Verb.PAUSE, "ada", "  ")
    await trunk.act(Verb.PAUSE, by="ada")
    asking = Asking(trunk.client, trunk.fence, trunk.queue)
    await asking.act(trunk.queue, Act("2", Verb.PAUSE, "bob", "still broken"))
    assert (await trunk.state()).paused_reason == "still broken"
    await trunk.act(Verb.RESUME)
    version = await trunk.states()
    await trunk.act(Verb.RESUME, by="eve")
    assert (await trunk.state()).paused_reason is None
    assert await trunk.states() == version
    who = [("paused", "ada"), ("paused", "bob"), ("resumed", "ada"), ("resumed", "eve")]
    assert await trunk.audit() == who


@pytest.mark.spec("V248")
async def test_a_paused_queue_stays_paused_when_it_continues_as_new_or_is_restarted(
    trunk: Trunk, monkeypatch: pytest.MonkeyPatch
) -> None:
    await trunk.act(Verb.PAUSE)
    monkeypatch.setattr(policies, "LONG_HISTORY", 1)
    await trunk.report("A")
    await trunk.poke()
    monkeypatch.undo()
    await trunk.stays("A acc")
    await trunk.handle.terminate("by a test")
    await trunk.report("B")
    await trunk.stays("A sup, B acc")


@pytest.mark.spec("V249")
async def test_a_waiting_request_is_cancelled_at_once_without_a_slot_or_a_build(
    trunk: Trunk,
) -> None:
    await trunk.report("A", "B")
    done = await trunk.act(Verb.CANCEL, 2)
    b = await trunk.request("B")
    assert (b.state, b.cause) == (State.CANCELLED, Cause.CANCELLED_BY_PERSON)
    assert (done.kind, done.actor) == ("cancelled_by_person", "ada")
    await trunk.until(lambda: _heard(trunk, EventType.CANCELLED, 2))
    assert (EventType.STARTED, 2) not in trunk.events()
    assert await trunk.store.builds(trunk.queue, 2) == []
    assert await trunk.report("B") == [f"request/{trunk.queue}/2"]


async def _heard(trunk: Trunk, kind: EventType, number: int) -> bool:
    return (kind, number) in trunk.events()


@pytest.mark.spec("V250")
async def test_the_intent_to_cancel_is_durable_before_the_runner_is_asked(trunk: Trunk) -> None:
    await trunk.report("A")
    await trunk.triggered()
    trunk.runner.hang("cancel")
    await trunk.act(Verb.CANCEL, 1)
    a = await trunk.request("A")
    assert (a.state, a.ending, a.ending_attempt) == (State.PROCESSING, Why.PERSON, 1)
    assert trunk.runner.cancelled == []
    trunk.runner.released.set()
    a = await trunk.is_in("A", State.CANCELLED)
    assert a.cause is Cause.CANCELLED_BY_PERSON
    assert (await trunk.state()).in_flight == ()
    assert await trunk.is_green("A") is Exit.UNKNOWN
    await trunk.until(lambda: _heard(trunk, EventType.CANCELLED, 1))
    assert "cancel_unconfirmed" not in await trunk.history(1)


@pytest.mark.spec("V251")
async def test_a_cancel_that_nobody_confirms_ends_the_request_after_its_grace(
    client: Client, tmp_path: Path
) -> None:
    async with running_trunk(client, tmp_path, cancel_grace=1) as trunk:
        trunk.runner.is_deaf = True
        await trunk.report("A")
        build = await trunk.triggered()
        await trunk.act(Verb.CANCEL, 1)
        a = await trunk.is_in("A", State.CANCELLED)
        assert a.cause is Cause.CANCELLED_BY_PERSON
        assert (a.ended_at or 0) - (a.ending_at or 0) >= 1_000
        assert (await trunk.state()).in_flight == ()
        assert "cancel_unconfirmed" in await trunk.history(1)
        trunk.runner.builds[build].status = "succeeded"
        await trunk.observe_late(1, build)
        assert (await trunk.request("A")).state is State.CANCELLED
        assert "late_verdict" in await trunk.history(1)
        assert await trunk.is_green("A") is Exit.UNKNOWN


@pytest.mark.spec("V252")
async def test_a_verdict_that_came_before_the_cancel_stands(trunk: Trunk) -> None:
    await trunk.report("A")
    build = await trunk.triggered()
    trunk.runner.builds[build].status = "succeeded"  # and nobody was told
    await trunk.act(Verb.CANCEL, 1)
    a = await trunk.recorded("A")
    assert (a.state, a.cause) == (State.SUCCEEDED, Cause.BUILD_SUCCEEDED)
    with pytest.raises(Refused, match=r"has ended: succeeded, build_succeeded"):
        await trunk.act(Verb.CANCEL, 1)


@pytest.mark.spec("V253")
async def test_a_build_that_is_triggered_while_a_person_cancels_is_found_and_cancelled(
    trunk: Trunk,
) -> None:
    trunk.runner.lose_answer("trigger", 2)
    trunk.runner.fail("find", RunnerOut("502"), 3)
    await trunk.report("A")
    await trunk.until(lambda: _asked_for_builds(trunk))
    await trunk.act(Verb.CANCEL, 1)
    a = await trunk.is_in("A", State.CANCELLED)
    assert a.cause is Cause.CANCELLED_BY_PERSON
    assert {build.status for build in trunk.runner.builds.values()} <= {"cancelled"}


async def _asked_for_builds(trunk: Trunk) -> bool:
    return "fake" in trunk.named


@pytest.mark.spec("V253")
async def test_a_cancel_while_the_runner_is_out_ends_the_request_without_a_build(
    client: Client, tmp_path: Path
) -> None:
    async with running_trunk(client, tmp_path, cancel_grace=1) as trunk:
        trunk.runner.fail("find", RunnerOut("502"), 10_000)
        await trunk.report("A")
        await trunk.until(lambda: _asked_for_builds(trunk))
        await trunk.act(Verb.CANCEL, 1)
        a = await trunk.is_in("A", State.CANCELLED)
        assert a.cause is Cause.CANCELLED_BY_PERSON
        assert trunk.runner.builds == {}


@pytest.mark.spec("V254", "V260")
async def test_a_refused_action_changes_nothing_and_is_in_the_history_with_who_asked(
    trunk: Trunk,
) -> None:
    await trunk.report("A")
    await trunk.succeeds("A")
    before = await trunk.request("A")
    with pytest.raises(Refused, match=f"request/{trunk.queue}/1 has ended"):
        await trunk.act(Verb.CANCEL, 1, by="eve")
    assert await trunk.request("A") == before
    assert await trunk.audit(1) == [("refused", "eve")]
    (row,) = [r for r in await trunk.store.history(trunk.queue, 1) if r.actor]
    assert row.detail.endswith("(because)")
    assert row.at > 0


@pytest.mark.spec("V255")
async def test_a_cancel_asked_twice_is_one_intent_and_one_call_and_one_outcome(
    trunk: Trunk,
) -> None:
    await trunk.report("A")
    await trunk.triggered()
    trunk.runner.hang("cancel")
    first = await trunk.act(Verb.CANCEL, 1, once="one")
    assert await trunk.act(Verb.CANCEL, 1, once="one") == first
    with pytest.raises(Refused, match="is being ended already: person"):
        await trunk.act(Verb.CANCEL, 1, once="two", by="bob")
    trunk.runner.released.set()
    await trunk.is_in("A", State.CANCELLED)
    assert (await trunk.history(1)).count("cancel_requested") == 1
    assert len(trunk.runner.cancelled) == 1
    assert await trunk.audit(1) == [("cancel_requested", "ada"), ("refused", "bob")]


@pytest.mark.spec("V175", "V176", "V260")
async def test_a_retry_is_a_new_request_in_the_place_of_the_one_it_retries(trunk: Trunk) -> None:
    await trunk.report("A")
    await trunk.fails("A")
    await trunk.report("B")
    await trunk.fails("B")
    made = await trunk.act(Verb.RETRY, 1)
    assert made.detail == f"request/{trunk.queue}/3: because"
    old, new = await trunk.store.request(trunk.queue, 1), await trunk.store.request(trunk.queue, 3)
    assert (new.retry_of, new.uri, new.order, new.line) == (1, "A", old.order, old.line)
    assert await trunk.audit(1) == [("retried", "ada")]
    latest = (await trunk.state()).latest
    assert latest is not None
    assert latest.number == 2
    await trunk.succeeds("A")
    await trunk.act(Verb.RETRY, 2)
    assert await trunk.report("B") == [f"request/{trunk.queue}/4"]
    latest = (await trunk.state()).latest
    assert latest is not None
    assert latest.number == 4


@pytest.mark.spec("V178")
async def test_a_retry_of_a_retry_names_the_request_that_was_ingested(trunk: Trunk) -> None:
    await trunk.report("A")
    await trunk.fails("A")
    await trunk.act(Verb.RETRY, 1)
    await trunk.fails("A")
    await trunk.act(Verb.RETRY, 2)
    assert (await trunk.store.request(trunk.queue, 3)).retry_of == 1


@pytest.mark.spec("V179")
async def test_of_two_retries_asked_at_once_one_is_refused_with_the_id_of_the_other(
    trunk: Trunk,
) -> None:
    await trunk.report("A")
    await trunk.fails("A")
    both = (trunk.act(Verb.RETRY, 1), trunk.act(Verb.RETRY, 1))
    done = await asyncio.gather(*both, return_exceptions=True)
    (refused,) = [answer for answer in done if isinstance(answer, Refused)]
    assert f"request/{trunk.queue}/2 is an attempt at it" in str(refused)
    assert len(await trunk.store.attempts(trunk.queue, "A")) == 2


@pytest.mark.spec("V189", "V186")
async def test_a_retry_never_adopts_it_builds(trunk: Trunk) -> None:
    await trunk.report("A")
    await trunk.fails("A")
    await trunk.act(Verb.RETRY, 1)
    again = await trunk.succeeds("A")
    assert (again.number, again.cause) == (2, Cause.BUILD_SUCCEEDED)
    assert len(trunk.runner.builds) == 2
    assert await trunk.is_green("A") is Exit.GREEN


@pytest.mark.spec("V392")
async def test_what_is_asked_is_answered_during_a_look_and_for_a_queue_that_does_not_run(
    client: Client, tmp_path: Path
) -> None:
    trunk = await make_trunk(client, tmp_path)
    async with trunk_worker(trunk):
        await trunk.report("A")
        await trunk.fails("A")
        await trunk.handle.terminate("by a test")
        trunk.source.answering.clear()  # its first look hangs
        done = await trunk.act(Verb.RETRY, 1, once="x")
        assert await trunk.act(Verb.RETRY, 1, once="x") == done
        assert len(await trunk.store.attempts(trunk.queue, "A")) == 2
        await trunk.is_in("A", State.PROCESSING)
        trunk.source.answering.set()
        await trunk.act(Verb.CANCEL, 2)
        await trunk.is_in("A", State.CANCELLED)
        await trunk.end_all()
    await trunk.parts.engine.dispose()


@pytest.mark.spec("V392")
async def test_what_is_asked_in_the_turn_of_continue_as_new_is_done_once(
    trunk: Trunk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(policies, "LONG_HISTORY", 20)
    await trunk.report("A")
    await trunk.fails("A")
    for turn in range(8):
        done = await trunk.act(Verb.RETRY, 1, once=f"retry {turn}")
        assert await trunk.act(Verb.RETRY, 1, once=f"retry {turn}") == done
        number = len(await trunk.store.attempts(trunk.queue, "A"))
        assert done.detail == f"request/{trunk.queue}/{number}: because"
        assert number == turn + 2
        await trunk.act(Verb.CANCEL, number, once=f"cancel {turn}")
        await trunk.is_in("A", State.CANCELLED)
    assert (await trunk.handle.describe()).raw_description.workflow_execution_info.first_run_id != (
        await trunk.handle.describe()
    ).run_id


async def test_what_is_asked_about_nothing_is_not_found(trunk: Trunk) -> None:
    with pytest.raises(NotFound, match="/7 does not exist"):
        await trunk.act(Verb.RETRY, 7)
    with pytest.raises(NotFound, match="no dead letter"):
        await trunk.act(Verb.RETRY_LETTER, "request/7/1")


@pytest.mark.spec("V45")
async def test_a_retry_that_waits_is_not_superseded_by_newer_heads(trunk: Trunk) -> None:
    await trunk.report("A")
    await trunk.fails("A")
    await trunk.report("B")
    await trunk.act(Verb.RETRY, 1)
    await trunk.report("C", "D")
    assert await trunk.states() == "A fai, B pro, A acc, C sup, D acc"
    await trunk.fails("B")
    await trunk.is_in("A", State.PROCESSING)


@pytest.mark.spec("V49")
async def test_heads_that_arrive_while_it_is_paused_supersede_one_another(trunk: Trunk) -> None:
    await trunk.act(Verb.PAUSE)
    await trunk.report("A", "B", "C")
    assert await trunk.states() == "A sup, B sup, C acc"


@pytest.mark.spec("V77")
async def test_a_retry_of_last_green_is_an_empty_delta(trunk: Trunk) -> None:
    await trunk.report("A")
    await trunk.succeeds("A")
    await trunk.act(Verb.RETRY, 1)
    await trunk.triggered(2)
    order = trunk.runner.triggers[-1]
    assert (order.strategy, order.base_uri, order.head_uri) == ("incremental_since_green", "A", "A")


@pytest.mark.spec("V357")
async def test_a_look_that_takes_minutes_holds_nothing_else(trunk: Trunk) -> None:
    await trunk.report("A", "B")
    trunk.source.land("C")
    trunk.source.answering.clear()
    await trunk.poke()
    await trunk.until(lambda: _looks(trunk))
    await trunk.build_ends("A", "failed")
    await trunk.is_in("B", State.PROCESSING)
    await trunk.act(Verb.PAUSE)
    await trunk.act(Verb.RESUME)
    await trunk.act(Verb.CANCEL, 2)
    await trunk.is_in("B", State.CANCELLED)
    assert await trunk.states() == "A fai, B can"
    made = await trunk.act(Verb.RETRY, 1)
    assert made.detail.startswith(f"request/{trunk.queue}/3")
    await trunk.triggered(3)
    await trunk.terminate(ids.build(trunk.queue, 3))
    await trunk.handle.signal("drive")
    await trunk.until(lambda: _driven(trunk, 3))
    trunk.source.answering.set()
    await trunk.until(lambda: _named(trunk, "C"))


async def _looks(trunk: Trunk) -> bool:
    return trunk.source.asked["latest"] > 2


async def _driven(trunk: Trunk, number: int) -> bool:
    return "driven_again" in await trunk.history(number)


async def _named(trunk: Trunk, uri: str) -> bool:
    return bool(await trunk.store.attempts(trunk.queue, uri))
