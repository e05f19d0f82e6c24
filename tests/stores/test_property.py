"""Whatever happens in whatever order: what must hold holds after every step."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from domain.gate import Ancestry
from domain.request import Cause, State
from stores.rows import Failure, Next, QueueState, Request
from tests.stores.story import Story

QUEUES = itertools.count()
ACTIONS = st.lists(
    st.one_of(
        st.sampled_from(
            [("report", 0), ("rewrite", 0), ("turn", 0), ("turn unknown", 0), ("rewind", 0)]
        ),
        st.tuples(
            st.sampled_from(["succeeded", "failed", "cancelled", "running"]), st.integers(0, 3)
        ),
        st.tuples(
            st.sampled_from(["silence", "late", "fail", "record", "lost"]), st.integers(0, 3)
        ),
        st.tuples(st.just("cap"), st.integers(1, 3)),
    ),
    min_size=5,
    max_size=40,
)


class World:
    """A queue, and what was true of it a step ago."""

    def __init__(self, story: Story) -> None:
        self.story = story
        self.uris = itertools.count()
        self.ended: dict[int, Request] = {}
        self.tops: dict[str, tuple[int, int]] = {}

    async def act(self, what: str, which: int) -> None:
        story = self.story
        match what:
            case "report":
                await story.report(f"u{next(self.uris)}")
            case "rewrite":
                await story.report(f"u{next(self.uris)}", rewrite=True)
            case "rewind":
                await story.report("u0", rewrite=True)
            case "turn" | "turn unknown":
                await self.turn(Ancestry.YES if what == "turn" else Ancestry.UNKNOWN)
            case "cap":
                story.settings = replace(story.settings, max_concurrent=which)
            case "late":
                story.now += 5 * 3600 * 1000
            case _:
                await self.about(what, which)

    async def turn(self, ancestry: Ancestry) -> None:
        before = (await self.story.store.queue(self.story.queue)).in_flight
        await self.story.turn(ancestry)
        after = (await self.story.store.queue(self.story.queue)).in_flight
        assert set(before) <= set(after)
        if len(after) > len(before):
            assert len(after) <= self.story.settings.max_concurrent

    async def about(self, what: str, which: int) -> None:
        story = self.story
        requests = await story.store.requests(story.queue, limit=200)
        ours = [r for r in requests if r.admitted_at or r.owes_record]
        if not ours:
            return
        request = ours[which % len(ours)]
        if what == "record":
            if request.state.is_terminal:
                await story.record(request.number)
        elif what == "fail":
            failure = Failure(request.number, Cause.PROCESSING_FAILED, "a defect")
            await story.store.fail(story.stamp(), failure, story.settings)
        else:
            await self.answer(request, None if what == "silence" else what)

    async def answer(self, request: Request, said: str | None) -> None:
        story = self.story
        stage = await story.store.stage(story.fence, story.queue, request.number)
        if stage.build is None and stage.next is Next.BUILD and not stage.is_ending:
            await story.trigger(request.number, stage.attempt)
        if stage.build is not None:
            await story.answer(request.number, said, stage.attempt)

    async def check(self) -> None:
        queue = await self.story.store.queue(self.story.queue)
        requests = await self.story.store.requests(self.story.queue, limit=200)
        for number, request in self.ended.items():
            now = next(r for r in requests if r.number == number)
            assert (now.state, now.cause, now.ended_at) == (
                request.state,
                request.cause,
                request.ended_at,
            )
        self.ended |= {r.number: r for r in requests if r.state.is_terminal}
        self.check_tops(queue, requests)
        await self.check_facts(requests)

    def check_tops(self, queue: QueueState, requests: Sequence[Request]) -> None:
        def top(which: list[Request]) -> Request | None:
            return max(which, key=lambda r: (r.order, r.number), default=None)

        assert queue.latest == top(list(requests))
        assert queue.last_green == top([r for r in requests if r.state is State.SUCCEEDED])
        assert queue.holder == top([r for r in requests if r.green_at is not None])
        for name in ("latest", "last_green", "holder"):
            request = getattr(queue, name)
            at = (request.order, request.number) if request else (0, 0)
            assert at >= self.tops.get(name, (0, 0))
            self.tops[name] = at
        newest = max((r.number for r in requests), default=0)
        for request in requests:
            if request.state is State.SUPERSEDED:
                assert request.number < newest

    async def check_facts(self, requests: Sequence[Request]) -> None:
        for request in requests:
            fact = await self.story.store.fact(self.story.queue, request.uri)
            if fact is None:
                assert request.green_at is None
                continue
            owner = next(r for r in requests if r.number == fact.request)
            assert owner.uri == request.uri
            assert owner.cause in (Cause.BUILD_SUCCEEDED, Cause.BUILD_FAILED)
            assert fact.is_green is (owner.cause is Cause.BUILD_SUCCEEDED)


@pytest.mark.spec("V129", "V67")
@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(actions=ACTIONS)
async def test_whatever_happens_pointers_go_forward_and_no_fact_lies(
    story: Story, actions: list[tuple[str, int]]
) -> None:
    world = World(story.elsewhere(f"property/{next(QUEUES)}"))
    for what, which in actions:
        await world.act(what, which)
        await world.check()
