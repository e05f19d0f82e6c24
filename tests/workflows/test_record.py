from __future__ import annotations

import asyncio

import pytest

from domain.errors import Refused, SourceControlOut
from domain.event import EventType, HookEvent
from domain.fact import Exit
from domain.request import Cause, State
from extensions.sourcecontrol.contract import Promoted
from stores.rows import Request
from tests.trunk import Trunk


async def green(trunk: Trunk, uri: str) -> Request:
    await trunk.report(uri)
    return await trunk.succeeds(uri)


async def kinds(trunk: Trunk, count: int) -> list[EventType]:
    async def heard() -> bool:
        return len(trunk.events()) >= count

    await trunk.until(heard)
    return [kind for kind, _ in trunk.events()]


@pytest.mark.spec("V127")
async def test_last_green_moves_at_settle_before_record_begins(trunk: Trunk) -> None:
    trunk.source.out = False
    await trunk.report("A")
    trunk.source.out = True
    await trunk.build_ends("A", "succeeded")
    await trunk.is_in("A", State.SUCCEEDED)
    assert await trunk.last_green() == (1, "A")
    assert (await trunk.request("A")).recorded_at is None
    trunk.source.out = False
    await trunk.recorded("A")


@pytest.mark.spec("V135")
async def test_a_success_becomes_a_green_fact_then_the_ref_then_the_event(trunk: Trunk) -> None:
    a = await green(trunk, "A")
    fact = await trunk.store.fact(trunk.queue, "A")
    assert fact is not None
    assert (fact.degree, fact.project, fact.request) == (0, "", 1)
    assert fact.created_at == a.green_at
    history = await trunk.history(1)
    assert history[-4:] == ["project_facts_recorded", "coverage_recorded", "promoted", "recorded"]
    assert "fact_recorded" in history
    assert (a.green_at or 0) <= (a.recorded_at or 0)
    assert await kinds(trunk, 2) == [EventType.STARTED, EventType.RECORDED]


@pytest.mark.spec("V136")
async def test_a_failure_becomes_a_broken_fact_and_promotes_nothing(trunk: Trunk) -> None:
    await trunk.report("A")
    a = await trunk.fails("A")
    fact = await trunk.store.fact(trunk.queue, "A")
    assert fact is not None
    assert (fact.degree, a.green_at) == (1, None)
    assert trunk.source.asked["promote"] == 0
    assert await kinds(trunk, 2) == [EventType.STARTED, EventType.RECORDED]


async def test_a_cancelled_build_has_no_fact_and_says_so_itself(trunk: Trunk) -> None:
    """V137 but for coverage."""
    await trunk.report("A")
    await trunk.build_ends("A", "cancelled")
    a = await trunk.is_in("A", State.CANCELLED)
    assert (a.cause, a.recorded_at) == (Cause.BUILD_CANCELLED, None)
    assert await kinds(trunk, 2) == [EventType.STARTED, EventType.CANCELLED]
    assert await trunk.store.fact(trunk.queue, "A") is None
    await trunk.drive(1)
    assert (await trunk.request("A")).recorded_at is None


async def test_failing_closed_has_no_fact_and_says_abandoned(trunk: Trunk) -> None:
    """V138 but for coverage."""
    trunk.runner.fail("trigger", Refused("422: no such pipeline"))
    await trunk.report("A")
    a = await trunk.is_in("A", State.FAILED)
    assert a.cause is Cause.TRIGGER_FAILED
    assert await kinds(trunk, 2) == [EventType.STARTED, EventType.ABANDONED]
    assert await trunk.is_green("A") is Exit.UNKNOWN
    assert (await trunk.request("A")).recorded_at is None


