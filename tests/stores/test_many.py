"""Several slots on a linear trunk, and verdicts in any order."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from domain.fact import GREEN
from domain.request import State
from tests.stores.story import Story

QUEUES = itertools.count()
STEPS = st.lists(
    st.one_of(
        st.just(("lands", 0)),
        st.tuples(st.sampled_from(["succeeded", "failed", "records"]), st.integers(0, 3)),
    ),
    min_size=4,
    max_size=30,
)


async def take(story: Story, what: str, which: int) -> None:
    requests = await story.store.requests(story.queue, limit=100)
    if what == "lands":
        await story.report(f"u{len(requests) + 1}")
        await story.turn()
        return
    ours = [r for r in requests if r.owes_record if what == "records"]
    ours = ours or [r for r in requests if r.state is State.PROCESSING and what != "records"]
    if not ours:
        return
    number = ours[which % len(ours)].number
    if what == "records":
        await story.record(number)
        return
    if not await story.store.builds(story.queue, number):
        await story.trigger(number)
    await story.answer(number, what)
    await story.turn()


@pytest.mark.spec("V206")
@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(slots=st.integers(1, 4), steps=STEPS)
async def test_in_whatever_order_verdicts_come_nothing_goes_back_and_no_fact_lies(
    story: Story, slots: int, steps: list[tuple[str, int]]
) -> None:
    here = story.elsewhere(f"many/{next(QUEUES)}")
    here.settings = replace(here.settings, max_concurrent=slots)
    held = 0
    for what, which in steps:
        await take(here, what, which)
        queue = await here.store.queue(here.queue)
        requests = await here.store.requests(here.queue, limit=100)
        assert len(queue.in_flight) <= slots
        green = [r.number for r in requests if r.state is State.SUCCEEDED]
        assert (queue.last_green.number if queue.last_green else 0) == max(green, default=0)
        holder = queue.holder.number if queue.holder else 0
        assert holder >= held
        held = holder
        for request in requests:
            fact = await here.store.fact(here.queue, request.uri)
            if fact is not None:
                (build,) = await here.store.builds(here.queue, request.number)
                assert (fact.degree == GREEN) is (build.status == "succeeded")
