"""More than one at a time: a base is pinned, last green moves by ingest order alone."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from temporalio.client import Client

from domain.act import Verb
from domain.build import Status
from domain.errors import Misconfigured
from domain.event import EventType
from domain.fact import BROKEN, GREEN, Exit, Require
from domain.gate import Ancestry
from domain.request import State, Strategy
from tests.trunk import Trunk, running_trunk


@pytest_asyncio.fixture
async def two(client: Client, tmp_path: Path) -> AsyncIterator[Trunk]:
    async with running_trunk(client, tmp_path, max_concurrent=2) as trunk:
        yield trunk


@pytest_asyncio.fixture
async def three(client: Client, tmp_path: Path) -> AsyncIterator[Trunk]:
    async with running_trunk(client, tmp_path, max_concurrent=3) as trunk:
        yield trunk


async def flying(trunk: Trunk, *uris: str) -> None:
    """Landed and reported one after another, each with a build."""
    for uri in uris:
        await trunk.report(uri)
        await trunk.is_in(uri, State.PROCESSING)


async def base(trunk: Trunk, uri: str) -> tuple[Strategy | None, str | None]:
    request = await trunk.request(uri)
    return request.strategy, request.base_uri


@pytest.mark.spec("V190")
async def test_while_slots_are_free_every_head_is_admitted_at_once(two: Trunk) -> None:
    await flying(two, "A", "B")
    assert await two.states() == "A pro, B pro"
    assert await base(two, "A") == await base(two, "B") == (Strategy.FULL, None)


@pytest.mark.spec("V191", "V192")
async def test_a_base_is_pinned_at_admit_and_a_verdict_on_an_older_base_counts(two: Trunk) -> None:
    await two.report("A")
    await two.succeeds("A")
    await flying(two, "B", "C")
    await two.succeeds("B")
    assert await two.last_green() == (2, "B")
    assert await base(two, "C") == (Strategy.INCREMENTAL, "A")
    await two.succeeds("C")
    assert await two.last_green() == (3, "C")
    assert two.source.promotion == "C"


@pytest.mark.spec("V193")
async def test_a_late_green_is_recorded_and_moves_nothing_back(two: Trunk) -> None:
    await flying(two, "B", "C")
    await two.succeeds("C")
    await two.succeeds("B")
    assert await two.covered("B") == (1, GREEN)
    assert await two.is_green("B") is Exit.GREEN
    await two.until(lambda: _heard(two, EventType.RECORDED, 1))
    assert await two.last_green() == (2, "C")
    assert two.source.promotion == "C"


async def _heard(trunk: Trunk, kind: EventType, number: int) -> bool:
    return (kind, number) in trunk.events()


@pytest.mark.spec("V194")
@pytest.mark.parametrize("first", ["B", "C"])
async def test_a_green_head_beside_a_broken_one_in_either_order(two: Trunk, first: str) -> None:
    await flying(two, "B", "C")
    for uri in (first, "C" if first == "B" else "B"):
        await (two.succeeds(uri) if uri == "C" else two.fails(uri))
    assert [await two.is_green(uri) for uri in "BC"] == [Exit.BROKEN, Exit.GREEN]
    assert await two.last_green() == (2, "C")
    for number in (1, 2):
        await two.until(lambda number=number: _heard(two, EventType.RECORDED, number))  # type: ignore[misc]


@pytest.mark.spec("V195", "V196")
async def test_the_latest_n_heads_are_kept_and_admitted_in_ingest_order(two: Trunk) -> None:
    await flying(two, "A", "B")
    await two.report("C", "D", "E")
    assert await two.states() == "A pro, B pro, C sup, D acc, E acc"
    await two.fails("A")
    await two.is_in("D", State.PROCESSING)
    await two.report("F")
    assert await two.states() == "A fai, B pro, C sup, D pro, E acc, F acc"
    await two.fails("B")
    await two.is_in("E", State.PROCESSING)
    await two.report("G", "H")
    assert (await two.states()).endswith("D pro, E pro, F sup, G acc, H acc")


@pytest.mark.spec("V195")
async def test_with_three_slots_three_heads_are_kept(three: Trunk) -> None:
    await flying(three, "X", "Y", "Z")
    await three.report("C", "D", "E")
    assert (await three.states()).endswith("C acc, D acc, E acc")
    await three.report("F")
    assert (await three.states()).endswith("C sup, D acc, E acc, F acc")


@pytest.mark.spec("V197", "V198")
async def test_after_a_rewrite_the_new_line_waits_until_nothing_of_the_old_one_is_in_flight(
    three: Trunk,
) -> None:
    await flying(three, "A", "B")
    three.source.rewrite(None, "X")
    await three.look()
    await three.report("Y")
    await three.stays("A pro, B pro, X acc, Y acc")
    await three.fails("A")
    await three.stays("A fai, B pro, X acc, Y acc")
    assert "until nothing is in flight that it is not on top of" in await three.details()
    await three.fails("B")
    await three.is_in("Y", State.PROCESSING)
    assert await base(three, "X") == (Strategy.FULL, None)
    x, b = await three.request("X"), await three.request("B")
    assert (x.admitted_at or 0) >= (b.ended_at or 0)
    assert await three.states() == "A fai, B fai, X pro, Y pro"


@pytest.mark.spec("V199")
@pytest.mark.parametrize("rewound", [True, False])
async def test_a_rewrite_supersedes_every_waiting_head(three: Trunk, *, rewound: bool) -> None:
    await flying(three, "A", "B", "Z")
    await three.report("C", "D")
    if rewound:
        three.source.tip = "Z"
    else:
        three.source.rewrite("B", "X")
    await three.look()
    assert (await three.states()).startswith("A pro, B pro, Z pro, C sup, D sup, ")


@pytest.mark.spec("V200")
async def test_unknown_ancestry_waits_until_nothing_is_in_flight(
    two: Trunk, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def unknown(*_: str) -> Ancestry:
        return Ancestry.UNKNOWN

    await flying(two, "A")
    monkeypatch.setattr(two.source, "is_ancestor", unknown)
    await two.report("B")
    await two.stays("A pro, B acc")
    await two.fails("A")
    await two.is_in("B", State.PROCESSING)


@pytest.mark.spec("V201")
async def test_an_older_commit_that_is_retried_waits_until_nothing_is_in_flight(
    two: Trunk,
) -> None:
    await two.report("A")
    await two.fails("A")
    await flying(two, "C")
    await two.act(Verb.RETRY, 1)
    await two.stays("A fai, C pro, A acc")
    await two.fails("C")
    await two.is_in("A", State.PROCESSING)


@pytest.mark.spec("V202")
async def test_one_that_fails_closed_frees_its_own_slot_alone(three: Trunk) -> None:
    await flying(three, "A", "B", "C")
    for number in (1, 2, 3):
        await three.tells(number, "build_running")
    three.runner.fail("status", Misconfigured("can never end"), 1)
    build = three.runner.build_of("B")
    await three.client.get_workflow_handle(build.order.wake).signal("news")
    await three.is_in("B", State.FAILED)
    assert await three.states() == "A pro, B fai, C pro"
    await three.succeeds("A")
    await three.succeeds("C")
    assert await three.last_green() == (3, "C")


@pytest.mark.spec("V204")
async def test_two_greens_before_either_record_move_the_ref_forward_only(two: Trunk) -> None:
    await flying(two, "B", "C")
    two.source.answering.clear()
    for uri in ("B", "C"):
        await two.build_ends(uri, "succeeded")
        await two.is_in(uri, State.SUCCEEDED)
    two.source.answering.set()
    await two.recorded("B")
    await two.recorded("C")
    assert two.source.pushes in (["C"], ["B", "C"])


@pytest.mark.spec("V205")
async def test_a_lowered_cap_supersedes_what_is_left_over(three: Trunk) -> None:
    await flying(three, "X", "Y", "Z")
    await three.report("C", "D", "E")
    three.set(max_concurrent=1)
    await three.poke()
    await three.act(Verb.RESUME)
    await three.is_in("D", State.SUPERSEDED)
    assert (await three.states()).endswith("C sup, D sup, E acc")
    for uri in "XY":
        await three.fails(uri)
        assert (await three.request("E")).state is State.ACCEPTED
    await three.fails("Z")
    await three.is_in("E", State.PROCESSING)


@pytest.mark.spec("V351")
async def test_two_at_a_time(two: Trunk) -> None:
    await flying(two, "A", "B")
    assert await base(two, "A") == await base(two, "B") == (Strategy.FULL, None)
    await two.report("C", "D", "E")
    assert await two.states() == "A pro, B pro, C sup, D acc, E acc"
    await two.succeeds("B")
    await two.is_in("D", State.PROCESSING)
    assert (await base(two, "D"), await two.last_green()) == (
        (Strategy.INCREMENTAL, "B"),
        (2, "B"),
    )
    await two.succeeds("A")
    await two.is_in("E", State.PROCESSING)
    assert (await base(two, "E"), await two.last_green()) == (
        (Strategy.INCREMENTAL, "B"),
        (2, "B"),
    )
    await two.fails("D")
    covered = [await two.covered(uri) for uri in "CD"]
    assert covered == [(4, BROKEN)] * 2
    await flying(two, "F")
    assert await two.states() == "A suc, B suc, C sup, D fai, E pro, F pro"
    assert await base(two, "F") == (Strategy.INCREMENTAL, "B")
    await two.succeeds("E")
    assert await two.last_green() == (5, "E")
    await two.succeeds("F")
    assert await two.states() == "A suc, B suc, C sup, D fai, E suc, F suc"
    assert (await two.state()).in_flight == ()
    assert await two.last_green() == (6, "F")
    assert two.source.pushes == ["B", "E", "F"]
    assert [await two.is_green(uri) for uri in "ABDEF"] == [
        Exit.GREEN,
        Exit.GREEN,
        Exit.BROKEN,
        Exit.GREEN,
        Exit.GREEN,
    ]
    assert [await two.covered(uri) for uri in "CD"] == [(5, GREEN)] * 2
    assert await two.is_green("C") is Exit.UNKNOWN
    assert await two.is_green("C", Require.COVERED) is Exit.GREEN
    assert await two.is_green("D", Require.COVERED) is Exit.BROKEN
    builds = [await two.store.builds(two.queue, number) for number in (1, 2, 4, 5, 6)]
    assert all(b.status is not Status.RUNNING for each in builds for b in each)
