"""Whoever listens hears of everything, at least once and in order, and nobody waits for him."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

import pytest
from temporalio.client import Client
from temporalio.common import RetryPolicy

from activities import failures
from domain.act import Verb
from domain.errors import Misconfigured, NoSuchBuild, Refused, SinkOut
from domain.event import EventType, HookEvent
from domain.identity import RequestId
from domain.request import ENDINGS, Cause, State
from domain.settings import Route
from extensions.hooks.fake import FakeSink
from tests.trunk import Trunk, running_trunk
from workflows import policies

STARTED, RECORDED = EventType.STARTED, EventType.RECORDED
TWO: Final = {"hooks": (Route("one"), Route("other"))}
ENDS: Final = tuple(zip("ABCDEF", ("succeeded", "failed", "failed", "succeeded") * 2, strict=False))
THREE: Final = {"hooks": (Route("one"), Route("other"), Route("broken"))}


def types_of(sink: FakeSink, number: int = 1) -> list[EventType]:
    """What it heard of a request, each event once."""
    once = {event.id: event for event in sink.heard if event.request == number}
    return [event.type for event in once.values()]


async def heard(trunk: Trunk, sink: FakeSink, *kinds: EventType, number: int = 1) -> None:
    async def all_of_it() -> bool:
        return types_of(sink, number) == [*kinds]

    await trunk.until(all_of_it)


def add(trunk: Trunk, *names: str) -> tuple[FakeSink, ...]:
    sinks = tuple(FakeSink() for _ in names)
    trunk.sinks.update(zip(names, sinks, strict=True))
    return sinks


@pytest.fixture(name="quick_sinks")
def _quick_sinks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The wait between two tries is a tenth of a second at the most."""
    monkeypatch.setitem(failures.LONGEST, "deliver", 0.1)


@pytest.mark.spec("V264")
async def test_a_sink_that_refuses_started_gets_recorded_after_it_and_another_sink_both_meanwhile(
    client: Client, tmp_path: Path
) -> None:
    async with running_trunk(client, tmp_path, **TWO) as trunk:
        one, other = add(trunk, "one", "other")
        one.out = ConnectionError("refused for a minute")
        await trunk.report("A")
        await trunk.succeeds("A")
        await heard(trunk, other, STARTED, RECORDED)
        assert one.heard == []
        one.out = None
        await heard(trunk, one, STARTED, RECORDED)
        assert [event.type for event in one.heard] == [STARTED, RECORDED]


Way = Callable[[Trunk], Awaitable[object]]


async def _green(trunk: Trunk) -> None:
    await trunk.build_ends("A", "succeeded")


async def _red(trunk: Trunk) -> None:
    await trunk.build_ends("A", "failed")


async def _cancelled(trunk: Trunk) -> None:
    await trunk.build_ends("A", "cancelled")


async def _by_a_person(trunk: Trunk) -> None:
    await trunk.triggered()
    await trunk.act(Verb.CANCEL, 1)


async def _nothing(_: Trunk) -> None:
    """It ends by itself."""


def _refuses(trunk: Trunk) -> None:
    trunk.runner.fail("trigger", Refused("422"), 1)


def _forgets(trunk: Trunk) -> None:
    trunk.runner.fail("status", NoSuchBuild("gone"), 1_000)


def _never_can(trunk: Trunk) -> None:
    trunk.runner.fail("status", Misconfigured("never"), 1)


def _never_starts(trunk: Trunk) -> None:
    trunk.runner.first_status = "accepted"


def _well(_: Trunk) -> None:
    """Nothing is wrong with the runner."""


Ends = tuple[Callable[[Trunk], None], Way, dict[str, Any]]
WAYS: Final[dict[Cause, Ends]] = {
    Cause.BUILD_SUCCEEDED: (_well, _green, {}),
    Cause.BUILD_FAILED: (_well, _red, {}),
    Cause.BUILD_CANCELLED: (_well, _cancelled, {}),
    Cause.CANCELLED_BY_PERSON: (_well, _by_a_person, {}),
    Cause.TRIGGER_FAILED: (_refuses, _nothing, {}),
    Cause.NEVER_STARTED: (_never_starts, _nothing, {"start_timeout": 1}),
    Cause.POLLING_EXHAUSTED: (_forgets, _nothing, {}),
    Cause.VALIDATION_TIMEOUT: (_well, _nothing, {"validation_timeout": 1}),
    Cause.PROCESSING_FAILED: (_never_can, _nothing, {}),
}


