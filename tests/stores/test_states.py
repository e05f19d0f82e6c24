"""Who may change a request's state, and who is superseded."""

from __future__ import annotations

import ast
import itertools
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any, Final

import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

import stores
from domain.errors import Invariant, NotFound
from domain.gate import Ancestry, is_kept
from domain.request import Cause, Origin, State, Strategy, Transition, is_arrow
from stores import tables as t
from stores.engine import begin
from stores.rows import Request
from stores.transaction import move, transaction
from tests.stores.story import NOW, QUEUE, Story, a_request

QUEUES: Final = itertools.count()


def columns_for(target: State, cause: Cause | None, at: int) -> Transition:
    is_admission = cause is None
    strategy = Strategy.FULL if is_admission else None
    deadline = at + 1 if is_admission else None
    return Transition(1, target, at, cause, strategy=strategy, deadline_at=deadline)


@pytest.mark.spec("V14")
async def test_move_takes_exactly_the_arrows(story: Story) -> None:
    await story.report("A")
    number = 100
    async with transaction(story.engine, story.stamp()) as tx:
        for source, target, cause in product(State, State, [None, *Cause]):
            number += 1
            row = {"queue": QUEUE} | a_request(number, source)
            await tx.connection.execute(sa.insert(t.requests).values(row))
            step = replace(columns_for(target, cause, tx.at), request=number)
            told = len(tx.committed.happenings)
            if is_arrow(source, target, cause):
                assert await move(tx, step) is target
                ended = tx.committed.happenings[told]
                assert (ended.subject, ended.kind) == (str(number), cause or "admitted")
                continue
            if source is target or source.is_terminal:
                assert await move(tx, step) is source
            else:
                with pytest.raises(Invariant):
                    await move(tx, step)
            mine = sa.select(t.requests).where(t.requests.c.number == number)
            stands = (await tx.connection.execute(mine)).one()._mapping
            assert {name: stands[name] for name in row} == row
            assert len(tx.committed.happenings) == told


@pytest.mark.spec("V14")
def test_only_move_and_supersede_write_a_state() -> None:
    writers = set()
    for path in Path(stores.__file__).parent.glob("*.py"):
        for function in ast.walk(ast.parse(path.read_text())):
            if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            for call in ast.walk(function):
                if isinstance(call, ast.Call) and _updates_requests(call):
                    writers.add(function.name)
    assert writers == {"move", "supersede"}


def _updates_requests(call: ast.Call) -> bool:
    is_values = isinstance(call.func, ast.Attribute) and call.func.attr == "values"
    sets_state = any(keyword.arg == "state" for keyword in call.keywords)
    return is_values and sets_state and "update(t.requests)" in ast.unparse(call)


@pytest.mark.spec("V79")
async def test_what_admit_has_written_stays(story: Story) -> None:
    story.settings = replace(story.settings, max_concurrent=2)
    await story.fly("A", "B")
    await story.answer(1, "succeeded")
    await story.record(1)
    pinned = await story.request(2)
    assert (pinned.strategy, pinned.base_uri) == (Strategy.FULL, None)
    story.settings = replace(story.settings, validation_timeout=1)
    await story.turn()
    again = Transition(
        2, State.PROCESSING, NOW, strategy=Strategy.INCREMENTAL, base_uri="A", deadline_at=1
    )
    async with transaction(story.engine, story.stamp()) as tx:
        assert await move(tx, again) is State.PROCESSING
    assert await story.request(2) == pinned
    await story.answer(2, "failed")
    ended = await story.request(2)
    for name in ("strategy", "base_uri", "deadline_at", "admitted_at"):
        assert getattr(ended, name) == getattr(pinned, name)


async def test_a_request_that_does_not_exist_is_not_moved(story: Story) -> None:
    with pytest.raises(NotFound):
        async with transaction(story.engine, story.stamp()) as tx:
            await move(tx, Transition(7, State.PROCESSING, tx.at))


