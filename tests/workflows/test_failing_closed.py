"""What cannot finish ends in one place: its slot is free, no fact is made, a person is told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from temporalio.client import Client
from temporalio.common import RetryPolicy

from activities import failures
from domain.act import Act, Verb
from domain.errors import (
    Invariant,
    Misconfigured,
    NoSuchBuild,
    Refused,
    RefusedForNow,
    StoreOut,
    ValueRefused,
)
from domain.event import EventType
from domain.fact import Exit
from domain.request import ENDINGS, Cause, State
from tests.trunk import Trunk, make_trunk, running_trunk, trunk_worker
from workflows import policies


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    often = RetryPolicy(
        initial_interval=0.05 * policies.SECOND, maximum_interval=0.2 * policies.SECOND
    )
    for policy in (policies.RUNNER, policies.POLL, policies.POLL_PUSHED, policies.FOR_EVER):
        monkeypatch.setitem(policy, "retry_policy", often)
    monkeypatch.setitem(
        policies.LOCAL,
        "retry_policy",
        RetryPolicy(initial_interval=often.initial_interval, maximum_attempts=2),
    )


@pytest_asyncio.fixture
async def trunk(client: Client, tmp_path: Path) -> AsyncIterator[Trunk]:
    async with running_trunk(client, tmp_path, cancel_grace=1, slot_grace=2) as trunk:
        yield trunk


async def _heard(trunk: Trunk, kind: EventType, number: int) -> bool:
    return (kind, number) in trunk.events()


async def failed_closed(trunk: Trunk, uri: str, cause: Cause, *, was_admitted: bool = True) -> None:
    """Every mark of it: state, slot, fact, dead letter, event."""
    request = await trunk.is_in(uri, State.FAILED)
    assert request.cause is cause
    assert request.number not in {r.number for r in (await trunk.state()).in_flight}
    assert await trunk.store.fact(trunk.queue, uri) is None
    assert await trunk.is_green(uri) is Exit.UNKNOWN
    (letter,) = await trunk.store.dead_letters(trunk.queue)
    assert (letter.kind, letter.subject, letter.cause) == ("request", str(request.number), cause)
    assert letter.detail
    await trunk.until(lambda: _heard(trunk, EventType.ABANDONED, request.number))
    said = [kind for kind, number in trunk.events() if number == request.number]
    assert said == [EventType.STARTED] * was_admitted + [EventType.ABANDONED]
    assert (await trunk.history(request.number)).count(cause) == 1


@pytest.mark.spec("V231")
async def test_an_accepted_request_that_hits_a_defect_fails_closed_and_no_other_changes(
    trunk: Trunk, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def misconfigured(*_: str) -> Any:
        raise Misconfigured("credentials are named and absent")

    await trunk.report("A", "B")
    await trunk.handle.terminate("so that it knows no ancestry any more")
    with monkeypatch.context() as patch:
        patch.setattr(trunk.source, "is_ancestor", misconfigured)
        await trunk.look()
        a = await trunk.succeeds("A")
        await failed_closed(trunk, "B", Cause.PROCESSING_FAILED, was_admitted=False)
    assert await trunk.request("A") == a
    await trunk.report("C")
    await trunk.succeeds("C")


@pytest.mark.spec("V233")
async def test_a_terminal_request_that_is_failed_late_is_untouched(trunk: Trunk) -> None:
    await trunk.report("A")
    a = await trunk.succeeds("A")
    await trunk.until(lambda: _heard(trunk, EventType.RECORDED, 1))
    events = trunk.events()
    await trunk.fail_closed(1)
    assert await trunk.request("A") == a
    assert await trunk.store.dead_letters(trunk.queue) == []
    await trunk.drive(1)
    assert trunk.events() == events


@pytest.mark.spec("V234")
async def test_a_verdict_that_comes_between_the_decision_to_fail_and_its_transaction_stands(
    trunk: Trunk, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail = trunk.store.fail

    async def after_a_verdict(*arguments: Any) -> Any:
        monkeypatch.setattr(trunk.store, "fail", fail)
        await trunk.observe_late(1, (await trunk.store.builds(trunk.queue, 1))[0].id)
        return await fail(*arguments)

    await trunk.report("A")
    build = await trunk.triggered()
    trunk.runner.builds[build].status = "succeeded"
    monkeypatch.setattr(trunk.store, "fail", after_a_verdict)
    trunk.runner.fail("status", Misconfigured("can never end"), 1)
    await trunk.runner.finish("A", "succeeded")
    a = await trunk.recorded("A")
    assert a.cause is Cause.BUILD_SUCCEEDED
    assert await trunk.store.dead_letters(trunk.queue) == []
    assert await trunk.is_green("A") is Exit.GREEN


@pytest.mark.spec("V236")
async def test_a_request_that_does_not_exist_leaves_a_dead_letter_and_nothing_else(
    trunk: Trunk,
) -> None:
    await trunk.report("A")
    before = await trunk.store.requests(trunk.queue)
    await trunk.drive_missing(99)
    (letter,) = await trunk.store.dead_letters(trunk.queue)
    assert (letter.kind, letter.subject) == ("request", "99")
    assert await trunk.store.requests(trunk.queue) == before
    await trunk.until(lambda: _heard(trunk, EventType.STARTED, 1))
    assert {number for _, number in trunk.events()} == {1}


@pytest.mark.spec("V236")
async def test_a_store_that_is_out_is_waited_out_before_a_row_is_said_to_be_missing(
    trunk: Trunk, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = Outage(trunk, monkeypatch, "stage", times=6)
    await trunk.drive_missing(99)
    assert out.met == 6
    (letter,) = await trunk.store.dead_letters(trunk.queue)
    assert letter.subject == "99"


class Outage:
    """A call to the store that finds it out, so many times."""

    def __init__(self, trunk: Trunk, patch: pytest.MonkeyPatch, name: str, times: int) -> None:
        self.met = 0
        call = getattr(trunk.store, name)

        async def meets(*arguments: Any, **named: Any) -> Any:
            if self.met < times:
                self.met += 1
                raise StoreOut("connection refused")
            return await call(*arguments, **named)

        patch.setattr(trunk.store, name, meets)


def _for_good(trunk: Trunk, patch: pytest.MonkeyPatch, name: str) -> None:
    async def refuses(*_: Any, **__: Any) -> Any:
        raise Invariant("must not be")

    patch.setattr(trunk.store, name, refuses)


FOR_GOOD: dict[str, tuple[Callable[[Trunk, pytest.MonkeyPatch], None], Cause]] = {
    "find": (lambda t, _: t.runner.fail("find", Refused("401"), 1), Cause.TRIGGER_FAILED),
    "trigger": (lambda t, _: t.runner.fail("trigger", Refused("422"), 1), Cause.TRIGGER_FAILED),
    "build_row": (lambda t, p: _for_good(t, p, "build_row"), Cause.TRIGGER_FAILED),
    "status": (
        lambda t, _: t.runner.fail("status", Misconfigured("never"), 1),
        Cause.PROCESSING_FAILED,
    ),
    "observe": (lambda t, p: _for_good(t, p, "observe"), Cause.PROCESSING_FAILED),
    "no such build": (
        lambda t, _: t.runner.fail("status", NoSuchBuild("gone"), 1000),
        Cause.POLLING_EXHAUSTED,
    ),
    "refused for the whole budget": (
        lambda t, _: t.runner.fail("find", RefusedForNow("429"), 1000),
        Cause.TRIGGER_FAILED,
    ),
}


@pytest.mark.spec("V237", "V239")
@pytest.mark.parametrize("breaks", FOR_GOOD)
async def test_whatever_step_fails_for_good_the_request_ends_and_the_next_head_is_admitted(
    trunk: Trunk, monkeypatch: pytest.MonkeyPatch, breaks: str
) -> None:
    monkeypatch.setitem(failures.BUDGETS, "watch_build", (NoSuchBuild, 0.2))
    monkeypatch.setitem(failures.BUDGETS, "trigger", (RefusedForNow, 0.2))
    trunk.runner.pushes = False
    break_it, cause = FOR_GOOD[breaks]
    with monkeypatch.context() as patch:
        break_it(trunk, patch)
        await trunk.report("A")
        await failed_closed(trunk, "A", cause)
    trunk.runner._errors.clear()
    await trunk.report("B")
    await trunk.is_in("B", State.PROCESSING)
    await trunk.succeeds("B")


@pytest.mark.spec("V239")
def test_only_a_verdict_makes_a_fact() -> None:
    silent = [cause for cause, ending in ENDINGS.items() if ending.says]
    assert not any(cause.has_verdict for cause in silent)


@pytest.mark.spec("V238")
async def test_failing_closed_waits_for_a_store_that_is_out(
    trunk: Trunk, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = Outage(trunk, monkeypatch, "fail", times=8)
    trunk.runner.fail("find", Refused("401"), 1)
    await trunk.report("A")
    await failed_closed(trunk, "A", Cause.TRIGGER_FAILED)
    assert out.met == 8


@pytest.mark.spec("V240")
async def test_red_and_broken_infrastructure_are_told_apart(trunk: Trunk) -> None:
    await trunk.report("A")
    await trunk.fails("A")
    await trunk.until(lambda: _heard(trunk, EventType.RECORDED, 1))
    assert await trunk.is_green("A") is Exit.BROKEN
    assert (EventType.ABANDONED, 1) not in trunk.events()
    assert await trunk.store.dead_letters(trunk.queue) == []


@pytest.mark.spec("V241")
@pytest.mark.parametrize("verdict", ["succeeded", "failed"])
@pytest.mark.parametrize("error", [ValueRefused("check violated"), RuntimeError("a defect")])
async def test_a_fact_that_cannot_be_written_is_told_and_tried_for_as_long_as_it_takes(
    trunk: Trunk, monkeypatch: pytest.MonkeyPatch, verdict: str, error: Exception
) -> None:
    monkeypatch.setitem(failures.BUDGETS, "facts", (Exception, 0.3))
    monkeypatch.setattr(policies, "DRIVE_AGAIN_MS", 300)
    facts, tries = trunk.store.facts, 0

    async def refuses(*_: Any, **__: Any) -> Any:
        nonlocal tries
        tries += 1
        raise error

    monkeypatch.setattr(trunk.store, "facts", refuses)
    monkeypatch.setattr("stores.write.OWED_WAKE_MS", 300)
    await trunk.report("A")
    await trunk.build_ends("A", verdict)
    await trunk.tells(1, "record_abandoned")
    told = tries
    await trunk.until(lambda: _more(lambda: tries, told + 3))
    a = await trunk.request("A")
    assert a.cause in (Cause.BUILD_SUCCEEDED, Cause.BUILD_FAILED)
    assert (await trunk.last_green() == (1, "A")) is (verdict == "succeeded")
    assert (await trunk.store.fact(trunk.queue, "A"), trunk.source.promotion) == (None, None)
    assert trunk.events() == [(EventType.STARTED, 1)]
    assert (await trunk.history(1)).count("record_abandoned") == 1
    (letter,) = await trunk.store.dead_letters(trunk.queue)
    assert (letter.kind, letter.subject) == ("record", "1")
    assert [o.request for o in await trunk.store.owed(trunk.queue, 1, None)] == [1]
    monkeypatch.setattr(trunk.store, "facts", facts)
    a = await trunk.recorded("A")
    await _is_mended(trunk, verdict)


async def _more(count: Callable[[], int], than: int) -> bool:
    return count() > than


async def _is_mended(trunk: Trunk, verdict: str) -> None:
    await trunk.until(lambda: _heard(trunk, EventType.RECORDED, 1))
    assert await trunk.store.dead_letters(trunk.queue) == []
    assert "dead_letter_resolved" in await trunk.history(1)
    assert await trunk.is_green("A") is (Exit.GREEN if verdict == "succeeded" else Exit.BROKEN)
    assert trunk.source.promotion == ("A" if verdict == "succeeded" else None)


@pytest.mark.spec("V242")
async def test_a_person_has_a_record_tried_again_at_once_and_once(
    trunk: Trunk, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        _for_good(trunk, patch, "facts")
        await trunk.report("A")
        await trunk.build_ends("A", "succeeded")
        await trunk.tells(1, "record_abandoned")
    (letter,) = await trunk.store.dead_letters(trunk.queue)
    await trunk.act(Verb.RETRY_LETTER, letter.id)
    await trunk.recorded("A")
    await _is_mended(trunk, "succeeded")
    facts = await trunk.history(1)
    with pytest.raises(Refused, match="was resolved by lastgreen"):
        await trunk.act(Verb.RETRY_LETTER, letter.id)
    assert [row for row in await trunk.history(1) if row != "refused"] == facts


@pytest.mark.spec("V243")
async def test_dead_letters_are_listed_newest_first_and_resolved_by_who_and_when(
    trunk: Trunk,
) -> None:
    trunk.runner.fail("find", Refused("401"), 2)
    await trunk.report("A")
    await trunk.is_in("A", State.FAILED)
    await trunk.report("B")
    await trunk.is_in("B", State.FAILED)
    await trunk.report("C")
    await trunk.succeeds("C")
    newest, oldest = await trunk.store.dead_letters(trunk.queue)
    assert (newest.subject, oldest.subject) == ("2", "1")
    await trunk.act(Verb.DROP_LETTER, newest.id, by="eve")
    gone = await trunk.store.dead_letter_of(trunk.queue, newest.id)
    assert gone.resolved_by == "eve"
    assert gone.resolved_at
    await trunk.act(Verb.RETRY_LETTER, oldest.id, by="bob")
    assert await trunk.store.dead_letters(trunk.queue) == []
    assert (await trunk.store.request(trunk.queue, 4)).retry_of == 1
    assert await trunk.audit(2) == [("dead_letter_resolved", "eve")]
    assert await trunk.audit(1) == [("retried", "bob"), ("dead_letter_resolved", "bob")]


async def test_a_promotion_that_a_person_retries_moves_the_ref_and_says_nothing_twice(
    trunk: Trunk,
) -> None:
    trunk.source.protected = "protected branch"
    await trunk.report("A")
    await trunk.succeeds("A")
    (letter,) = await trunk.store.dead_letters(trunk.queue)
    assert letter.kind == "promotion"
    trunk.source.protected = ""
    await trunk.act(Verb.RETRY_LETTER, letter.id)
    await trunk.tells(1, "promoted")
    await trunk.recorded("A")
    assert trunk.source.promotion == "A"
    assert await trunk.store.dead_letters(trunk.queue) == []
    assert trunk.events().count((EventType.RECORDED, 1)) == 1


async def test_an_event_that_a_person_retries_is_sent_again_under_its_id(
    trunk: Trunk,
) -> None:
    trunk.sink.errors.append(Refused("410 gone"))
    await trunk.report("A")

    async def is_dead() -> bool:
        return bool(await trunk.store.dead_letters(trunk.queue))

    await trunk.until(is_dead)
    (letter,) = await trunk.store.dead_letters(trunk.queue)
    assert letter.kind == "hook"
    assert trunk.events() == []
    await trunk.act(Verb.RETRY_LETTER, letter.id)
    await trunk.until(lambda: _heard(trunk, EventType.STARTED, 1))
    assert letter.subject.startswith(trunk.sink.ids[0])


@pytest.mark.spec("V245")
async def test_workers_that_are_stopped_at_any_moment_fail_nothing(
    client: Client, tmp_path: Path
) -> None:
    trunk = await make_trunk(client, tmp_path)
    async with trunk_worker(trunk):
        await trunk.report("A")
    for pause in range(6):
        async with trunk_worker(trunk):
            await asyncio.sleep(0.05 * pause)
    trunk.runner.delay("status", 0.3)
    async with trunk_worker(trunk):
        await trunk.succeeds("A")
        assert await trunk.store.dead_letters(trunk.queue) == []
        assert trunk.source.promotion == "A"
        await trunk.end_all()
    await trunk.parts.engine.dispose()


@pytest.mark.spec("V387")
async def test_a_value_that_the_store_refuses_is_no_outage(
    trunk: Trunk, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries = 0

    async def refuses(*_: Any, **__: Any) -> Any:
        nonlocal tries
        tries += 1
        raise ValueRefused("check violated")

    with monkeypatch.context() as patch:
        patch.setattr(trunk.store, "build_row", refuses)
        await trunk.report("A")
        await failed_closed(trunk, "A", Cause.TRIGGER_FAILED)
    assert tries == 1
    await trunk.report("B")
    await trunk.succeeds("B")


def test_an_action_without_who_or_id_is_malformed() -> None:
    with pytest.raises(Exception, match="needs an id and who"):
        Act("", Verb.RETRY, "ada", "because")
