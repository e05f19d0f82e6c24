"""What a store promises, whatever database keeps it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest
import sqlalchemy as sa

from domain.build import Status
from domain.errors import Fenced, Invariant, NotFound, WrongInstallation
from domain.event import EventType, HookEvent
from domain.fact import Fact
from domain.gate import Ancestry, Hold, Reason, Seen
from domain.identity import Fence
from domain.request import Cause, Origin, State, Strategy
from stores import tables as t
from stores.engine import begin
from stores.rows import Answer, Build, Delivering, Delivery, Failure, Happening, Request, Stamp
from stores.transaction import transaction
from tests.stores.story import NOW, QUEUE, Story


@pytest.mark.spec("V295")
async def test_what_is_committed_is_read_back_through_any_connection(
    pair: tuple[Story, Story],
) -> None:
    story, other = pair
    await story.validate("A")
    own = story.fence.installation
    request = Request(
        QUEUE, 1, 1, 1, "A", Origin.HEAD, State.SUCCEEDED, NOW + 10, Cause.BUILD_SUCCEEDED, 5
    )
    request = replace(
        request,
        strategy=Strategy.FULL,
        deadline_at=NOW + 20 + 4 * 3_600_000,
        terminal_build_id="b/1/1",
        admitted_at=NOW + 20,
        ended_at=NOW + 40,
        green_at=NOW + 50,
        recorded_at=NOW + 60,
    )
    build = Build("fake", "b/1/1", 1, 1, Status.SUCCEEDED, NOW + 30, "url")
    fact = Fact("A", "", 1, 0.0, Cause.BUILD_SUCCEEDED, NOW + 50)
    started = HookEvent(own, EventType.STARTED, QUEUE, 1, NOW + 20)
    recorded = HookEvent(own, EventType.RECORDED, QUEUE, 1, NOW + 60)
    for reader in (story.store, other.store):
        assert await reader.request(QUEUE, 1) == request
        assert await reader.requests(QUEUE) == await reader.attempts(QUEUE, "A") == (request,)
        assert await reader.builds(QUEUE, 1) == [build]
        assert await reader.fact(QUEUE, "A") == fact
        history = await reader.history(QUEUE, 1)
        assert history[0] == Happening(QUEUE, "1", "accepted", "", NOW + 10)
        assert [row.kind for row in history] == [
            "accepted",
            "admitted",
            "build_triggered",
            "build_finished",
            "build_succeeded",
            "fact_recorded",
            "project_facts_recorded",
            "coverage_recorded",
            "recorded",
        ]
        assert await reader.pending(QUEUE, 1) == [
            Delivery(started, "log", 0),
            Delivery(recorded, "log", 2),
        ]
        queue = await reader.queue(QUEUE)
        assert queue.latest == queue.last_green == queue.holder == request
        assert (queue.name, queue.version, queue.paused_reason) == (QUEUE, 6, None)
        assert await reader.queues() == [QUEUE]
        assert await reader.fence() == story.fence


@pytest.mark.spec("V295")
async def test_a_row_that_exists_is_said_to_exist_and_stays(story: Story) -> None:
    await story.validate("A")
    await story.store.dead_letter(story.stamp(), "promotion", Failure(1, Cause.BUILD_FAILED, "x"))
    await story.search(1)
    before = await story.rows()
    for table in t.metadata.sorted_tables:
        async with begin(story.engine, reads=True) as connection:
            row = dict((await connection.execute(sa.select(table))).first()._mapping)  # type: ignore[union-attr] # there is one
        with pytest.raises(Invariant, match="a row of that identity exists"):
            async with begin(story.engine) as connection:
                await connection.execute(sa.insert(table).values(row))
    note = Happening(QUEUE, "1", "promoted", "", 1, "first")
    await story.store.note(story.stamp(), note)
    await story.store.note(story.stamp(), replace(note, detail="second"))
    told = [r.detail for r in await story.store.history(QUEUE, 1) if r.kind == "promoted"]
    assert told == ["first"]
    after = await story.rows()
    assert {name: rows for name, rows in after.items() if name not in ("queues", "history")} == {
        name: rows for name, rows in before.items() if name not in ("queues", "history")
    }


@pytest.mark.spec("V295")
async def test_a_row_that_is_missing_is_said_to_be(story: Story) -> None:
    await story.report("A")
    store = story.store
    reads: list[Callable[[], Awaitable[Any]]] = [
        lambda: store.request(QUEUE, 99),
        lambda: store.stage(story.fence, QUEUE, 99),
        lambda: store.facts(story.stamp(), 99),
        lambda: store.observe(story.stamp(), Answer(99, 1, "failed"), story.settings),
    ]
    for read in reads:
        with pytest.raises(NotFound, match=f"request/{QUEUE}/99"):
            await read()
    assert await store.fact(QUEUE, "none") is None
    assert (await store.queue("none")).latest is None


@pytest.mark.spec("V297", "V29")
async def test_a_queue_reaches_no_row_of_another(story: Story) -> None:
    other = story.elsewhere("elsewhere/main")
    await other.validate("A")
    await other.fly("B")
    await other.report("C", "D")
    stands = await other.own_rows()
    await story.validate("A", "failed")
    await story.fly("B")
    await story.report("C", "D")
    failure = Failure(2, Cause.TRIGGER_FAILED, "x")
    await story.store.fail(story.stamp(), failure, story.settings)
    await story.store.dead_letter(story.stamp(), "record", failure)
    await story.store.note(story.stamp(), Happening(QUEUE, "1", "promoted", "", 1))
    (delivery, *_) = await story.store.pending(QUEUE, 1)
    done = replace(delivery, state=Delivering.DELIVERED)
    await story.store.delivered(story.stamp(), done)
    project = {"uri": "A", "project": "app", "request": 1, "degree": 0.0}
    project |= {"cause": "build_succeeded", "created_at": NOW}
    await story.put(t.facts, project)
    assert await other.own_rows() == stands
    mine, theirs = [await s.store.fact(s.queue, "A") for s in (story, other)]
    assert mine and theirs and (mine.degree, theirs.degree) == (1, 0)
    assert await story.store.fact(QUEUE, "A", "app")
    assert await other.store.fact(other.queue, "A", "app") is None
    await other.put(t.facts, project)
    for number in (1, 2):
        (here,) = await story.store.builds(QUEUE, number)
        (there,) = await other.store.builds(other.queue, number)
        assert here.id == there.id


@pytest.mark.spec("V9", "V299")
async def test_names_that_differ_only_a_little_are_different(story: Story) -> None:
    uris = ["Abc", "abc", "abc/", "\u00e1bc", "a\u0301bc", "abc ", "abc  "]
    await story.report(*uris)
    for number, uri in enumerate(uris, 1):
        (found,) = await story.store.attempts(QUEUE, uri)
        assert (found.number, found.uri) == (number, uri)
    for queue in ("a/Main", "a/main"):
        await story.elsewhere(queue).report("A")
    assert sorted(await story.store.queues()) == ["a/Main", "a/main", QUEUE]


@pytest.mark.spec("V101")
async def test_a_build_row_is_written_once_an_attempt(story: Story) -> None:
    await story.fly("A")
    (build,) = await story.store.builds(QUEUE, 1)
    await story.store.build_row(story.stamp(), replace(build, triggered_at=NOW), found=True)
    another = replace(build, id="b/another")
    await story.store.build_row(story.stamp(), another, found=True)
    assert await story.store.builds(QUEUE, 1) == [build]
    await story.answer(1, "failed")
    await story.report("B")
    await story.turn()
    before = await story.rows()
    with pytest.raises(Invariant):
        await story.store.build_row(story.stamp(), replace(build, request=2), found=False)
    assert await story.rows() == before


@pytest.mark.spec("V372")
@pytest.mark.parametrize(
    ("why", "attempt", "state", "cause"),
    [
        (None, None, State.CANCELLED, Cause.BUILD_CANCELLED),
        ("person", 1, State.CANCELLED, Cause.CANCELLED_BY_PERSON),
        ("person", 2, State.CANCELLED, Cause.BUILD_CANCELLED),
        ("validation_timeout", 1, State.FAILED, Cause.VALIDATION_TIMEOUT),
        ("validation_timeout", 2, State.CANCELLED, Cause.BUILD_CANCELLED),
        ("start_timeout", 2, State.CANCELLED, Cause.BUILD_CANCELLED),
        ("start_timeout", 1, None, None),
    ],
)
async def test_an_answer_cancelled_means_what_was_intended_for_that_attempt(
    story: Story, why: str | None, attempt: int | None, state: State | None, cause: Cause | None
) -> None:
    await story.fly("A")
    async with begin(story.engine) as connection:
        intent = {"ending": why, "ending_attempt": attempt, "ending_at": why and NOW + 1}
        await connection.execute(sa.update(t.requests).values(intent))
    await story.answer(1, "cancelled")
    a = await story.request(1)
    assert (a.state, a.cause) == (state or State.PROCESSING, cause)


async def calls(story: Story, stamp: Stamp) -> list[Callable[[], Awaitable[Any]]]:
    """Every transaction, and the reads that are fenced."""
    store, settings = story.store, story.settings
    seen = Seen("B", None, "A", Ancestry.YES, named_before=False)
    failure = Failure(1, Cause.PROCESSING_FAILED, "x")
    build = Build("r", "i", 1, 1, Status.RUNNING, NOW)
    (delivery,) = await store.pending(QUEUE, 1)
    done = replace(delivery, state=Delivering.DELIVERED)

    async def any_other() -> None:
        async with transaction(story.engine, stamp):
            pass

    return [
        lambda: store.ingest(stamp, seen, settings),
        lambda: store.turn(stamp, settings, {}),
        lambda: store.build_row(stamp, build, found=True),
        lambda: store.observe(stamp, Answer(1, 1, "failed"), settings),
        lambda: store.fail(stamp, failure, settings),
        lambda: store.facts(stamp, 1),
        lambda: store.announce(stamp, 1, settings, None),
        lambda: store.note(stamp, Happening(QUEUE, "1", "promoted", "", 1)),
        lambda: store.dead_letter(stamp, "record", failure),
        lambda: store.delivered(stamp, done),
        lambda: store.stage(stamp.fence, QUEUE, 1),
        lambda: store.check(stamp.fence),
        any_other,
    ]


@pytest.mark.spec("V396")
async def test_another_installation_and_an_older_epoch_are_refused_and_told_apart(
    story: Story,
) -> None:
    await story.fly("A")
    rows = await story.rows()
    own, epoch = story.fence.installation, story.fence.epoch
    for fence, error in (
        (Fence("f" * 32, epoch), WrongInstallation),
        (Fence("f" * 32, epoch - 1), WrongInstallation),
        (Fence(own, epoch - 1), Fenced),
    ):
        for call in await calls(story, Stamp(fence, QUEUE, NOW)):
            with pytest.raises(error):
                await call()
    assert await story.rows() == rows
    assert len(rows["installation"]) == 1


async def test_a_queue_that_is_not_configured_admits_nothing(story: Story) -> None:
    await story.report("A")
    turned = await story.store.turn(story.stamp(), None, {})
    assert turned.step == Hold(Reason.NOT_CONFIGURED)
    assert turned.owed == ()


async def test_a_pause_holds_the_head(story: Story) -> None:
    await story.report("A")
    async with begin(story.engine) as connection:
        await connection.execute(sa.update(t.queues).values(paused_reason="release day"))
    turned = await story.turn()
    assert turned.step == Hold(Reason.PAUSED, 1, detail="release day")


@pytest.mark.spec("V359")
@pytest.mark.parametrize("committed_at", [None, 1, NOW])
async def test_a_commit_keeps_the_time_that_came_with_it(
    story: Story, committed_at: int | None
) -> None:
    seen = Seen("A", committed_at, None, Ancestry.YES, named_before=False)
    await story.store.ingest(story.stamp(), seen, story.settings)
    await story.turn()
    assert (await story.request(1)).committed_at == committed_at
