"""Verdicts cover ranges, and a cover is not a fact."""

from __future__ import annotations

from pathlib import Path

import pytest
from temporalio.client import Client
from temporalio.common import RetryPolicy

from activities import failures, sourcecontrol
from domain.act import Verb
from domain.errors import NotFound, Refused, SourceControlOut
from domain.fact import BROKEN, GREEN, Exit, Require
from domain.request import State
from tests.trunk import Trunk, running_trunk
from workflows import policies

COVERED = Require.COVERED


async def validated(trunk: Trunk, *uris: str, status: str = "succeeded") -> None:
    for uri in uris:
        await trunk.report(uri)
        await trunk.build_ends(uri, status)
        await trunk.recorded(uri)


async def over(trunk: Trunk, *uris: str, status: str = "succeeded") -> None:
    """Land these and report only the last."""
    for uri in uris:
        trunk.source.land(uri)
    await validated(trunk, uris[-1], status=status)


@pytest.mark.spec("V207")
async def test_a_green_head_covers_what_lies_between_its_base_and_itself(trunk: Trunk) -> None:
    await validated(trunk, "A")
    await over(trunk, "B", "C", "D")
    assert [await trunk.covered(uri) for uri in "ABCD"] == [(1, GREEN), *[(2, GREEN)] * 3]
    assert [await trunk.position(uri) for uri in "BCD"] == [(2, -2), (2, -1), (2, 0)]
    assert "coverage_recorded" in await trunk.history(2)


@pytest.mark.spec("V208")
async def test_a_broken_head_covers_its_range_and_answers_only_where_covers_are_asked_for(
    trunk: Trunk,
) -> None:
    await validated(trunk, "A")
    await over(trunk, "B", "C", "D", status="failed")
    assert [await trunk.covered(uri) for uri in "BCD"] == [(2, BROKEN)] * 3
    assert await trunk.last_green() == (1, "A")
    assert await trunk.is_green("B") is Exit.UNKNOWN
    covers = await trunk.store.covers(trunk.queue, "B")
    assert covers.by is not None
    assert (covers.by.number, covers.by.uri) == (2, "D")
    assert await trunk.is_green("B", COVERED) is Exit.BROKEN


@pytest.mark.spec("V209")
async def test_a_green_verdict_overwrites_what_is_not_green_and_keeps_positions(
    trunk: Trunk,
) -> None:
    await validated(trunk, "A")
    await over(trunk, "B", "C", "D", status="failed")
    before = [await trunk.position(uri) for uri in "BCD"]
    await over(trunk, "E", "F")
    assert [await trunk.covered(uri) for uri in "BCDEF"] == [(3, GREEN)] * 5
    assert [await trunk.position(uri) for uri in "BCD"] == before
    assert [await trunk.is_green("D", require) for require in Require] == [Exit.BROKEN] * 2
    assert await trunk.is_green("B") is Exit.UNKNOWN
    assert await trunk.is_green("B", COVERED) is Exit.GREEN


@pytest.mark.spec("V210", "V378")
async def test_a_verdict_that_is_not_green_stops_at_the_first_covered_commit(
    client: Client, tmp_path: Path
) -> None:
    async with running_trunk(client, tmp_path, max_concurrent=2) as trunk:
        await validated(trunk, "A")
        trunk.source.land("B")
        await trunk.report("C", "D")
        trunk.source.land("E")
        await trunk.fails("C")
        assert [await trunk.covered(uri) for uri in "BC"] == [(2, BROKEN)] * 2
        await trunk.report("E")
        await trunk.succeeds("D")
        assert [await trunk.covered(uri) for uri in "BCD"] == [(3, GREEN)] * 3
        positions = [await trunk.position(uri) for uri in "BCD"]
        await trunk.fails("E")
        assert await trunk.covered("E") == (4, BROKEN)
        assert [await trunk.covered(uri) for uri in "BCD"] == [(3, GREEN)] * 3
        assert [await trunk.position(uri) for uri in "BCD"] == positions
        assert positions == [(2, -1), (2, 0), (3, 0)]


