from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
import sqlalchemy as sa

from domain.build import Status
from domain.errors import (
    Fenced,
    Invariant,
    NotFound,
    StoreOut,
    ValueRefused,
    WrongInstallation,
)
from domain.fact import Fact
from domain.gate import Ancestry, Hold, Reason, Seen, is_kept
from domain.identity import Fence
from domain.request import Cause, Origin, State, Strategy, Transition, may_hold
from stores import schema
from stores import tables as t
from stores.contract import Answer, Build, Failure, Follows, Happening, Stamp
from stores.engine import begin, open_engine
from stores.transaction import move, transaction
from tests.stores.conftest import NOW, Backend, Story, fails_at_each_statement


@pytest.mark.spec("V19", "V41")
async def test_a_failure_at_any_statement_of_ingest_leaves_nothing(story: Story) -> None:
    await story.report("A")
    await story.turn()
    await story.report("B")
    statements = await fails_at_each_statement(story, lambda: story.report("C"), story.rows)
    assert statements >= 8
    requests = await story.store.requests(story.queue)
    assert [(r.uri, r.state) for r in requests] == [
        ("C", State.ACCEPTED),
        ("B", State.SUPERSEDED),
        ("A", State.PROCESSING),
    ]
    numbers = [r.number for r in reversed(requests)]
    assert numbers == sorted(set(numbers))
    latest = (await story.store.queue(story.queue)).latest
    assert latest and latest.uri == "C"


@pytest.mark.spec("V30")
async def test_a_number_given_out_twice_is_refused_and_nobody_is_changed(story: Story) -> None:
    await story.report("A")
    before = await story.store.requests(story.queue)
    async with begin(story.engine) as connection:
        await connection.execute(sa.update(t.queues).values(next_number=1))
    with pytest.raises(Invariant):
        await story.report("B")
    assert await story.store.requests(story.queue) == before


@pytest.mark.spec("V40")
async def test_superseding_a_thousand_heads_is_one_statement(story: Story) -> None:
    counts = []
    for backlog in (10, 1000):
        other = story.elsewhere(f"backlog/{backlog}")
        await _many_waiting(other, backlog)
        statements: list[str] = []

        def heard(*arguments: Any, into: list[str] = statements) -> None:
            into.append(arguments[2])

        sa.event.listen(story.engine.sync_engine, "before_cursor_execute", heard)
        await other.report("new")
        sa.event.remove(story.engine.sync_engine, "before_cursor_execute", heard)
        counts.append(len(statements))
        requests = await other.store.requests(other.queue, limit=2000)
        assert [r.state for r in requests] == [State.ACCEPTED] + [State.SUPERSEDED] * backlog
        for number in (1, backlog):
            assert (await other.history(number))[-1:] == ["superseded_by_newer_head"]
    assert counts[0] == counts[1]


async def _many_waiting(story: Story, count: int) -> None:
    """As a store that was filled by hand: no head supersedes another."""
    rows = [
        {"queue": story.queue, "number": n, "order": n, "line": 1, "uri": f"u{n}"}
        | {"origin": "head", "state": "accepted", "accepted_at": NOW}
        for n in range(1, count + 1)
    ]
    async with begin(story.engine) as connection:
        queue = {"name": story.queue, "next_number": count + 1, "version": 1}
        await connection.execute(sa.insert(t.queues).values(queue))
        await connection.execute(sa.insert(t.requests), rows)


@pytest.mark.spec("V42")
@pytest.mark.parametrize("cap", [1, 2, 4])
@pytest.mark.parametrize("rewrite", [False, True])
async def test_the_statement_that_supersedes_keeps_the_rule(
    story: Story, cap: int, *, rewrite: bool
) -> None:
    await _many_waiting(story, 7)
    story.settings = replace(story.settings, max_concurrent=cap)
    await story.report("new", rewrite=rewrite)
    for newer, request in enumerate(await story.store.requests(story.queue)):
        kept = request.state is State.ACCEPTED
        assert kept is is_kept(newer, cap, rewritten=rewrite)


@pytest.mark.spec("V44")
async def test_only_what_still_waits_is_superseded(story: Story) -> None:
    await story.report("A")
    await story.turn()
    await story.report("B", "C")
    assert (await story.store.request(story.queue, 1)).state is State.PROCESSING


@pytest.mark.spec("V63", "V86")
async def test_a_failure_at_any_statement_of_admit_leaves_it_accepted(story: Story) -> None:
    await story.report("A")
    await fails_at_each_statement(story, story.turn, story.rows)
    a = await story.store.request(story.queue, 1)
    assert (a.state, a.strategy) == (State.PROCESSING, Strategy.FULL)
    (delivery,) = await story.store.pending(story.queue, 1)
    assert delivery.event.type == "validation.repository.started"
    assert "slots" not in t.metadata.tables