@pytest.mark.spec("V139")
@pytest.mark.parametrize("ending", ["superseded", "cancelled", "failed closed"])
async def test_record_of_a_request_without_a_verdict_says_nothing(
    trunk: Trunk, ending: str
) -> None:
    uri = await _ended_without_a_verdict(trunk, ending)
    request = await trunk.request(uri)
    await asyncio.sleep(0.3)
    history, heard = await trunk.history(request.number), trunk.sink.calls
    await trunk.record(request.number)
    assert await trunk.history(request.number) == history
    assert await trunk.store.fact(trunk.queue, uri) is None
    assert trunk.sink.calls == heard
    assert (await trunk.request(uri)).recorded_at is None


async def _ended_without_a_verdict(trunk: Trunk, ending: str) -> str:
    if ending == "superseded":
        await trunk.report("A", "B", "C")
        return "B"
    if ending == "failed closed":
        trunk.runner.fail("trigger", Refused("no"))
    await trunk.report("A")
    if ending == "cancelled":
        await trunk.build_ends("A", "cancelled")
    await trunk.is_in("A", State.CANCELLED if ending == "cancelled" else State.FAILED)
    return "A"


@pytest.mark.spec("V140")
async def test_record_of_a_request_that_goes_on_is_an_invariant_error(trunk: Trunk) -> None:
    await trunk.report("A")
    await trunk.is_in("A", State.PROCESSING)
    await trunk.record(1)
    (letter,) = await trunk.store.dead_letters(trunk.queue)
    assert (letter.kind, letter.subject) == ("record", "1")
    assert "processing at record" in letter.detail
    assert (await trunk.request("A")).state is State.PROCESSING
    assert await trunk.store.fact(trunk.queue, "A") is None


@pytest.mark.spec("V141", "V154")
async def test_a_record_that_is_repeated_finds_what_stands(trunk: Trunk) -> None:
    await green(trunk, "A")
    fact, ids = await trunk.store.fact(trunk.queue, "A"), trunk.sink.ids
    history = await trunk.history(1)
    await kinds(trunk, 2)
    ids = trunk.sink.ids
    await trunk.record(1)
    assert await trunk.store.fact(trunk.queue, "A") == fact
    assert await trunk.history(1) == history
    assert trunk.source.asked["promote"] == 2
    assert trunk.source.pushes == ["A"]
    assert trunk.sink.ids == ids


@pytest.mark.spec("V145", "V153")
async def test_an_older_green_recorded_later_moves_nothing_back(trunk: Trunk) -> None:
    await trunk.report("A", "B")
    trunk.source.before_push = _out
    await trunk.build_ends("A", "succeeded")
    await trunk.is_in("B", State.PROCESSING)
    await trunk.build_ends("B", "succeeded")
    await trunk.is_in("B", State.SUCCEEDED)
    await trunk.until(lambda: _green_at(trunk, "B"))
    trunk.source.before_push = lambda: None
    await trunk.recorded("A")
    await trunk.recorded("B")
    assert trunk.source.pushes == ["B"]
    assert await trunk.last_green() == (2, "B")
    assert await trunk.is_green("A") is Exit.GREEN
    recorded = [n for kind, n in trunk.events() if kind is EventType.RECORDED]
    await kinds(trunk, 4)
    recorded = [n for kind, n in trunk.events() if kind is EventType.RECORDED]
    assert sorted(recorded) == [1, 2]


def _out() -> None:
    raise SourceControlOut("no answer")


async def _green_at(trunk: Trunk, uri: str) -> bool:
    return (await trunk.request(uri)).green_at is not None


@pytest.mark.spec("V146")
async def test_a_fact_belongs_to_its_queue(trunk: Trunk) -> None:
    await green(trunk, "A")
    assert await trunk.store.fact("another/queue", "A") is None


@pytest.mark.spec("V151")
async def test_record_writes_no_state_and_no_cause(trunk: Trunk) -> None:
    await trunk.report("A")
    trunk.source.before_push = _out
    await trunk.build_ends("A", "succeeded")
    a = await trunk.is_in("A", State.SUCCEEDED)
    green_before = await trunk.last_green()
    trunk.source.before_push = lambda: None
    done = await trunk.recorded("A")
    assert (done.state, done.cause, done.ended_at) == (a.state, a.cause, a.ended_at)
    assert await trunk.last_green() == green_before