def test_every_ending_of_an_admitted_request_has_a_way() -> None:
    assert set(WAYS) == {c for c, e in ENDINGS.items() if State.PROCESSING in e.leaves}


@pytest.mark.spec("V265")
@pytest.mark.parametrize("cause", WAYS)
async def test_an_admitted_request_says_that_it_started_and_how_it_ended_each_once(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cause: Cause
) -> None:
    monkeypatch.setitem(failures.BUDGETS, "watch_build", (NoSuchBuild, 0.2))
    often = RetryPolicy(initial_interval=0.1 * policies.SECOND, maximum_attempts=0)
    for policy in (policies.RUNNER, policies.POLL):
        monkeypatch.setitem(policy, "retry_policy", often)
    breaks, end, settings = WAYS[cause]
    async with running_trunk(client, tmp_path, cancel_grace=1, slot_grace=2, **settings) as trunk:
        trunk.runner.pushes = False
        breaks(trunk)
        await trunk.report("A")
        await end(trunk)
        said = EventType(ENDINGS[cause].says or RECORDED)
        await heard(trunk, trunk.sink, STARTED, said)
        assert (await trunk.request("A")).cause is cause
        assert (said is RECORDED) is cause.has_verdict
        await trunk.report("B")
        await heard(trunk, trunk.sink, STARTED, number=2)
        assert types_of(trunk.sink) == [STARTED, said]
        assert len(trunk.sink.heard) == 3


@pytest.mark.spec("V266")
async def test_a_superseded_request_says_nothing(trunk: Trunk) -> None:
    await trunk.report("A", "B", "C")
    await trunk.succeeds("A")
    await trunk.succeeds("C")
    await heard(trunk, trunk.sink, STARTED, RECORDED, number=3)
    assert (await trunk.request("B")).state is State.SUPERSEDED
    assert types_of(trunk.sink, 2) == []
    assert await trunk.store.pending(trunk.queue, 2) == []


@pytest.mark.spec("V266")
async def test_a_queue_without_sinks_has_no_delivery_and_records_as_usual(
    client: Client, tmp_path: Path
) -> None:
    async with running_trunk(client, tmp_path, hooks=()) as trunk:
        await trunk.report("A")
        a = await trunk.succeeds("A")
        assert (a.state, trunk.source.promotion) == (State.SUCCEEDED, "A")
        assert await trunk.store.deliveries(trunk.queue, 1) == []
        assert trunk.sink.calls == 0


@pytest.mark.spec("V267")
async def test_each_sink_gets_its_own_events_and_one_that_is_added_later_no_old_ones(
    client: Client, tmp_path: Path
) -> None:
    narrow = {"hooks": (Route("one", (RECORDED,)), Route("other"))}
    async with (
        running_trunk(client, tmp_path / "here", **narrow) as trunk,
        running_trunk(client, tmp_path / "there", hooks=(Route("far"),)) as there,
    ):
        one, other, late = add(trunk, "one", "other", "late")
        (far,) = add(there, "far")
        there.sinks.update(one=one, other=other)
        await trunk.report("A")
        await there.report("X")
        await trunk.succeeds("A")
        await there.succeeds("X")
        await heard(trunk, one, RECORDED)
        await heard(trunk, other, STARTED, RECORDED)
        await heard(there, far, STARTED, RECORDED)
        trunk.set(hooks=(*narrow["hooks"], Route("late")))
        await trunk.report("B")
        await trunk.succeeds("B")
        await heard(trunk, late, STARTED, RECORDED, number=2)
        assert {event.request for event in late.heard} == {2}
        assert {event.queue for sink in (one, other, late) for event in sink.heard} == {trunk.queue}
        assert {event.queue for event in far.heard} == {there.queue}
        assert [event.type for event in one.heard] == [RECORDED] * 2