@pytest.mark.spec("V119")
async def test_a_failure_at_any_statement_of_settle_leaves_it_processing(story: Story) -> None:
    await story.report("A")
    await story.turn()
    await story.trigger(1)

    async def stands() -> Any:
        request = await story.store.request(story.queue, 1)
        return request, await story.store.builds(story.queue, 1), await story.rows()

    await fails_at_each_statement(story, lambda: story.answer(1, "succeeded"), stands)
    a = await story.store.request(story.queue, 1)
    assert (a.state, a.terminal_build_id) == (State.SUCCEEDED, "b/1/1")
    queue = await story.store.queue(story.queue)
    assert queue.in_flight == ()
    assert queue.last_green == a


@pytest.mark.spec("V92", "V93", "V305", "V13")
async def test_the_database_itself_refuses_rows_that_break_an_invariant(story: Story) -> None:
    await story.validate("A")
    good = {"queue": story.queue, "number": 50, "order": 50, "line": 1, "uri": "z"}
    good |= {"origin": "head", "state": "accepted", "accepted_at": NOW}
    admitted = {"state": "processing", "strategy": "full", "admitted_at": NOW, "deadline_at": NOW}
    bad: list[dict[str, Any]] = [
        {"state": "processing"},
        admitted | {"base_uri": "A"},
        admitted | {"strategy": "incremental_since_green"},
        admitted | {"strategy": "sideways"},
        {"state": "sleeping"},
        {"cause": "build_failed"},
        {"ended_at": NOW},
        {"green_at": NOW},
        {"recorded_at": NOW},
        {"order": 49},
        {"order": 51, "origin": "retry"},
        {"origin": "retry"},
        {"retry_of": 1},
        {"probe_of": 1},
        {"origin": "retry", "retry_of": 77, "order": 1},
        {"number": 0, "order": 0},
        {"uri": ""},
        {"uri": "x" * 1025},
        {"committed_at": 0},
        {"ending": "person"},
        {"ending": "whim", "ending_attempt": 1, "ending_at": NOW},
        {"state": "superseded", "cause": "superseded_by_newer_head", "ended_at": 1},
        {"queue": "nobody"},
    ]
    for change in bad:
        with pytest.raises(Invariant):
            async with begin(story.engine) as connection:
                await connection.execute(sa.insert(t.requests).values(good | change))
    build = {"queue": story.queue, "runner": "r", "id": "i", "request": 1, "attempt": 2}
    build |= {"status": "running", "triggered_at": NOW}
    for change in ({"status": "lost"}, {"attempt": 0}, {"attempt": 1}, {"request": 9}, {"id": ""}):
        with pytest.raises(Invariant):
            async with begin(story.engine) as connection:
                await connection.execute(sa.insert(t.builds).values(build | change))
    fact: dict[str, Any] = {"queue": story.queue, "uri": "A", "project": ""}
    fact |= {"request": 2, "degree": 0.0}
    fact |= {"cause": "build_succeeded", "created_at": NOW}
    for change in ({"degree": 1.1}, {"degree": -1.0}, {"cause": "never_started"}, {"request": 9}):
        with pytest.raises(Invariant):
            async with begin(story.engine) as connection:
                await connection.execute(sa.insert(t.facts).values(fact | change))
    with pytest.raises(Invariant):
        async with begin(story.engine) as connection:
            await connection.execute(sa.insert(t.installation).values(only=2, id="0" * 32, epoch=1))


@pytest.mark.spec("V13")
async def test_exactly_the_pairs_of_the_table_of_endings_are_stored(story: Story) -> None:
    await story.validate("A")
    pairs = [(o, s, c) for o in Origin for s in State for c in (None, *Cause)]
    for number, (origin, state, cause) in enumerate(pairs, 100):
        ended = {"ended_at": NOW} if state.is_terminal else {}
        flown = {"strategy": "full", "admitted_at": NOW, "deadline_at": NOW}
        row = {"queue": story.queue, "number": number, "order": number, "line": 1, "uri": "z"}
        row |= {"origin": origin, "state": state, "cause": cause, "accepted_at": NOW}
        row |= ended | (flown if state is State.PROCESSING else {})
        if origin is not Origin.HEAD:
            row |= {"probe_of" if origin is Origin.PROBE else "retry_of": 1, "order": 1}
        try:
            async with begin(story.engine) as connection:
                await connection.execute(sa.insert(t.requests).values(row))
            stored = True
        except Invariant:
            stored = False
        assert stored is may_hold(origin, state, cause), (origin, state, cause)


