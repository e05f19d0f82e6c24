"""The worked examples, step by step, with fakes for what is outside."""

from __future__ import annotations

import pytest

from domain.event import EventType
from domain.fact import GREEN, Exit, Require
from domain.request import Cause, State, Strategy
from tests.trunk import Trunk


def ids_of(trunk: Trunk, *numbers: int) -> list[str]:
    return [f"request/{trunk.queue}/{number}" for number in numbers]


@pytest.mark.spec("V348")
async def test_one_at_a_time_the_backlog_collapses_to_the_newest(trunk: Trunk) -> None:
    assert await trunk.report("A") == ids_of(trunk, 1)
    a = await trunk.is_in("A", State.PROCESSING)
    assert (a.strategy, a.base_uri) == (Strategy.FULL, None)

    assert await trunk.report("B", "C", "D") == ids_of(trunk, 2, 3, 4)
    assert await trunk.states() == "A pro, B sup, C sup, D acc"
    state = await trunk.state()
    assert (len(state.in_flight), state.latest and state.latest.number) == (1, 4)

    await trunk.succeeds("A")
    d = await trunk.is_in("D", State.PROCESSING)
    assert await trunk.states() == "A suc, B sup, C sup, D pro"
    assert (d.strategy, d.base_uri) == (Strategy.INCREMENTAL, "A")
    assert await trunk.last_green() == (1, "A")

    await trunk.report("E", "F")
    assert await trunk.states() == "A suc, B sup, C sup, D pro, E sup, F acc"
    assert await trunk.last_green() == (1, "A")

    await trunk.succeeds("D")
    f = await trunk.is_in("F", State.PROCESSING)
    assert f.base_uri == "D"
    assert await trunk.last_green() == (4, "D")

    await trunk.succeeds("F")
    assert await trunk.states() == "A suc, B sup, C sup, D suc, E sup, F suc"
    assert await trunk.last_green() == (6, "F")
    assert (await trunk.state()).in_flight == ()

    assert [order.head_uri for order in trunk.runner.triggers] == ["A", "D", "F"]
    assert trunk.source.pushes == ["A", "D", "F"]
    started, recorded = EventType.STARTED, EventType.RECORDED
    await trunk.until(lambda: _heard(trunk, 6))
    assert sorted(trunk.events()) == sorted((t, n) for n in (1, 4, 6) for t in (started, recorded))
    assert [await trunk.is_green(uri) for uri in "ADF"] == [Exit.GREEN] * 3
    assert [await trunk.is_green(uri) for uri in "BCE"] == [Exit.UNKNOWN] * 3
    assert [await trunk.covered(uri) for uri in "BCDEF"] == [(4, GREEN)] * 3 + [(6, GREEN)] * 2
    assert [await trunk.is_green(uri, Require.COVERED) for uri in "BCE"] == [Exit.GREEN] * 3
    freed = [(await trunk.request(a), await trunk.request(b)) for a, b in ("AD", "DF")]
    wait = trunk.config.get(trunk.queue).gate_wait * 1000
    assert all((b.admitted_at or 0) - (a.ended_at or 0) <= wait for a, b in freed)


async def _heard(trunk: Trunk, count: int) -> bool:
    return len(trunk.events()) >= count


@pytest.mark.spec("V349")
async def test_a_waiting_head_that_is_overtaken_never_gets_a_slot(trunk: Trunk) -> None:
    await trunk.report("A", "B", "C")
    assert await trunk.states() == "A pro, B sup, C acc"
    await trunk.report("D")
    assert await trunk.states() == "A pro, B sup, C sup, D acc"
    await trunk.report("E", "F")
    assert await trunk.states() == "A pro, B sup, C sup, D sup, E sup, F acc"
    await trunk.succeeds("A")
    f = await trunk.is_in("F", State.PROCESSING)
    assert f.base_uri == "A"
    await trunk.succeeds("F")
    assert await trunk.states() == "A suc, B sup, C sup, D sup, E sup, F suc"
    assert [order.head_uri for order in trunk.runner.triggers] == ["A", "F"]
    assert trunk.source.pushes == ["A", "F"]
    assert [await trunk.is_green(uri) for uri in "AF"] == [Exit.GREEN] * 2
    assert [await trunk.is_green(uri) for uri in "BCDE"] == [Exit.UNKNOWN] * 4
    assert [await trunk.covered(uri) for uri in "BCDEF"] == [(6, GREEN)] * 5
    assert [await trunk.is_green(uri, Require.COVERED) for uri in "BCDE"] == [Exit.GREEN] * 4
    assert "admitted" not in await trunk.history(4)