@pytest.mark.spec("V44")
async def test_only_what_still_waits_is_superseded(story: Story) -> None:
    await story.fly("A")
    await story.report("B")
    await story.put(t.requests, *(a_request(n, s) for n, s in enumerate(State, 50)))
    async with begin(story.engine) as connection:
        await connection.execute(sa.update(t.queues).values(next_number=100))
    before = {r.number: r for r in await story.store.requests(QUEUE)}
    await story.report("new", rewrite=True)
    for number, request in before.items():
        now = await story.request(number)
        if request.state is State.ACCEPTED:
            assert now.state is State.SUPERSEDED
        else:
            assert now == request


ROWS = st.lists(
    st.tuples(
        st.sampled_from(
            [State.ACCEPTED] * 4
            + [State.PROCESSING, State.SUCCEEDED, State.FAILED, State.CANCELLED]
        ),
        st.sampled_from([Origin.HEAD] * 3 + [Origin.RETRY, Origin.AUTO_RETRY, Origin.PROBE]),
        st.integers(0, 30),
    ),
    min_size=1,
    max_size=12,
)


def rows_of(queue: str, shapes: list[tuple[State, Origin, int]]) -> list[dict[str, Any]]:
    """The first is a head; what is none is of one of the heads before it."""
    rows: list[dict[str, Any]] = []
    for number, (state, origin, which) in enumerate(shapes, 1):
        heads = [row["number"] for row in rows if row["origin"] == "head"]
        row = a_request(number, state, queue=queue)
        if heads and origin is not Origin.HEAD:
            target = heads[which % len(heads)]
            of = "probe_of" if origin is Origin.PROBE else "retry_of"
            row |= {"origin": origin, "order": target, of: target, "uri": f"u{target}"}
        rows.append(row)
    return rows


@pytest.mark.spec("V42")
@hypothesis_settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(shapes=ROWS, cap=st.integers(1, 4), rewrite=st.booleans())
async def test_the_newest_head_stays_and_older_ones_as_there_are_slots(
    story: Story, shapes: list[tuple[State, Origin, int]], cap: int, *, rewrite: bool
) -> None:
    world = story.elsewhere(f"rows/{next(QUEUES)}")
    world.settings = replace(world.settings, max_concurrent=cap)
    rows = rows_of(world.queue, shapes)
    await world.put(t.queues, {"name": world.queue, "next_number": len(rows) + 1, "version": 1})
    await world.put(t.requests, *rows)
    before = {r.number: r for r in await world.store.requests(world.queue)}
    newest = await world.report("new", rewrite=rewrite)
    assert (await world.request(newest)).state is State.ACCEPTED
    heads = [r.order for r in before.values() if r.origin is Origin.HEAD] + [newest]
    for number, was in before.items():
        now = await world.request(number)
        if _would_be_superseded(was, heads, cap, rewrite=rewrite):
            assert (now.state, now.cause) == (State.SUPERSEDED, Cause.SUPERSEDED_BY_NEWER_HEAD)
            assert await world.history(number) == ["superseded_by_newer_head"]
        else:
            assert now == was


def _would_be_superseded(was: Request, heads: list[int], cap: int, *, rewrite: bool) -> bool:
    newer = sum(order > was.order for order in heads)
    apart = was.origin in (Origin.RETRY, Origin.PROBE) or was.state is not State.ACCEPTED
    return not apart and not is_kept(newer, cap, rewritten=rewrite)


@pytest.mark.spec("V42")
async def test_a_lowered_cap_supersedes_at_the_next_turn(story: Story) -> None:
    story.settings = replace(story.settings, max_concurrent=4)
    await story.report(*"ABCD")
    await story.turn(Ancestry.UNKNOWN)
    story.settings = replace(story.settings, max_concurrent=1)
    await story.turn()
    states = [r.state for r in reversed(await story.store.requests(QUEUE))]
    superseded = [State.SUPERSEDED] * 2
    assert states == [State.PROCESSING, *superseded, State.ACCEPTED]