@pytest.mark.spec("V14", "V79")
async def test_move_takes_arrows_alone_and_changes_nothing_that_is_set(story: Story) -> None:
    await story.report("A")
    await story.turn()
    before = await story.store.request(story.queue, 1)
    again = Transition(1, State.PROCESSING, NOW, strategy=Strategy.INCREMENTAL, base_uri="Z")
    async with transaction(story.engine, story.stamp()) as tx:
        assert await move(tx, again) is State.PROCESSING
    assert await story.store.request(story.queue, 1) == before
    with pytest.raises(Invariant):
        async with transaction(story.engine, story.stamp()) as tx:
            await move(tx, Transition(1, State.SUCCEEDED, NOW, Cause.ADOPTED_FACT))
    await story.trigger(1)
    await story.answer(1, "failed")
    ended = await story.store.request(story.queue, 1)
    async with transaction(story.engine, story.stamp()) as tx:
        step = Transition(1, State.CANCELLED, NOW, Cause.CANCELLED_BY_PERSON)
        assert await move(tx, step) is State.FAILED
    assert await story.store.request(story.queue, 1) == ended


@pytest.mark.spec("V101")
async def test_a_build_row_is_written_once_an_attempt(story: Story) -> None:
    await story.report("A")
    await story.turn()
    build = await story.trigger(1)
    await story.store.build_row(story.stamp(), replace(build, triggered_at=NOW), found=True)
    assert await story.store.builds(story.queue, 1) == [build]
    await story.answer(1, "failed")
    await story.report("B")
    await story.turn()
    stolen = replace(build, request=2)
    with pytest.raises(Invariant):
        await story.store.build_row(story.stamp(), stolen, found=False)
    assert await story.store.builds(story.queue, 2) == []


@pytest.mark.spec("V144")
async def test_a_fact_stays_as_it_was(story: Story) -> None:
    await story.validate("A", "failed")
    fact = await story.store.fact(story.queue, "A")
    await story.record(1)
    assert await story.store.fact(story.queue, "A") == fact
    assert not any(name.startswith(("update", "delete")) for name in dir(story.store))


@pytest.mark.spec("V182")
@pytest.mark.parametrize(
    ("degrees", "decides"),
    [({3: 1.0, 7: 0.0}, 7), ({3: 0.0, 7: 1.0}, 3), ({3: 1.0, 7: 0.5}, 7), ({3: 0.0, 7: 0.0}, 7)],
)
async def test_the_newest_green_attempt_is_authoritative(
    story: Story, degrees: dict[int, float], decides: int
) -> None:
    for uri in "abcdefg":
        await story.report(uri)
    async with begin(story.engine) as connection:
        for number, degree in degrees.items():
            cause = "build_failed" if degree else "build_succeeded"
            row = {"queue": story.queue, "uri": "X", "project": "", "request": number}
            row |= {"degree": degree, "cause": cause, "created_at": NOW}
            await connection.execute(sa.insert(t.facts).values(row))
    fact = await story.store.fact(story.queue, "X")
    assert fact == Fact(
        "X", "", decides, degrees[decides], fact.cause if fact else Cause.BUILD_FAILED, NOW
    )


@pytest.mark.spec("V129")
async def test_last_green_and_the_holder_are_the_top_of_theirs(story: Story) -> None:
    story.settings = replace(story.settings, max_concurrent=2)
    await story.report("A", "B")
    await story.turn()
    for number in (1, 2):
        await story.trigger(number)
    await story.answer(2, "succeeded")
    await story.record(2)
    await story.answer(1, "succeeded")
    await story.record(1)
    queue = await story.store.queue(story.queue)
    assert queue.last_green and queue.last_green.number == 2
    assert queue.holder and queue.holder.number == 2
    assert queue.latest and queue.latest.number == 2


@pytest.mark.spec("V232")
async def test_failing_closed_is_one_transaction(story: Story) -> None:
    await story.report("A")
    await story.turn()
    failure = Failure(1, Cause.TRIGGER_FAILED, "422: no such pipeline")

    async def act() -> None:
        await story.store.fail(story.stamp(), failure, story.settings)

    await fails_at_each_statement(story, act, story.rows)
    assert (await story.store.request(story.queue, 1)).cause is Cause.TRIGGER_FAILED
    (letter,) = await story.store.dead_letters(story.queue)
    assert (letter.kind, letter.cause) == ("request", "trigger_failed")
    assert [d.event.type for d in await story.store.pending(story.queue, 1)] == [
        "validation.repository.started",
        "validation.repository.abandoned",
    ]
    await act()
    assert len(await story.store.dead_letters(story.queue)) == 1