@pytest.mark.spec("V211")
async def test_neighbours_are_the_nearest_green_commits_on_the_line(trunk: Trunk) -> None:
    await validated(trunk, "A")
    for uris in ("BCD", "EF"):
        await over(trunk, *uris)
    asked = dict(trunk.source.asked)

    async def greens(uri: str) -> tuple[str | None, str | None]:
        found = await trunk.store.covers(trunk.queue, uri)
        ends = (found.prior_green, found.next_green)
        return (ends[0].uri if ends[0] else None, ends[1].uri if ends[1] else None)

    assert await greens("B") == ("A", "D")
    assert await greens("E") == ("D", "F")
    assert await greens("D") == ("A", "D")
    assert await greens("A") == (None, "A")
    assert dict(trunk.source.asked) == asked


@pytest.mark.spec("V212")
async def test_a_full_build_covers_what_the_newest_older_green_has_not(trunk: Trunk) -> None:
    await over(trunk, "A", "B")
    assert [await trunk.covered(uri) for uri in "AB"] == [None, (1, GREEN)]
    trunk.source.rewrite("A", "X", "Y")
    await validated(trunk, "Y")
    assert [await trunk.covered(uri) for uri in "XY"] == [(2, GREEN)] * 2


@pytest.mark.spec("V213", "V214")
async def test_any_commit_can_be_asked_about(trunk: Trunk) -> None:
    await validated(trunk, "A")
    await trunk.report("B")
    trunk.source.land("C")  # nobody ever hears of it
    await trunk.report("D", "E")
    assert [await trunk.is_green(uri) for uri in "BDE"] == [
        Exit.PENDING,
        Exit.UNKNOWN,
        Exit.PENDING,
    ]
    await trunk.fails("B")
    await trunk.succeeds("E")
    for uri in "CD":
        covers = await trunk.store.covers(trunk.queue, uri)
        assert covers.by is not None
        assert (covers.by.number, covers.by.uri) == (4, "E")
        assert await trunk.is_green(uri) is Exit.UNKNOWN
        assert await trunk.is_green(uri, COVERED) is Exit.GREEN
    assert (await trunk.request("D")).admitted_at is None
    assert [await trunk.is_green("Q", require) for require in Require] == [Exit.UNKNOWN] * 2


@pytest.mark.spec("V215")
async def test_an_older_green_that_comes_later_lowers_positions_and_nothing_else(
    client: Client, tmp_path: Path
) -> None:
    async with running_trunk(client, tmp_path, max_concurrent=2) as trunk:
        await validated(trunk, "A")
        await trunk.report("B", "C")
        await trunk.succeeds("C")
        assert await trunk.position("B") == (3, -1)
        await trunk.succeeds("B")
        assert await trunk.position("B") == (2, 0)
        assert [await trunk.covered(uri) for uri in "BC"] == [(3, GREEN)] * 2
        covers = await trunk.store.covers(trunk.queue, "C")
        assert covers.prior_green is not None
        assert covers.prior_green.uri == "B"
        assert await trunk.last_green() == (3, "C")


@pytest.mark.spec("V217")
async def test_a_long_range_is_covered_nearest_the_head_and_the_cut_is_told(
    trunk: Trunk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sourcecontrol, "MOST", 25)
    monkeypatch.setattr(sourcecontrol, "PAGE", 10)
    await validated(trunk, "A")
    await over(trunk, *[f"c{number}" for number in range(26)])
    assert await trunk.covered("c0") is None
    assert await trunk.covered("c1") == (2, GREEN)
    assert await trunk.position("c1") == (2, -24)
    told = [r.detail for r in await trunk.store.history(trunk.queue, 2)]
    assert "25 commits, cut there" in told


@pytest.mark.spec("V218", "V137", "V138")
async def test_only_a_verdict_of_a_build_covers(trunk: Trunk) -> None:
    await validated(trunk, "A")
    await trunk.report("B")
    await trunk.build_ends("B", "cancelled")
    await trunk.is_in("B", State.CANCELLED)
    trunk.runner.fail("find", Refused("401"), 1)
    await trunk.report("C")
    await trunk.is_in("C", State.FAILED)
    assert [await trunk.covered(uri) for uri in "BC"] == [None, None]
    assert [await trunk.is_green(uri) for uri in "BC"] == [Exit.UNKNOWN] * 2
    for uri in "BC":
        request = await trunk.request(uri)
        assert (request.green_at, request.recorded_at) == (None, None)
        assert "recorded" not in await trunk.history(request.number)
    trunk.source.tip = "A"
    await trunk.look()
    a = await trunk.recorded("A")
    assert a.green_at
    assert await trunk.position("A") == (1, 0)


