"""Facts stay, the newest green decides, and the tops of a queue go forward."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations
from typing import Any

import pytest
import sqlalchemy as sa

from domain.errors import Invariant
from domain.fact import Fact
from domain.request import Cause, State
from stores import tables as t
from stores.engine import begin
from stores.rows import Recorded
from stores.transaction import transaction
from tests.stores.story import NOW, QUEUE, Story, a_request


def a_fact(request: int, degree: float, **changed: Any) -> dict[str, Any]:
    cause = Cause.BUILD_FAILED if degree else Cause.BUILD_SUCCEEDED
    row = {"uri": "X", "project": "", "request": request, "degree": degree, "cause": cause}
    return row | {"created_at": NOW} | changed


@pytest.mark.spec("V144")
async def test_a_fact_stays_as_it_was(story: Story) -> None:
    await story.validate("A", "failed")
    before = (await story.rows())["facts"]
    assert [row[4] for row in before] == [1.0]
    green = a_fact(1, 0.0, queue=QUEUE, uri="A")
    async with transaction(story.engine, story.stamp()) as tx:
        assert not await tx.insert_once(t.facts, green)
    with pytest.raises(Invariant):
        await story.put(t.facts, green)
    await story.record(1)
    await story.answer(1, "succeeded")
    await story.record(1)
    assert (await story.rows())["facts"] == before


@pytest.mark.spec("V182")
@pytest.mark.parametrize("order", [(3, 7), (7, 3)])
@pytest.mark.parametrize(
    ("degrees", "decides"),
    [({3: 1.0, 7: 0.0}, 7), ({3: 0.0, 7: 1.0}, 3), ({3: 1.0, 7: 0.5}, 7), ({3: 0.0, 7: 0.0}, 7)],
)
async def test_the_newest_green_attempt_is_authoritative(
    story: Story, degrees: dict[int, float], decides: int, order: tuple[int, int]
) -> None:
    await story.report(*"abcdefg")
    for number in order:
        await story.put(t.facts, a_fact(number, degrees[number]))
    degree = degrees[decides]
    cause = Cause.BUILD_FAILED if degree else Cause.BUILD_SUCCEEDED
    assert await story.store.fact(QUEUE, "X") == Fact("X", "", decides, degree, cause, NOW)
    assert len((await story.rows())["facts"]) == 2


@pytest.mark.spec("V298")
async def test_facts_with_and_without_a_project_and_by_attempts_are_different(
    story: Story,
) -> None:
    await story.report("a", "b")
    shapes = [(project, request) for project in ("", "app") for request in (1, 2)]
    for project, request in shapes:
        await story.put(t.facts, a_fact(request, 1.0 - request / 10, project=project))
    rows = (await story.rows())["facts"]
    assert sorted((row[2], row[3], row[4]) for row in rows) == [
        ("", 1, 0.9),
        ("", 2, 0.8),
        ("app", 1, 0.9),
        ("app", 2, 0.8),
    ]
    for project in ("", "app"):
        fact = await story.store.fact(QUEUE, "X", project)
        assert fact and (fact.project, fact.request) == (project, 2)


@pytest.mark.spec("V173")
@pytest.mark.parametrize("repository", [0.0, 0.5, 1.0])
async def test_a_project_is_decided_by_its_own_newest_green(
    story: Story, repository: float
) -> None:
    await story.report("a", "b")
    for request, degree in ((1, 0.0), (2, 1.0)):
        await story.put(t.facts, a_fact(request, degree, project="app"))
        await story.put(t.facts, a_fact(request, repository))
    fact = await story.store.fact(QUEUE, "X", "app")
    assert fact and (fact.request, fact.is_green) == (1, True)
    own = await story.store.fact(QUEUE, "X")
    assert own and (own.request, own.degree) == (2, repository)


@pytest.mark.spec("V143")
async def test_a_fact_by_no_attempt_at_its_commit_is_an_invariant_error(story: Story) -> None:
    await story.validate("A")
    await story.fly("B")
    await story.answer(2, "succeeded")
    await story.put(t.facts, a_fact(1, 0.0, uri="B"))
    before = await story.rows()
    with pytest.raises(Invariant, match="request 1, no attempt at it"):
        await story.store.facts(story.stamp(), 2)
    assert await story.rows() == before
    b = await story.request(2)
    assert (b.state, b.green_at, b.recorded_at) == (State.SUCCEEDED, None, None)
    holder = (await story.store.queue(QUEUE)).holder
    assert holder and holder.number == 1


async def test_what_has_no_verdict_has_no_fact_and_what_has_not_ended_is_refused(
    story: Story,
) -> None:
    await story.fly("A")
    with pytest.raises(Invariant, match="processing at record"):
        await story.store.facts(story.stamp(), 1)
    await story.answer(1, "cancelled")
    assert await story.store.facts(story.stamp(), 1) is None
    assert (await story.rows())["facts"] == []


async def test_the_authoritative_fact_decides_what_record_does(story: Story) -> None:
    await story.validate("A")
    retry = a_request(2, State.FAILED, origin="retry", retry_of=1, order=1, uri="A")
    await story.put(t.requests, retry)
    assert await story.store.facts(story.stamp(), 2) == Recorded(is_green=True, head="A")
    assert (await story.request(2)).green_at is None


@pytest.mark.spec("V129")
@pytest.mark.parametrize("order", [*permutations((1, 2, 3))])
async def test_verdicts_and_records_in_any_order_leave_the_tops_on_top(
    story: Story, order: tuple[int, ...]
) -> None:
    story.settings = replace(story.settings, max_concurrent=3)
    await story.fly("A", "B", "C")
    for ended in range(1, 4):
        number = order[ended - 1]
        await story.answer(number, "succeeded")
        top = max(order[:ended])
        queue = await story.store.queue(QUEUE)
        assert queue.last_green == await story.request(top)
        assert queue.latest == await story.request(3)
        await story.record(number)
        queue = await story.store.queue(QUEUE)
        assert queue.last_green == queue.holder == await story.request(top)


@pytest.mark.spec("V129")
async def test_retries_stand_by_their_order_and_probes_nowhere(story: Story) -> None:
    await story.validate("A")
    await story.validate("B", "failed")
    await story.validate("C")
    green = {"green_at": NOW, "recorded_at": NOW}
    retry_of_older = {"origin": "retry", "retry_of": 2, "order": 2, "uri": "B"} | green
    await story.put(t.requests, a_request(4, State.SUCCEEDED, **retry_of_older))
    probe = {"origin": "probe", "probe_of": 3, "order": 3, "uri": "P"} | green
    await story.put(t.requests, a_request(5, State.SUCCEEDED, **probe))
    queue = await story.store.queue(QUEUE)
    c = await story.request(3)
    assert queue.latest == queue.last_green == queue.holder == c
    retry = {"origin": "auto_retry", "retry_of": 3, "order": 3, "uri": "C"} | green
    await story.put(t.requests, a_request(6, State.SUCCEEDED, **retry))
    queue = await story.store.queue(QUEUE)
    again = await story.request(6)
    assert queue.latest == queue.last_green == queue.holder == again
    assert again.uri == c.uri
    async with begin(story.engine) as connection:
        await connection.execute(sa.update(t.queues).values(paused_reason="x", next_number=7))
    await story.report("D")
    queue = await story.store.queue(QUEUE)
    assert queue.latest and queue.latest.number == 7
    assert queue.last_green == queue.holder == again


async def test_an_adopted_green_is_the_holder_at_once(story: Story) -> None:
    await story.validate("A")
    await story.validate("B")
    number = await story.report("A", rewrite=True)
    queue = await story.store.queue(QUEUE)
    again = await story.request(number)
    assert (again.cause, again.green_at is not None) == (Cause.ADOPTED_FACT, True)
    assert queue.last_green == queue.holder == again
    fact = await story.store.fact(QUEUE, "A")
    assert fact and fact.request == 1