@pytest.mark.spec("V295")
async def test_what_is_committed_is_read_back_by_any_connection(
    story: Story, backend: Backend
) -> None:
    await story.validate("A")
    async with backend.story() as other:
        assert await other.store.requests(story.queue) == await story.store.requests(story.queue)
        assert await other.store.builds(story.queue, 1) == await story.store.builds(story.queue, 1)
        assert await other.store.history(story.queue, 1) == await story.store.history(
            story.queue, 1
        )
        assert await other.store.fact(story.queue, "A") == await story.store.fact(story.queue, "A")
        assert await other.store.fence() == story.fence
    with pytest.raises(NotFound):
        await story.store.request(story.queue, 99)
    note = Happening(story.queue, "1", "promoted", "", 1, "first")
    await story.store.note(story.stamp(), note)
    await story.store.note(story.stamp(), replace(note, detail="second"))
    told = [r.detail for r in await story.store.history(story.queue, 1) if r.kind == "promoted"]
    assert told == ["first"]


@pytest.mark.spec("V296", "V303")
async def test_fifty_at_once_decide_on_what_the_one_before_left(
    story: Story, backend: Backend
) -> None:
    async with backend.story() as other:
        before = (await story.store.queue(story.queue)).version
        stores = [story, other]
        await asyncio.gather(*(stores[n % 2].report(f"u{n % 25}") for n in range(50)))
        numbers = [r.number for r in await story.store.requests(story.queue, limit=200)]
        assert len(numbers) == len(set(numbers))
        assert (await story.store.queue(story.queue)).version == before + 50
        await asyncio.gather(*(stores[n % 2].turn() for n in range(50)))
        (flying,) = (await story.store.queue(story.queue)).in_flight
        assert (await story.history(flying.number)).count("admitted") == 1
        await story.trigger(flying.number)
        answers = ["succeeded", "failed"] * 25
        judged = await asyncio.gather(
            *(stores[n % 2].answer(flying.number, said) for n, said in enumerate(answers))
        )
        assert {j.follows for j in judged} == {Follows.SETTLED}
        ended = await story.store.request(story.queue, flying.number)
        assert {j.state for j in judged} == {ended.state}
        history = await story.history(flying.number)
        assert history.count("build_finished") == 1


@pytest.mark.spec("V297", "V29")
async def test_a_queue_reaches_no_row_of_another(story: Story) -> None:
    other = story.elsewhere("elsewhere/main")
    await story.validate("A")
    await other.report("A")
    assert (await other.store.request(other.queue, 1)).state is State.ACCEPTED
    assert await other.store.fact(other.queue, "A") is None
    assert await other.store.builds(other.queue, 1) == []
    await other.turn()
    await other.trigger(1)
    await other.answer(1, "failed")
    await other.record(1)
    mine, theirs = [await s.store.fact(s.queue, "A") for s in (story, other)]
    assert mine and theirs and (mine.degree, theirs.degree) == (0, 1)


@pytest.mark.spec("V298")
async def test_facts_with_and_without_a_project_and_by_attempts_are_different(
    story: Story,
) -> None:
    for uri in "ab":
        await story.report(uri)
    async with begin(story.engine) as connection:
        for project in ("", "app"):
            for request in (1, 2):
                row: dict[str, Any] = {"queue": story.queue, "uri": "X", "project": project}
                row |= {"request": request}
                row |= {"degree": 1.0, "cause": "build_failed", "created_at": NOW}
                await connection.execute(sa.insert(t.facts).values(row))
    assert (await story.rows())["facts"] == 4
    fact = await story.store.fact(story.queue, "X", "app")
    assert fact and (fact.project, fact.request) == ("app", 2)


@pytest.mark.spec("V9", "V299")
async def test_names_that_differ_only_a_little_are_different(story: Story) -> None:
    uris = ["Abc", "abc", "abc/", "ábc", "a\u0301bc", "abc "]
    for uri in uris:
        await story.report(uri)
    for number, uri in enumerate(uris, 1):
        (found,) = await story.store.attempts(story.queue, uri)
        assert found.number == number
    for queue in ("a/Main", "a/main"):
        await story.elsewhere(queue).report("A")
    assert len(await story.store.queues()) == 3