@pytest.mark.spec("V219")
async def test_commits_that_are_not_found_leave_the_head_alone_covered(
    trunk: Trunk, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def gone(*_: object, **__: object) -> None:
        raise NotFound("the base is not known here")

    await validated(trunk, "A")
    monkeypatch.setattr(trunk.source, "commits_between", gone)
    await over(trunk, "B", "C")
    assert [await trunk.covered(uri) for uri in "BC"] == [None, (2, GREEN)]
    assert "coverage_missing" in await trunk.history(2)
    assert trunk.source.promotion == "C"


@pytest.mark.spec("V219", "V158")
async def test_what_is_out_for_too_long_is_left_out_and_made_good_by_a_retry(
    trunk: Trunk, monkeypatch: pytest.MonkeyPatch
) -> None:
    often = RetryPolicy(initial_interval=0.05 * policies.SECOND)
    monkeypatch.setitem(policies.SOURCE_CONTROL, "retry_policy", often)
    await validated(trunk, "A")
    trunk.source.land("B")
    await trunk.report("C")
    await trunk.triggered(2)
    trunk.source.out = True
    with monkeypatch.context() as patch:
        patch.setitem(failures.BUDGETS, "publish", (SourceControlOut, 0.3))
        await trunk.succeeds("C")
    letters = await trunk.store.dead_letters(trunk.queue)
    assert sorted(letter.kind for letter in letters) == ["coverage", "promotion"]
    assert "promotion_left_out" in await trunk.history(2)
    assert (await trunk.covered("B"), trunk.source.promotion) == (None, "A")
    trunk.source.out = False
    for letter in letters:
        await trunk.act(Verb.RETRY_LETTER, letter.id)
    await trunk.tells(2, "promoted")
    await trunk.recorded("C")
    assert (await trunk.covered("B"), trunk.source.promotion) == ((2, GREEN), "C")
    assert await trunk.store.dead_letters(trunk.queue) == []


@pytest.mark.spec("V377")
async def test_a_commit_on_top_of_a_broken_one_that_was_never_built_is_covered_not_green(
    trunk: Trunk,
) -> None:
    await validated(trunk, "Z")
    await trunk.report("A", "B", "C", "D")
    assert await trunk.states() == "Z suc, A pro, B sup, C sup, D acc"
    await trunk.fails("A")
    await trunk.succeeds("D")
    assert [await trunk.is_green(uri) for uri in ("A", "B", "D")] == [
        Exit.BROKEN,
        Exit.UNKNOWN,
        Exit.GREEN,
    ]
    covers = await trunk.store.covers(trunk.queue, "B")
    assert covers.by is not None
    assert (covers.by.number, covers.by.uri, covers.fact) == (5, "D", None)
    answers = [await trunk.is_green(uri, COVERED) for uri in ("A", "B", "D")]
    assert answers == [Exit.BROKEN, Exit.GREEN, Exit.GREEN]
    await trunk.act(Verb.RETRY, 3)
    await trunk.fails("B")
    assert [await trunk.is_green("B", require) for require in Require] == [Exit.BROKEN] * 2
    assert await trunk.covered("B") == (5, GREEN)


@pytest.mark.spec("V379")
async def test_neighbours_are_never_sought_across_a_rewrite(trunk: Trunk) -> None:
    await validated(trunk, "A", "B")
    trunk.source.rewrite(None, "X")
    await validated(trunk, "X")
    trunk.source.tip = "A"
    await trunk.look()
    await trunk.recorded("A")
    requests = reversed(await trunk.store.requests(trunk.queue))
    assert [(r.uri, r.line, bool(r.green_at)) for r in requests] == [
        ("A", 1, True),
        ("B", 1, True),
        ("X", 3, True),
        ("A", 4, True),
    ]
    asked = dict(trunk.source.asked)
    b = await trunk.store.covers(trunk.queue, "B")
    x = await trunk.store.covers(trunk.queue, "X")
    assert b.next_green is not None
    assert (b.next_green.uri, x.prior_green) == ("B", None)
    assert dict(trunk.source.asked) == asked