@pytest.mark.spec("V268")
@pytest.mark.usefixtures("quick_sinks")
async def test_of_three_sinks_the_one_that_always_fails_has_attempts_and_a_dead_letter(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(failures.BUDGETS, "deliver", (Exception, 0.4))
    async with running_trunk(client, tmp_path, **THREE) as trunk:
        one, other, broken = add(trunk, "one", "other", "broken")
        broken.out = ConnectionError("always")
        await trunk.report("A")
        await trunk.succeeds("A")

        async def two_letters() -> bool:
            return len(await trunk.store.dead_letters(trunk.queue)) == 2

        await trunk.until(two_letters)
        for sink in (one, other):
            assert [event.type for event in sink.heard] == [STARTED, RECORDED]
            assert sink.calls == 2
        assert broken.heard == []
        for letter in await trunk.store.dead_letters(trunk.queue):
            assert letter.subject.endswith(" to broken")
            assert json.loads(letter.detail)["attempts"] > 1
        for row in await trunk.store.deliveries(trunk.queue, 1):
            dead = row.sink == "broken"
            assert (row.state, "always" in row.last_error) == (
                "dead" if dead else "delivered",
                dead,
            )


@pytest.mark.spec("V271")
@pytest.mark.usefixtures("quick_sinks")
async def test_a_delivery_whose_answer_was_lost_arrives_twice_under_one_id_and_nothing_else_changes(
    trunk: Trunk,
) -> None:
    trunk.sink.loses_answer = True
    await trunk.report("A")
    await trunk.succeeds("A")
    await heard(trunk, trunk.sink, STARTED, RECORDED)
    first, again, last = trunk.sink.heard
    assert first == again
    assert (first.type, last.type) == (STARTED, RECORDED)
    assert (await trunk.history(1)).count("recorded") == 1
    assert await trunk.store.dead_letters(trunk.queue) == []
    assert trunk.source.promotion == "A"


@pytest.mark.spec("V272")
@pytest.mark.parametrize("how", ["fails", "hangs", "refuses"])
async def test_nothing_depends_on_a_sink_or_waits_for_it(trunk: Trunk, how: str) -> None:
    sink = trunk.sink
    sink.hangs = how == "hangs"
    sink.out = {"fails": ConnectionError("no"), "refuses": Refused("410")}.get(how)
    await trunk.report("A")
    a = await trunk.succeeds("A")
    assert sink.heard == []
    assert (a.state, await trunk.last_green(), trunk.source.promotion) == (
        State.SUCCEEDED,
        (1, "A"),
        "A",
    )
    fact = await trunk.store.fact(trunk.queue, "A")
    assert fact is not None
    assert fact.is_green
    await trunk.report("B")
    await trunk.is_in("B", State.PROCESSING)
    await trunk.fails("B")
    assert await trunk.states() == "A suc, B fai"
    assert sink.heard == []


@pytest.mark.spec("V275")
async def test_events_of_two_requests_in_any_order_give_the_newest_green_by_comparing_ids(
    trunk: Trunk,
) -> None:
    """A sink that keeps the newest green, told of the older one last."""
    kept: list[RequestId] = []
    greens: list[tuple[int, str] | None] = []

    async def keeps(event: HookEvent) -> None:
        if event.request == 1 and 2 not in {known.number for known in kept}:
            raise SinkOut("the older one comes last", after=0.2)
        if event.type is RECORDED:
            kept.append(RequestId.parse(event.payload["request_id"]))
            greens.append(await trunk.last_green())

    trunk.sink.reads = keeps
    await trunk.report("A")
    await trunk.succeeds("A")
    await trunk.report("B")
    await trunk.succeeds("B")
    await heard(trunk, trunk.sink, STARTED, RECORDED)
    assert [known.number for known in kept] == [2, 1]
    assert max(kept, key=lambda known: known.number).number == 2
    assert greens == [(2, "B")] * 2


async def test_a_sink_on_edges_hears_that_trunk_broke_and_was_mended_and_nothing_between(
    client: Client, tmp_path: Path
) -> None:
    async with running_trunk(client, tmp_path, hooks=(Route("one", edges=True),)) as trunk:
        (one,) = add(trunk, "one")
        for uri, ends in ENDS:
            await trunk.report(uri)
            await trunk.build_ends(uri, ends)
            await trunk.recorded(uri)

        async def all_heard() -> bool:
            return [(e.type, e.request) for e in one.heard] == [
                (RECORDED, 2),
                (RECORDED, 4),
                (RECORDED, 6),
            ]

        await trunk.until(all_heard)


async def test_a_sink_that_hangs_leaves_room_for_all_others(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A budget is not spent on a try that never was."""
    monkeypatch.setattr("activities.hooks.AT_A_TIME", 1)
    monkeypatch.setitem(failures.BUDGETS, "deliver", (Exception, 0.0))
    settings = TWO | {"max_concurrent": 2}
    async with running_trunk(client, tmp_path, **settings) as trunk:
        one, other = add(trunk, "one", "other")
        one.hangs = True
        await trunk.report("A", "B")
        await heard(trunk, other, STARTED)
        await heard(trunk, other, STARTED, number=2)
        await asyncio.sleep(0.5)
        assert one.calls == 1
        assert await trunk.store.dead_letters(trunk.queue) == []