@pytest.mark.spec("V350")
async def test_a_broken_head_moves_nothing_and_its_repair_is_built_in_full(trunk: Trunk) -> None:
    await trunk.report("A", "B", "C", "D")
    a = await trunk.fails("A")
    assert (a.state, a.cause) == (State.FAILED, Cause.BUILD_FAILED)
    assert await trunk.last_green() is None
    d = await trunk.is_in("D", State.PROCESSING)
    assert (d.strategy, d.base_uri) == (Strategy.FULL, None)
    await trunk.report("E", "F")
    await trunk.succeeds("D")
    f = await trunk.is_in("F", State.PROCESSING)
    assert f.base_uri == "D"
    await trunk.succeeds("F")
    facts = [await trunk.store.fact(trunk.queue, uri) for uri in "ADF"]
    assert [fact and fact.degree for fact in facts] == [1, 0, 0]
    assert trunk.source.pushes == ["D", "F"]
    assert [await trunk.is_green(uri) for uri in "AFB"] == [Exit.BROKEN, Exit.GREEN, Exit.UNKNOWN]
    assert await trunk.covered("B") == (4, GREEN)
    covered = [await trunk.is_green(uri, Require.COVERED) for uri in "ABF"]
    assert covered == [Exit.BROKEN, Exit.GREEN, Exit.GREEN]


@pytest.mark.spec("V278", "V277", "V132")
async def test_a_rewrite_during_a_build_is_built_in_full_after_it(trunk: Trunk) -> None:
    """V352 with fakes."""
    await trunk.report("A")
    await trunk.succeeds("A")
    await trunk.report("B")
    await trunk.is_in("B", State.PROCESSING)
    trunk.source.rewrite("A", "X")
    await trunk.report("X")
    assert await trunk.states() == "A suc, B pro, X acc"
    assert trunk.source.asked["latest"] >= 2

    b = await trunk.succeeds("B")
    assert await trunk.last_green() == (2, "B")
    assert "promotion_left_out" in await trunk.history(2)
    assert b.green_at is not None
    assert trunk.runner.cancelled == []
    assert trunk.source.promotion == "A"
    state = await trunk.state()
    assert state.holder and state.holder.uri == "B"

    x = await trunk.is_in("X", State.PROCESSING)
    assert (x.strategy, x.base_uri) == (Strategy.FULL, None)
    await trunk.succeeds("X")
    assert await trunk.last_green() == (3, "X")
    state = await trunk.state()
    assert state.holder and state.holder.uri == "X"
    assert trunk.source.promotion == "X"


@pytest.mark.spec("V353")
async def test_a_rewind_and_the_return_adopt_what_is_known(trunk: Trunk) -> None:
    for uri in "AB":
        await trunk.report(uri)
        await trunk.succeeds(uri)
    for number, uri in ((3, "A"), (4, "B")):
        looks = trunk.source.asked["latest"]
        trunk.source.tip = uri
        await trunk.look()
        assert trunk.source.asked["latest"] == looks + 2
        adopted = await trunk.recorded(uri)
        assert (adopted.number, adopted.cause) == (number, Cause.ADOPTED_FACT)
        assert await trunk.last_green() == (number, uri)
        state = await trunk.state()
        assert state.holder and state.holder.number == number
        assert trunk.source.promotion == uri
    assert len(trunk.runner.builds) == 2
    await trunk.until(lambda: _heard(trunk, 6))
    started = [(EventType.STARTED, number) for number in (1, 2)]
    recorded = [(EventType.RECORDED, number) for number in (1, 2, 3, 4)]
    assert sorted(trunk.events()) == sorted(started + recorded)