@pytest.mark.spec("V396")
async def test_another_installation_and_an_older_epoch_are_refused_and_told_apart(
    story: Story,
) -> None:
    await story.report("A")
    rows = await story.rows()
    seen = Seen("B", None, "A", Ancestry.YES, named_before=False)
    strange = Stamp(Fence("f" * 32, story.fence.epoch), story.queue, NOW)
    old = Stamp(Fence(story.fence.installation, story.fence.epoch - 1), story.queue, NOW)
    for stamp, error in ((strange, WrongInstallation), (old, Fenced)):
        calls = [
            story.store.ingest(stamp, seen, story.settings),
            story.store.turn(stamp, story.settings, {}),
            story.store.build_row(stamp, Build("r", "i", 1, 1, Status.RUNNING, NOW), found=True),
            story.store.observe(stamp, Answer(1, 1, "failed"), story.settings),
            story.store.fail(stamp, Failure(1, Cause.PROCESSING_FAILED, "x"), story.settings),
            story.store.facts(stamp, 1),
            story.store.announce(stamp, 1, story.settings, None),
            story.store.note(stamp, Happening(story.queue, "1", "promoted", "", 1)),
            story.store.stage(stamp.fence, story.queue, 1),
            story.store.check(stamp.fence),
        ]
        for call in calls:
            with pytest.raises(error):
                await call
    assert await story.rows() == rows
    async with begin(story.engine) as connection:
        await connection.execute(sa.update(t.installation).values(epoch=story.fence.epoch + 1))
    with pytest.raises(Fenced):
        await story.report("B")


@pytest.mark.spec("V397")
@pytest.mark.parametrize("uri", ["x" * 1025, "", "lone \ud800 surrogate"])
async def test_a_value_that_the_store_refuses_is_no_outage(story: Story, uri: str) -> None:
    await story.report("A")
    rows = await story.rows()
    with pytest.raises(ValueRefused):
        await story.report(uri)
    assert await story.rows() == rows


@pytest.mark.spec("V304")
def test_every_key_and_index_leads_with_the_queue() -> None:
    exempt = {"installation", "tokens", "queues"}
    for table in t.metadata.tables.values():
        if table.name in exempt:
            continue
        assert next(iter(table.primary_key.columns)).name == "queue"
        for index in table.indexes:
            assert next(iter(index.columns)).name == "queue", index.name
    derived = {"slots", "queue_pointers", "green_log"}
    assert not derived & set(t.metadata.tables)
    columns = {column.name for column in t.queues.columns}
    assert columns == {"name", "next_number", "paused_reason", "version"}


@pytest.mark.spec("V306")
async def test_an_upgrade_keeps_every_row_and_an_unknown_schema_is_refused(
    story: Story, backend: Backend
) -> None:
    await story.validate("A")
    before = (await story.store.requests(story.queue), await story.rows())
    assert await schema.upgrade(story.engine, NOW + 1) == schema.newest()
    assert (await story.store.requests(story.queue), await story.rows()) == before
    assert await story.store.fence() == story.fence
    await schema.check(story.engine)
    async with begin(story.engine) as connection:
        await connection.exec_driver_sql("update alembic_version set version_num = '9999'")
    with pytest.raises(Exception, match="db upgrade"):
        await schema.check(story.engine)
    empty = open_engine(backend.url.replace("store.db", "empty.db"))
    with pytest.raises(Exception, match="schema is empty"):
        await schema.check(empty)
    await empty.dispose()


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


async def test_the_migrations_make_what_the_tables_say(story: Story) -> None:
    from alembic.autogenerate import compare_metadata
    from alembic.runtime.migration import MigrationContext

    async with story.engine.connect() as connection:
        differences = await connection.run_sync(
            lambda sync: compare_metadata(MigrationContext.configure(sync), t.metadata)
        )
    assert differences == []


@pytest.mark.spec("V302")
async def test_an_empty_queue_name_binds_no_store(story: Story) -> None:
    rows = await story.rows()
    with pytest.raises(Invariant):
        await story.store.turn(replace(story.stamp(), queue=""), story.settings, {})
    assert await story.rows() == rows


@pytest.mark.spec("V301")
async def test_a_driver_error_is_told_as_what_it_is(story: Story) -> None:
    with pytest.raises(StoreOut, match="no such table: nowhere"):
        async with begin(story.engine) as connection:
            await connection.exec_driver_sql("select * from nowhere")
    await story.report("A")
    with pytest.raises(Invariant, match="a row of that identity exists"):
        async with begin(story.engine) as connection:
            await connection.execute(
                sa.insert(t.queues).values(name=story.queue, next_number=1, version=1)
            )
