"""Transactions that meet: what one decides on is read under the queue's lock."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any, Final

import pytest
import sqlalchemy as sa

from domain.errors import Fenced
from domain.gate import Ancestry, Hold, Reason, Seen
from domain.request import Cause, State, Strategy, Transition
from stores import tables as t
from stores.engine import begin
from stores.rows import Answer, Failure, Follows, Stamp, Turned
from stores.transaction import move, transaction
from tests.stores.faults import Meeting
from tests.stores.story import NOW, Rows, Story

Act = Callable[[Story], Coroutine[Any, Any, Any]]
QUEUES: Final = itertools.count()


def stamp(story: Story) -> Stamp:
    """Of one moment, later than whatever prepared for it."""
    return Stamp(story.fence, story.queue, NOW + 10_000)


def a_look_that_saw(uri: str) -> Act:
    async def act(story: Story) -> Any:
        seen = Seen(uri, None, "A", Ancestry.YES, named_before=False)
        return await story.store.ingest(stamp(story), seen, story.settings)

    return act


def an_answer(said: str) -> Act:
    async def act(story: Story) -> Any:
        return await story.store.observe(stamp(story), Answer(1, 1, said), story.settings)

    return act


async def a_turn(story: Story) -> Any:
    known = {("A", "B"): Ancestry.YES}
    return await story.store.turn(stamp(story), story.settings, known)


async def a_failing_closed(story: Story) -> Any:
    failure = Failure(1, Cause.POLLING_EXHAUSTED, "no such build")
    return await story.store.fail(stamp(story), failure, story.settings)


async def a_cancel(story: Story) -> Any:
    async with transaction(story.engine, stamp(story), story.settings.hooks) as tx:
        step = Transition(1, State.CANCELLED, tx.at, Cause.CANCELLED_BY_PERSON)
        return await move(tx, step)


async def a_pause(story: Story) -> Any:
    async with transaction(story.engine, stamp(story)) as tx:
        mine = t.queues.c.name == story.queue
        await tx.connection.execute(sa.update(t.queues).where(mine).values(paused_reason="x"))


async def a_record(story: Story) -> Any:
    return await story.store.facts(stamp(story), 1)


async def waiting(story: Story) -> None:
    await story.report("A")


async def building(story: Story) -> None:
    await story.fly("A")


async def one_waits_beside(story: Story) -> None:
    story.settings = replace(story.settings, max_concurrent=2)
    await story.fly("A")
    await story.report("B")


async def settled(story: Story) -> None:
    await story.fly("A")
    await story.answer(1, "succeeded")


PAIRS: Final[dict[str, tuple[Act, Act, Act]]] = {
    "a late look and a newer head": (waiting, a_look_that_saw("B"), a_look_that_saw("C")),
    "an admit and a newer head": (waiting, a_turn, a_look_that_saw("B")),
    "an admit and a cancel": (waiting, a_turn, a_cancel),
    "an admit and a pause": (waiting, a_turn, a_pause),
    "two admits": (waiting, a_turn, a_turn),
    "a base and last green": (one_waits_beside, a_turn, an_answer("succeeded")),
    "a verdict and a failing closed": (building, an_answer("succeeded"), a_failing_closed),
    "two settles": (building, an_answer("succeeded"), an_answer("failed")),
    "two records": (settled, a_record, a_record),
}


class Worlds:
    """Queues of one store, each prepared alike, driven over two engines."""

    def __init__(self, pair: tuple[Story, Story], prepare: Act) -> None:
        self._pair = pair
        self._prepare = prepare
        self._prepared: tuple[Story, Rows] | None = None

    async def new(self) -> tuple[Story, Story]:
        if self._prepared is None:
            story = self._pair[0].elsewhere(f"world/{next(QUEUES)}")
            await self._prepare(story)
            self._prepared = story, await story.own_rows()
        story, rows = self._prepared
        one = await story.copied(rows, f"world/{next(QUEUES)}")
        other = self._pair[1].elsewhere(one.queue)
        other.settings = one.settings
        one.fence = other.fence = self._pair[0].fence
        return one, other

    async def after(self, *acts: Act) -> Any:
        """What stands when one comes after the other."""
        world, _ = await self.new()
        for act in acts:
            await act(world)
        return await world.own_rows()


@pytest.mark.spec("V296")
@pytest.mark.parametrize("meeting", PAIRS)
async def test_of_two_transactions_the_second_decides_on_what_the_first_left(
    pair: tuple[Story, Story], meeting: str
) -> None:
    prepare, one, other = PAIRS[meeting]
    worlds = Worlds(pair, prepare)
    for first, second in dict.fromkeys(((one, other), (other, one))):
        in_order = await worlds.after(first, second)
        outcomes = [in_order, await worlds.after(second, first)]
        waited, came_so_far, at = 0, True, 0
        while came_so_far:
            at += 1
            here, there = await worlds.new()
            before = (await here.store.queue(here.queue)).version
            met = Meeting(here, at)
            *answers, came_so_far = await met.of(
                lambda here=here, first=first: first(here),  # type: ignore[misc] # bound by default
                lambda there=there, second=second: second(there),  # type: ignore[misc] # as above
            )
            assert not [answer for answer in answers if isinstance(answer, Exception)]
            stands = await here.own_rows()
            assert stands in outcomes
            assert stands == in_order or not met.holds_queue
            assert (await here.store.queue(here.queue)).version == before + 2
            waited += met.holds_queue
        assert waited >= 2


async def test_what_the_two_orders_of_a_meeting_lead_to(pair: tuple[Story, Story]) -> None:
    """That the outcomes which the meetings are held to are the right ones."""

    async def ends(meeting: str, *, swapped: bool) -> Story:
        prepare, one, other = PAIRS[meeting]
        story, _ = await Worlds(pair, prepare).new()
        for act in (other, one) if swapped else (one, other):
            await act(story)
        return story

    async def states(meeting: str, *, swapped: bool) -> list[str]:
        story = await ends(meeting, swapped=swapped)
        return [str(r.state) for r in reversed(await story.store.requests(story.queue))]

    assert await states("an admit and a newer head", swapped=False) == ["processing", "accepted"]
    assert await states("an admit and a newer head", swapped=True) == ["superseded", "processing"]
    assert await states("an admit and a cancel", swapped=True) == ["cancelled"]
    assert await states("an admit and a pause", swapped=True) == ["accepted"]
    for swapped, state in ((False, "succeeded"), (True, "failed")):
        for meeting in ("two settles", "a verdict and a failing closed"):
            assert await states(meeting, swapped=swapped) == [state]
    for swapped, base in ((False, None), (True, "A")):
        story = await ends("a base and last green", swapped=swapped)
        b = await story.request(2)
        strategy = Strategy.INCREMENTAL if base else Strategy.FULL
        assert (b.state, b.strategy, b.base_uri) == (State.PROCESSING, strategy, base)


@pytest.mark.spec("V396")
async def test_a_raise_of_the_epoch_comes_after_a_transaction_or_ends_it(
    pair: tuple[Story, Story],
) -> None:
    at, seen = 0, set()
    came_so_far = True
    while came_so_far:
        at += 1
        here, there = await Worlds(pair, waiting).new()
        before = await here.own_rows()

        async def raise_epoch(there: Story = there) -> None:
            async with begin(there.engine) as connection:
                raised = sa.update(t.installation).values(epoch=t.installation.c.epoch + 1)
                await connection.execute(raised)

        answer, _, came_so_far = await Meeting(here, at).of(
            lambda here=here: a_turn(here),  # type: ignore[misc] # bound by default
            raise_epoch,
        )
        seen.add(type(answer))
        if isinstance(answer, Fenced):
            assert await here.own_rows() == before
        else:
            assert isinstance(answer, Turned)
            assert (await here.request(1)).state is State.PROCESSING
        fence = await here.store.fence()
        assert fence.epoch == here.fence.epoch + 1
        pair[0].fence = pair[1].fence = fence
    assert seen == {Fenced, Turned}


@pytest.mark.spec("V303")
async def test_fifty_at_once_lose_nothing(pair: tuple[Story, Story]) -> None:
    story, _ = pair
    version = (await story.store.queue(story.queue)).version
    ingested = await asyncio.gather(*(pair[n % 2].report(f"u{n}") for n in range(50)))
    assert len(set(ingested)) == 50
    requests = await story.store.requests(story.queue, limit=200)
    assert sorted(r.number for r in requests) == sorted(ingested)
    assert [r.state for r in requests] == [State.ACCEPTED] + [State.SUPERSEDED] * 49
    assert (await story.store.queue(story.queue)).version == version + 50
    turned = await asyncio.gather(*(a_turn(pair[n % 2]) for n in range(50)))
    assert {turn.step for turn in turned} == {Hold(Reason.NOTHING_WAITS, who=(requests[0].number,))}
    (flying,) = (await story.store.queue(story.queue)).in_flight
    assert (await story.history(flying.number)).count("admitted") == 1
    await story.trigger(flying.number)
    answers = ["succeeded", "failed"] * 25
    judged = await asyncio.gather(
        *(pair[n % 2].answer(flying.number, said) for n, said in enumerate(answers))
    )
    ended = await story.request(flying.number)
    assert {(one.follows, one.state) for one in judged} == {(Follows.SETTLED, ended.state)}
    history = await story.history(flying.number)
    assert history.count("build_finished") == history.count(f"build_{ended.state}") == 1
    assert (await story.store.queue(story.queue)).version == version + 50 + 50 + 1 + 50


@pytest.mark.spec("V303")
async def test_of_two_admits_at_once_for_one_slot_one_holds(pair: tuple[Story, Story]) -> None:
    for _ in range(10):
        here, there = await Worlds(pair, waiting).new()
        two = await asyncio.gather(a_turn(here), a_turn(there))
        assert {turn.step for turn in two} == {Hold(Reason.NOTHING_WAITS, who=(1,))}
        assert [len(turn.owed) for turn in two] == [1, 1]
        assert sorted(owed.again for turn in two for owed in turn.owed) == [False, True]
        assert (await here.history(1)).count("admitted") == 1
