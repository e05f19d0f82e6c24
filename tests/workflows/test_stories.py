"""The worked examples, step by step, with fakes for what is outside."""

from __future__ import annotations

import pytest

from domain.event import EventType
from domain.fact import Exit
from domain.request import Cause, State, Strategy
from tests.trunk import Trunk


def ids_of(trunk: Trunk, *numbers: int) -> list[str]:
    return [f"request/{trunk.queue}/{number}" for number in numbers]


async def test_one_at_a_time_the_backlog_collapses_to_the_newest(trunk: Trunk) -> None:
    """V348 but for its coverage."""
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


async def _heard(trunk: Trunk, count: int) -> bool:
    return len(trunk.events()) >= count


async def test_a_waiting_head_that_is_overtaken_never_gets_a_slot(trunk: Trunk) -> None:
    """V349 but for its coverage."""
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
    assert "admitted" not in await trunk.history(4)


async def test_a_broken_head_moves_nothing_and_its_repair_is_built_in_full(trunk: Trunk) -> None:
    """V350 but for its coverage."""
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
