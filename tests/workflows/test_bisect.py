"""The search for what broke a red range: one probe at a time, after all others."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from itertools import pairwise
from pathlib import Path

import pytest
import pytest_asyncio
from temporalio.client import Client

from domain.act import Verb
from domain.errors import Refused
from domain.event import EventType
from domain.fact import GREEN
from domain.request import Cause, Origin, State, Strategy
from stores.ranges import Bisection, Searching
from stores.rows import Request
from tests.trunk import Trunk, running_trunk
from workflows import ids

LINE = [f"c{number}" for number in range(1, 9)]


@pytest_asyncio.fixture
async def auto(client: Client, tmp_path: Path) -> AsyncIterator[Trunk]:
    async with running_trunk(client, tmp_path, bisect="auto") as trunk:
        yield trunk


@pytest_asyncio.fixture
async def ask(client: Client, tmp_path: Path) -> AsyncIterator[Trunk]:
    async with running_trunk(client, tmp_path, bisect="ask") as trunk:
        yield trunk


async def red_range(trunk: Trunk, culprit: str, *, line: list[str] = LINE) -> None:
    """A green base, then a red head over the line; builds end by themselves from then on."""
    await trunk.report("base")
    await trunk.succeeds("base")
    for uri in line:
        trunk.source.land(uri)
        bad = line.index(uri) >= line.index(culprit)
        trunk.runner.verdicts[uri] = "failed" if bad else "succeeded"
    await trunk.report(line[-1])
    await trunk.recorded(line[-1])


async def bisection(trunk: Trunk, number: int = 2) -> Bisection:
    found = await trunk.store.bisection(trunk.queue, number)
    assert found is not None
    return found


async def over(trunk: Trunk, number: int = 2) -> Bisection:
    async def is_over() -> bool:
        found = await trunk.store.bisection(trunk.queue, number)
        return found is not None and found.state is not Searching.RUNNING

    await trunk.until(is_over)
    return await bisection(trunk, number)


async def probes(trunk: Trunk) -> list[Request]:
    requests = await trunk.store.requests(trunk.queue, limit=100)
    return [r for r in reversed(requests) if r.origin is Origin.PROBE]


async def _heard(trunk: Trunk, kind: EventType, number: int) -> bool:
    return (kind, number) in trunk.events()


@pytest.mark.spec("V404", "V416")
async def test_a_red_head_is_searched_by_itself_and_its_culprit_is_announced_after_its_end(
    auto: Trunk,
) -> None:
    await red_range(auto, "c5")
    found = await over(auto)
    assert (found.state, found.culprit_uri) == (Searching.FOUND, "c5")
    assert found.detail == "Ada: Change c5"
    assert "culprit_found" in await auto.history(2)
    await auto.until(lambda: _heard(auto, EventType.CULPRIT_FOUND, 2))
    said = [kind for kind, number in auto.events() if number == 2]
    assert said == [EventType.STARTED, EventType.RECORDED, EventType.CULPRIT_FOUND]
    (event,) = [e for e in auto.sink.heard if e.type is EventType.CULPRIT_FOUND]
    assert event.payload == {"queue": auto.queue, "request_id": f"request/{auto.queue}/2"}
    assert [p.uri for p in found.probes] == [p.uri for p in await probes(auto)]


@pytest.mark.spec("V408", "V413")
async def test_probes_are_built_one_by_one_on_the_green_end_and_move_nothing(auto: Trunk) -> None:
    await red_range(auto, "c5")
    before = (await auto.last_green(), auto.source.promotion)
    await over(auto)
    made = await probes(auto)
    assert len(made) <= 3 + 1
    for earlier, later in pairwise(made):
        assert (earlier.ended_at or 0) <= later.accepted_at
    assert {p.strategy for p in made} == {Strategy.INCREMENTAL}
    places = {uri: at for at, uri in enumerate(["base", *LINE])}
    assert all(places[p.base_uri or ""] < places[p.uri] for p in made)
    assert (await auto.last_green(), auto.source.promotion) == before
    green = next(p for p in made if p.state is State.SUCCEEDED)
    assert green.green_at is None
    fact = await auto.store.fact(auto.queue, green.uri)
    assert fact is not None
    assert (fact.degree, await auto.covered(green.uri)) == (GREEN, (green.number, GREEN))
    state = await auto.state()
    assert state.latest
    assert state.holder
    assert (state.latest.number, state.holder.number) == (2, 1)


@pytest.mark.spec("V404")
async def test_off_starts_nothing_and_ask_waits_for_a_person(trunk: Trunk, ask: Trunk) -> None:
    for queue in (trunk, ask):
        await red_range(queue, "c3", line=LINE[:4])
        assert await queue.store.bisection(queue.queue, 2) is None
    with pytest.raises(Refused, match=r"request/.*/1 is not red"):
        await ask.act(Verb.BISECT, 1)
    await ask.act(Verb.BISECT, 2, by="eve")
    assert (await over(ask)).culprit_uri == "c3"
    assert ("bisect_started", "eve") in await ask.audit(2)
    with pytest.raises(Refused, match="same red streak"):
        await ask.act(Verb.BISECT, 2)


@pytest.mark.spec("V404")
async def test_a_full_build_without_any_green_below_cannot_be_searched(ask: Trunk) -> None:
    await ask.report("A")
    await ask.fails("A")
    with pytest.raises(Refused, match="no older commit of its line is green"):
        await ask.act(Verb.BISECT, 1)


@pytest.mark.spec("V404")
async def test_after_a_rewrite_nobody_is_blamed_for_what_lay_below(auto: Trunk) -> None:
    """c1 broke the trunk and was never built, c2 repaired it; then it is c1 and x alone."""
    await auto.report("base")
    await auto.succeeds("base")
    auto.source.land("c1")
    await auto.report("c2")
    await auto.succeeds("c2")
    auto.source.rewrite("c1", "x")
    await auto.look()
    await auto.fails("x")
    number = (await auto.recorded("x")).number
    assert await auto.store.bisection(auto.queue, number) is None
    with pytest.raises(Refused):
        await auto.act(Verb.BISECT, number)


@pytest.mark.spec("V405")
async def test_a_red_verdict_over_one_commit_names_it_without_a_probe(auto: Trunk) -> None:
    await red_range(auto, "c1", line=["c1"])
    found = await over(auto)
    assert (found.culprit_uri, await probes(auto)) == ("c1", [])
    await auto.until(lambda: _heard(auto, EventType.CULPRIT_FOUND, 2))


@pytest.mark.spec("V407")
async def test_a_range_that_facts_decide_is_answered_without_a_build(ask: Trunk) -> None:
    await red_range(ask, "c5")
    for uri in ("c4", "c5"):
        ask.source.tip = uri
        await ask.look()
        await ask.recorded(uri)
    builds = len(ask.runner.builds)
    await ask.act(Verb.BISECT, 2)
    assert (await over(ask)).culprit_uri == "c5"
    assert len(ask.runner.builds) == builds


@pytest.mark.spec("V410")
async def test_a_probe_that_failed_is_confirmed_as_any(client: Client, tmp_path: Path) -> None:
    settings = {"bisect": "auto", "confirm_failures": 1}
    async with running_trunk(client, tmp_path, **settings) as trunk:
        await red_range(trunk, "c3", line=LINE[:4])
        await over(trunk)
        red = [p for p in await probes(trunk) if p.state is State.FAILED]
        assert red
        assert all([len(await trunk.store.builds(trunk.queue, p.number)) == 2 for p in red])


@pytest.mark.spec("V411")
async def test_a_culprit_was_red_twice_and_its_parent_green(auto: Trunk) -> None:
    await red_range(auto, "c6")
    found = await over(auto)
    at = [r for r in await auto.store.attempts(auto.queue, "c6") if r.cause]
    assert [r.cause for r in at].count(Cause.BUILD_FAILED) == 2
    parent = await auto.store.fact(auto.queue, "c5")
    assert parent is not None
    assert (found.culprit_uri, parent.degree) == ("c6", GREEN)


@pytest.mark.spec("V412")
async def test_heads_go_first_and_a_probe_in_flight_is_not_cancelled_for_them(
    client: Client, tmp_path: Path
) -> None:
    async with running_trunk(client, tmp_path, bisect="auto") as trunk:
        await red_range(trunk, "c5")
        trunk.runner.verdicts.clear()  # whatever is built next runs on
        await trunk.until(lambda: _a_probe_flies(trunk))
        await trunk.report("h1")
        (flying,) = (await trunk.state()).in_flight
        assert flying.origin is Origin.PROBE
        trunk.runner.verdicts["h1"] = "succeeded"
        await trunk.runner.finish(flying.uri, "succeeded")
        h1 = await trunk.recorded("h1")
        later = [p for p in await probes(trunk) if p.number > flying.number]
        assert all((p.admitted_at or 2**60) >= (h1.admitted_at or 0) for p in later)


async def _a_probe_flies(trunk: Trunk) -> bool:
    return any(r.origin is Origin.PROBE for r in (await trunk.state()).in_flight)


@pytest.mark.spec("V412")
async def test_with_many_slots_one_probe_at_most_flies_beside_the_heads(
    client: Client, tmp_path: Path
) -> None:
    async with running_trunk(client, tmp_path, bisect="auto", max_concurrent=3) as trunk:
        await red_range(trunk, "c5")
        trunk.runner.verdicts.clear()
        await trunk.until(lambda: _a_probe_flies(trunk))
        await trunk.report("h1")
        await trunk.is_in("h1", State.PROCESSING)
        await trunk.report("h2", "h3")
        origins = [r.origin for r in (await trunk.state()).in_flight]
        assert sorted(origins) == [Origin.HEAD, Origin.HEAD, Origin.PROBE]
        assert len([p for p in await probes(trunk) if not p.state.is_terminal]) == 1


@pytest.mark.spec("V414")
async def test_a_range_in_which_nothing_can_be_built_ends_inconclusive_with_a_dead_letter(
    auto: Trunk,
) -> None:
    await auto.report("base")
    await auto.succeeds("base")
    auto.source.land("c1")
    await auto.report("c2")
    auto.runner.verdicts["c1"] = "cancelled"
    await auto.build_ends("c2", "failed")
    found = await over(auto)
    assert (found.state, found.culprit_uri) == (Searching.INCONCLUSIVE, None)
    assert "(base, c2]" in found.detail
    assert [p.uri for p in await probes(auto)] == ["c1", "c1"]
    (letter,) = await auto.store.dead_letters(auto.queue)
    assert (letter.kind, letter.subject) == ("bisect", "2")
    assert (EventType.CULPRIT_FOUND, 2) not in auto.events()


@pytest.mark.spec("V415")
async def test_a_person_cancels_a_search_and_its_probe(auto: Trunk) -> None:
    await red_range(auto, "c5")
    auto.runner.verdicts.clear()
    await auto.until(lambda: _a_probe_flies(auto))
    facts = [await auto.store.fact(auto.queue, uri) for uri in LINE]
    await auto.act(Verb.CANCEL_BISECT, 2, by="eve")
    assert (await bisection(auto)).state is Searching.CANCELLED
    probe = (await probes(auto))[-1]
    await auto.is_in(probe.uri, State.CANCELLED)
    assert (await auto.request(probe.uri)).cause is Cause.CANCELLED_BY_PERSON
    assert ("bisect_ended", "eve") in await auto.audit(2)
    assert [await auto.store.fact(auto.queue, uri) for uri in LINE] == facts
    with pytest.raises(Refused, match="has ended: cancelled"):
        await auto.act(Verb.CANCEL_BISECT, 2)


@pytest.mark.spec("V417")
async def test_a_search_that_is_ended_by_hand_goes_on_from_its_rows(auto: Trunk) -> None:
    await red_range(auto, "c5")
    for _ in range(4):
        await auto.terminate(ids.bisect(auto.queue, 2))
        await auto.start()
        await auto.handle.signal("drive")
        await asyncio.sleep(0.1)
    found = await over(auto)
    assert found.culprit_uri == "c5"
    built = [p.uri for p in await probes(auto)]
    assert all(built.count(uri) == 1 for uri in set(built) - {"c5"})
    await auto.until(lambda: _heard(auto, EventType.CULPRIT_FOUND, 2))
    assert (await auto.history(2)).count("culprit_found") == 1


@pytest.mark.spec("V418")
async def test_one_search_for_each_red_streak(auto: Trunk) -> None:
    await red_range(auto, "c2", line=LINE[:3])
    await over(auto)
    for uri, verdict, searched in (("d", "failed", False), ("e", "succeeded", False)):
        auto.runner.verdicts[uri] = verdict
        await auto.report(uri)
        number = (await auto.recorded(uri)).number
        assert (await auto.store.bisection(auto.queue, number) is not None) is searched
    auto.runner.verdicts["f"] = "failed"
    await auto.report("f")
    number = (await auto.recorded("f")).number
    assert (await over(auto, number)).culprit_uri == "f"