@pytest.mark.spec("V152", "V164")
async def test_the_ref_is_there_when_the_event_arrives(trunk: Trunk) -> None:
    seen: list[tuple[str | None, tuple[int, str] | None]] = []

    async def read(event: HookEvent) -> None:
        if event.type is EventType.RECORDED:
            seen.append((trunk.source.promotion, await trunk.last_green()))

    trunk.sink.reads = read
    await green(trunk, "A")
    await green(trunk, "B")
    await kinds(trunk, 4)
    assert seen == [("A", (1, "A")), ("B", (2, "B"))]


@pytest.mark.spec("V155", "V373")
async def test_a_slow_promoter_never_moves_the_ref_back(trunk: Trunk) -> None:
    await green(trunk, "A")
    raced: list[str] = []

    def race() -> None:
        if not raced:
            raced.append("C")
            trunk.source.land("C")
            trunk.source.promotion = "C"

    await trunk.report("B")
    trunk.source.before_push = race
    await trunk.succeeds("B")
    assert raced == ["C"]
    assert trunk.source.promotion == "B"  # the holder: nobody here promoted C
    assert trunk.source.asked["promote"] >= 3


@pytest.mark.spec("V156")
async def test_a_ref_that_a_hand_moved_is_set_to_the_holder(trunk: Trunk) -> None:
    await green(trunk, "A")
    moved: list[bool] = []

    def by_hand() -> None:
        if not moved:
            moved.append(True)
            trunk.source.promotion = "elsewhere"

    await trunk.report("B")
    trunk.source.before_push = by_hand
    await trunk.succeeds("B")
    assert (moved, trunk.source.promotion) == ([True], "B")


@pytest.mark.spec("V157")
async def test_a_holder_that_left_the_ref_is_left_out_until_the_next_green(trunk: Trunk) -> None:
    await green(trunk, "A")
    await trunk.report("B")
    trunk.source.rewrite("A", "X")
    b = await trunk.succeeds("B")
    assert b.green_at is not None
    left = [r for r in await trunk.store.history(trunk.queue, 2) if r.kind == "promotion_left_out"]
    assert left[0].detail.startswith("not_on_ref")
    assert trunk.source.promotion == "A"
    assert await trunk.last_green() == (2, "B")
    assert trunk.source.asked["promote"] == 2
    await trunk.look()
    await trunk.succeeds("X")
    assert trunk.source.promotion == "X"


@pytest.mark.spec("V159")
async def test_a_protected_ref_is_told_and_the_event_goes_out(trunk: Trunk) -> None:
    trunk.source.protected = "GH006: protected branch"
    await green(trunk, "A")
    letters = await trunk.store.dead_letters(trunk.queue)
    assert [(d.kind, d.detail) for d in letters] == [("promotion", "GH006: protected branch")]
    assert trunk.source.asked["promote"] == 1
    assert EventType.RECORDED in await kinds(trunk, 2)


@pytest.mark.spec("V160")
async def test_without_a_promotion_ref_there_is_nothing_to_do(trunk: Trunk) -> None:
    trunk.set(promote=None)
    await green(trunk, "A")
    assert trunk.source.asked["promote"] == 0
    assert await trunk.store.dead_letters(trunk.queue) == []


