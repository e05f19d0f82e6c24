"""All or nothing: every transaction, failing at each of its statements and at its commit."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
import sqlalchemy as sa

from domain.errors import Invariant
from domain.request import Cause, State, Strategy
from domain.results import ProjectResult
from stores import tables as t
from stores.engine import begin
from stores.ranges import RangePage
from stores.rows import DeadLetter, Delivering, Failure
from tests.stores.faults import fails_at_each_statement, statements_of
from tests.stores.story import NOW, QUEUE, Story, a_request


@pytest.mark.spec("V19", "V41")
async def test_a_failure_at_any_statement_of_ingest_leaves_nothing(story: Story) -> None:
    await story.fly("A")
    await story.report("B")
    assert await fails_at_each_statement(story, lambda: story.report("C")) >= 8
    requests = await story.store.requests(QUEUE)
    assert [(r.uri, r.state) for r in requests] == [
        ("C", State.ACCEPTED),
        ("B", State.SUPERSEDED),
        ("A", State.PROCESSING),
    ]
    numbers = [r.number for r in requests]
    assert numbers == sorted(set(numbers), reverse=True)
    assert (await story.store.queue(QUEUE)).latest == requests[0]
    (superseded,) = [r for r in await story.store.history(QUEUE, 2) if r.kind != "accepted"]
    assert (superseded.kind, superseded.detail) == (
        "superseded_by_newer_head",
        f"by request/{QUEUE}/{requests[0].number}",
    )


@pytest.mark.spec("V19")
async def test_numbers_grow_also_over_a_look_that_left_nothing(story: Story) -> None:
    for uri in "ABC":
        await fails_at_each_statement(story, partial(story.report, uri))
    numbers = [r.number for r in reversed(await story.store.requests(QUEUE))]
    assert numbers == sorted(set(numbers))
    assert [r.uri for r in reversed(await story.store.requests(QUEUE))] == ["A", "B", "C"]


@pytest.mark.spec("V63", "V86")
async def test_a_failure_at_any_statement_of_admit_leaves_it_accepted(story: Story) -> None:
    await story.report("A")
    assert await fails_at_each_statement(story, story.turn) >= 8
    a = await story.request(1)
    assert (a.state, a.strategy) == (State.PROCESSING, Strategy.FULL)
    (delivery,) = await story.store.pending(QUEUE, 1)
    assert delivery.event.type == "validation.repository.started"
    assert await story.store.builds(QUEUE, 1) == []
    assert not [name for name in t.metadata.tables if "slot" in name]
    assert (await story.history(1)).count("admitted") == 1


@pytest.mark.spec("V119")
@pytest.mark.parametrize("said", ["succeeded", "failed"])
async def test_a_failure_at_any_statement_of_settle_leaves_it_processing(
    story: Story, said: str
) -> None:
    await story.fly("A")
    assert await fails_at_each_statement(story, lambda: story.answer(1, said)) >= 8
    a = await story.request(1)
    assert (a.state, a.terminal_build_id) == (State(said), "b/1/1")
    queue = await story.store.queue(QUEUE)
    assert queue.in_flight == ()
    assert queue.last_green == (a if said == "succeeded" else None)
    history = await story.history(1)
    assert history.count("build_finished") == history.count(f"build_{said}") == 1


@pytest.mark.spec("V232")
async def test_failing_closed_is_one_transaction(story: Story) -> None:
    await story.fly("A")
    failure = Failure(1, Cause.TRIGGER_FAILED, "422: no such pipeline")

    async def act() -> None:
        await story.store.fail(story.stamp(), failure, story.settings)

    assert await fails_at_each_statement(story, act) >= 8
    a = await story.request(1)
    assert (a.state, a.cause) == (State.FAILED, Cause.TRIGGER_FAILED)
    assert (await story.store.queue(QUEUE)).in_flight == ()
    assert (await story.history(1))[-2:] == ["trigger_failed", "dead_letter_opened"]
    (letter,) = await story.store.dead_letters(QUEUE)
    assert letter == DeadLetter(
        letter.id, "request", "1", "trigger_failed", "422: no such pipeline", story.now
    )
    assert [d.event.type for d in await story.store.pending(QUEUE, 1)] == [
        "validation.repository.started",
        "validation.repository.abandoned",
    ]


@pytest.mark.spec("V244")
async def test_the_same_failure_reported_twice_is_one_open_dead_letter(story: Story) -> None:
    await story.fly("A")
    failure = Failure(1, Cause.TRIGGER_FAILED, "422")
    for _ in range(2):
        await story.store.fail(story.stamp(), failure, story.settings)
        for kind in ("record", "promotion"):
            await story.store.dead_letter(story.stamp(), kind, failure)
    letters = await story.store.dead_letters(QUEUE)
    assert sorted(letter.kind for letter in letters) == ["promotion", "record", "request"]
    (delivery, *_) = await story.store.pending(QUEUE, 1)
    dead = replace(delivery, state=Delivering.DEAD, last_error="410")
    for _ in range(2):
        await story.store.delivered(story.stamp(), dead)
    assert len(await story.store.dead_letters(QUEUE)) == 4


@pytest.mark.parametrize("said", ["succeeded", "failed"])
async def test_record_is_two_transactions_each_of_them_whole(story: Story, said: str) -> None:
    await story.fly("A")
    await story.answer(1, said)
    await fails_at_each_statement(story, lambda: story.store.facts(story.stamp(), 1))
    assert [d.event.type for d in await story.store.pending(QUEUE, 1)] == [
        "validation.repository.started"
    ]
    await fails_at_each_statement(
        story, lambda: story.store.announce(story.stamp(), 1, story.settings, None)
    )
    a = await story.request(1)
    assert a.recorded_at == story.now
    assert (a.green_at is not None) is (said == "succeeded")


@pytest.mark.spec("V30")
async def test_a_number_given_out_twice_is_refused_and_nobody_is_changed(story: Story) -> None:
    await story.report("A")
    async with begin(story.engine) as connection:
        await connection.execute(sa.update(t.queues).values(next_number=1))
    before = await story.rows()
    with pytest.raises(Invariant):
        await story.report("B")
    assert await story.rows() == before


@pytest.mark.spec("V40")
async def test_superseding_a_thousand_heads_is_one_statement(story: Story) -> None:
    said = {}
    for backlog in (10, 1000):
        other = story.elsewhere(f"backlog/{backlog}")
        await other.put(t.queues, {"name": other.queue, "next_number": backlog + 1, "version": 1})
        rows = [a_request(n, queue=other.queue) for n in range(1, backlog + 1)]
        await other.put(t.requests, *rows)
        said[backlog] = await statements_of(story, partial(other.report, "new"))
        requests = await other.store.requests(other.queue, limit=2000)
        assert [r.state for r in requests] == [State.ACCEPTED] + [State.SUPERSEDED] * backlog
        told = [row[1] for row in (await other.rows())["history"] if row[0] == other.queue]
        assert sorted(told) == sorted(str(n) for n in range(1, backlog + 2))
        (committed,) = story.commits[-1:]
        assert len(committed.happenings) == backlog + 1
        assert all((r.ended_at or 0) > NOW for r in requests[1:])
        assert len([s for s in said[backlog] if s.startswith("UPDATE requests")]) == 1
    assert said[10] == said[1000]


RESULTS = (ProjectResult("api", 0.0), ProjectResult("web", 0.5))


@pytest.mark.spec("V170")
async def test_a_repository_fact_and_its_project_facts_come_together(story: Story) -> None:
    await story.fly("A")
    await story.answer(1, "failed")
    await fails_at_each_statement(story, lambda: story.store.facts(story.stamp(), 1, RESULTS))
    for project, degree in (("", 0.5), ("api", 0.0), ("web", 0.5)):
        fact = await story.store.fact(QUEUE, "A", project)
        assert fact is not None
        assert fact.degree == degree


@pytest.mark.spec("V220", "V335")
@pytest.mark.parametrize("said", ["succeeded", "failed"])
async def test_a_page_of_a_range_is_whole_and_written_twice_it_is_the_same(
    story: Story, said: str
) -> None:
    await story.validate("A")
    await story.fly("D")
    await story.answer(2, said)
    await story.store.facts(story.stamp(), 2)
    page = RangePage(("C", "B"), -1, is_last=True)
    await fails_at_each_statement(story, lambda: story.store.cover(story.stamp(), 2, page))
    before = (await story.rows())["coverage"]
    assert await story.store.cover(story.stamp(), 2, page) is False
    assert (await story.rows())["coverage"] == before
    assert len(before) == 4


@pytest.mark.spec("V335")
async def test_after_a_page_that_was_written_the_next_one_follows(story: Story) -> None:
    """A red verdict's own rows are no reason to stop."""
    await story.validate("A")
    await story.fly("D")
    await story.answer(2, "failed")
    await story.store.facts(story.stamp(), 2)
    first, second = RangePage(("C",), -1), RangePage(("B",), -2, is_last=True)
    for page in (first, first, second):
        assert await story.store.cover(story.stamp(), 2, page) is (page is first)
    assert [(await story.store.covers(QUEUE, uri)).cover is not None for uri in "BCD"] == [True] * 3
