"""What a head costs: events of its workflows, and statements of the store."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Final

import pytest_asyncio
import sqlalchemy as sa
from temporalio import activity
from temporalio.client import Client

from domain.request import State
from tests.trunk import Trunk, running_trunk
from workflows import ids

EVENTS: Final = {"queue": 24, "build": 25, "buildsignal": 13, "record": 13}
"""Of one head on an idle queue, with promotion, at a runner that tells when it is done."""
STATEMENTS: Final = 130
EVENTS_SUPERSEDED: Final = 0.2
STATEMENTS_SUPERSEDED: Final = 1.0
HEADS: Final = 300


@pytest_asyncio.fixture
async def trunk(client: Client, tmp_path: Path) -> AsyncIterator[Trunk]:
    async with running_trunk(client, tmp_path, hooks=()) as trunk:
        yield trunk


async def quiet(trunk: Trunk) -> int:
    """Events of the queue once it has nothing more to do."""
    seen = -1
    while (now := (await trunk.handle.describe()).history_length) != seen:
        seen = now
        await asyncio.sleep(0.5)
    return seen


async def validated(trunk: Trunk, uri: str) -> Counter[str]:
    """Found by the watch, built for a while, then green."""
    before = await quiet(trunk)
    trunk.source.land(uri)
    await trunk.poke()
    await trunk.is_in(uri, State.PROCESSING)
    await trunk.until(lambda: watched(trunk, uri))
    number = (await trunk.succeeds(uri)).number
    found = Counter({"queue": await quiet(trunk) - before})
    for kind, workflow_id in {
        "build": ids.build(trunk.queue, number),
        "buildsignal": ids.buildsignal(trunk.queue, number, 1),
        "record": ids.record(trunk.queue, number),
    }.items():
        about = await trunk.client.get_workflow_handle(workflow_id).describe()
        found[kind] = about.history_length
    return found


async def watched(trunk: Trunk, uri: str) -> bool:
    """Its build was asked about, so now its watcher waits."""
    builds = [build.id for build in trunk.runner.builds.values() if build.order.head_uri == uri]
    return bool(builds) and builds[-1] in trunk.runner.asked


@contextmanager
def statements(trunk: Trunk) -> Iterator[Counter[str]]:
    """Of each activity; what the test itself reads is not counted."""
    found: Counter[str] = Counter()

    def note(*arguments: object) -> None:
        if activity.in_activity() and not str(arguments[2]).startswith("BEGIN"):
            found[activity.info().activity_type] += 1

    engine = trunk.parts.engine.sync_engine
    sa.event.listen(engine, "before_cursor_execute", note)
    try:
        yield found
    finally:
        sa.event.remove(engine, "before_cursor_execute", note)


def grown(found: Mapping[str, float]) -> str:
    return "; ".join(
        f"{kind} has {found[kind]:g}, and had {EVENTS[kind]}"
        for kind in EVENTS
        if found[kind] > EVENTS[kind]
    )


async def test_a_validated_head_costs_75_events_at_most(trunk: Trunk) -> None:
    await trunk.report("A")
    await trunk.succeeds("A")
    with statements(trunk) as asked:
        heads = [await validated(trunk, uri) for uri in "BCDEF"]
    found = {kind: median(head[kind] for head in heads) for kind in EVENTS}
    assert sum(found.values()) <= sum(EVENTS.values()) == 75, grown(found)
    assert asked.total() / len(heads) <= STATEMENTS, asked


async def test_a_superseded_head_costs_a_fifth_of_an_event_at_most(trunk: Trunk) -> None:
    await trunk.report("A")
    await trunk.until(lambda: watched(trunk, "A"))
    before = await quiet(trunk)
    with statements(trunk) as asked:
        for number in range(HEADS):
            trunk.source.land(f"B{number}")
            _ = trunk.parts.waker.head_moved(trunk.fence, trunk.queue)
            await asyncio.sleep(0)
        await trunk.is_in(f"B{HEADS - 1}", State.ACCEPTED)
        events = await quiet(trunk) - before
    assert len(trunk.runner.triggers) == 1
    assert events / HEADS <= EVENTS_SUPERSEDED, f"the queue has {events} events of {HEADS} heads"
    assert asked.total() / HEADS <= STATEMENTS_SUPERSEDED, asked