@pytest.mark.spec("V374")
async def test_a_lease_that_fits_again_does_not_leave_the_ref_at_the_wrong_commit(
    trunk: Trunk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B's push is under way while a rewind to A is believed: the ref is at A, as the lease says."""
    await green(trunk, "A")
    await trunk.report("B")
    promote = trunk.source.promote
    paused: list[str | None] = []

    async def paused_once(uri: str, expected: str | None) -> Promoted:
        if uri != "B" or paused:
            return await promote(uri, expected)
        paused.append(expected)
        trunk.source.rewrite("A")
        await trunk.look()
        await trunk.recorded("A")
        assert trunk.source.promotion == expected == "A"
        trunk.source.promotion = "B"
        return Promoted.MOVED

    monkeypatch.setattr(trunk.source, "promote", paused_once)
    await trunk.build_ends("B", "succeeded")
    await trunk.recorded("B")
    assert paused == ["A"]
    assert trunk.source.promotion == "A"
    assert (await trunk.request("A")).cause is Cause.ADOPTED_FACT
    state = await trunk.state()
    assert state.holder and (state.holder.number, state.holder.uri) == (3, "A")


@pytest.mark.spec("V185")
async def test_a_green_commit_that_is_head_again_is_adopted_without_a_build(trunk: Trunk) -> None:
    await green(trunk, "A")
    await green(trunk, "B")
    trunk.source.rewrite("A")
    await trunk.look()
    a = await trunk.recorded("A")
    assert (a.number, a.state, a.cause) == (3, State.SUCCEEDED, Cause.ADOPTED_FACT)
    assert (a.strategy, a.admitted_at, a.green_at) == (None, None, a.ended_at)
    assert await trunk.last_green() == (3, "A")
    state = await trunk.state()
    assert state.holder and state.holder.number == 3
    assert trunk.source.promotion == "A"
    fact = await trunk.store.fact(trunk.queue, "A")
    assert fact and fact.request == 1
    assert len(trunk.runner.triggers) == 2
    await kinds(trunk, 5)
    assert [kind for kind, number in trunk.events() if number == 3] == [EventType.RECORDED]


@pytest.mark.spec("V283")
async def test_a_ref_that_goes_back_and_forth_ends_where_it_is(trunk: Trunk) -> None:
    await green(trunk, "A")
    await green(trunk, "B")
    for number, uri in ((3, "A"), (4, "B")):
        trunk.source.tip = uri
        await trunk.look()
        assert (await trunk.recorded(uri)).number == number
    assert len(trunk.runner.triggers) == 2
    assert await trunk.last_green() == (4, "B")
    assert trunk.source.promotion == "B"


@pytest.mark.spec("V187")
async def test_a_commit_under_way_that_is_head_again_is_built_once(trunk: Trunk) -> None:
    await trunk.report("A", "B")
    trunk.source.tip = "A"
    await trunk.look()
    assert await trunk.states() == "A pro, B sup, A acc"
    trunk.source.before_push = _out
    await trunk.runner.finish("A", "succeeded")

    async def settled() -> bool:
        return (await trunk.store.request(trunk.queue, 1)).state is State.SUCCEEDED

    await trunk.until(settled)
    trunk.source.before_push = lambda: None

    async def adopted() -> bool:
        return (await trunk.store.request(trunk.queue, 3)).recorded_at is not None

    await trunk.until(adopted)
    third = await trunk.store.request(trunk.queue, 3)
    assert third.cause is Cause.ADOPTED_FACT
    assert len(trunk.runner.triggers) == 1


@pytest.mark.spec("V290")
async def test_workflows_carry_what_an_operator_searches_for(trunk: Trunk) -> None:
    await trunk.report("A")
    await trunk.is_in("A", State.PROCESSING)
    query = f"LastgreenUri = 'A' AND LastgreenQueue = '{trunk.queue}'"

    async def found() -> bool:
        return len([w async for w in trunk.client.list_workflows(query)]) == 2

    await trunk.until(found)
    for workflow in [w async for w in trunk.client.list_workflows(query)]:
        attributes = workflow.search_attributes
        assert attributes["LastgreenRequest"] == [f"request/{trunk.queue}/1"]
        assert attributes["LastgreenState"] == ["processing"]
        metadata = await trunk.client.get_workflow_handle(workflow.id).query(
            "__temporal_workflow_metadata"
        )
        assert metadata.current_details
    await trunk.succeeds("A")

    async def ended() -> bool:
        ended_query = f"{query} AND LastgreenState = 'succeeded'"
        return len([w async for w in trunk.client.list_workflows(ended_query)]) == 2

    await trunk.until(ended)
