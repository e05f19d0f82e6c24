"""Sinks that are out for hours and days; their clock is the server's, which is virtual here."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from itertools import pairwise
from pathlib import Path

import pytest
from temporalio import activity
from temporalio.client import Client

from domain.act import Act, Verb
from domain.errors import Refused, SinkOut
from domain.event import EventType, HookEvent
from domain.settings import Route
from domain.sinks import SinkSettings
from extensions.hooks.contract import Sink
from extensions.hooks.envelope import cloud_event
from extensions.hooks.fake import FakeSink
from extensions.hooks.webhook import WebhookSink
from tests.receiver import HANG, RESET, Receiver, Says, receiving
from tests.stores.story import Story
from tests.trunk import Trunk, make_trunk, trunk_worker
from workflows import ids
from workflows.hook import HookWorkflow
from workflows.messages import RequestInput

STARTED, RECORDED = EventType.STARTED, EventType.RECORDED
HOUR = timedelta(hours=1)


class Deaf:
    """Out until so long after the first call; keeps when it was called."""

    def __init__(self, sink: FakeSink, out: timedelta, after: float | None = None) -> None:
        self.times: list[datetime] = []
        self.asked: list[EventType] = []
        self._out, self._after = out, after
        sink.reads = self

    async def __call__(self, event: HookEvent) -> None:
        self.asked.append(event.type)
        now = activity.info().started_time
        self.times.append(now)
        if now < self.times[0] + self._out:
            raise SinkOut("503 out", self._after)

    @property
    def waits(self) -> list[float]:
        return [(b - a).total_seconds() for a, b in pairwise(self.times)]


@asynccontextmanager
async def told(client: Client, folder: Path, *uris: str) -> AsyncIterator[tuple[Trunk, FakeSink]]:
    """Requests whose events wait in the store; only their hooks run."""
    trunk = await make_trunk(client, folder, hooks=(Route("one"), Route("other")))
    trunk.sinks["other"] = other = FakeSink()
    trunk.parts.waker._hooks = _lost  # type: ignore[method-assign, assignment] # started by hand
    story = Story(
        trunk.store, trunk.parts.engine, trunk.fence, trunk.queue, trunk.config.get(trunk.queue)
    )
    for uri in uris:
        await story.validate(uri)
    try:
        async with trunk_worker(trunk):
            yield trunk, other
    finally:
        await trunk.parts.engine.dispose()


async def _lost(_: RequestInput) -> None:
    """Nobody hears it."""


async def deliver(trunk: Trunk, number: int) -> Callable[[], Awaitable[None]]:
    handle = await trunk.client.start_workflow(
        HookWorkflow.run,
        RequestInput(trunk.fence, trunk.queue, number),
        id=ids.hooks(trunk.queue, number),
        task_queue=trunk.queue,
    )
    return handle.result


async def test_a_sink_that_is_down_for_an_hour_gets_every_event_in_order_under_its_id(
    virtual: Client, tmp_path: Path
) -> None:
    async with told(virtual, tmp_path, "A", "B") as (trunk, other):
        deaf = Deaf(trunk.sink, HOUR)
        ended = [await deliver(trunk, number) for number in (1, 2)]
        for end in ended:
            await end()
        assert deaf.times[-1] - deaf.times[0] >= HOUR
        for number in (1, 2):
            mine = [event for event in trunk.sink.heard if event.request == number]
            assert [event.type for event in mine] == [STARTED, RECORDED]
            rows = await trunk.store.deliveries(trunk.queue, number)
            assert {event.id for event in mine} == {row.event.id for row in rows}
            assert {row.state for row in rows} == {"delivered"}
        assert len(other.heard) == 4


async def test_the_waits_double_from_a_second_to_ten_minutes_and_are_spread(
    virtual: Client, tmp_path: Path
) -> None:
    async with told(virtual, tmp_path, "A") as (trunk, _):
        deaf = Deaf(trunk.sink, HOUR)
        await (await deliver(trunk, 1))()
        due = [min(2.0**n, 600) for n in range(30)]
        told_to_wait = deaf.waits[:-1]
        assert len(told_to_wait) > 10
        for waited, whole in zip(told_to_wait, due, strict=False):
            assert 0.7 * whole <= waited <= whole + 5


@pytest.mark.spec("V270")
async def test_a_sink_out_for_73_hours_leaves_a_letter_with_the_event_and_goes_on_with_the_next(
    virtual: Client, tmp_path: Path
) -> None:
    """It asks to be left alone for six hours each time, which is obeyed and spends the budget."""
    async with told(virtual, tmp_path, "A") as (trunk, other):
        deaf = Deaf(trunk.sink, 73 * HOUR, after=6 * 3600)
        await (await deliver(trunk, 1))()
        (letter,) = await trunk.store.dead_letters(trunk.queue)
        started, recorded = (
            row for row in await trunk.store.deliveries(trunk.queue, 1) if row.sink == "one"
        )
        assert (started.state, recorded.state) == ("dead", "delivered")
        assert [event.type for event in trunk.sink.heard] == [RECORDED]
        assert [event.type for event in other.heard] == [STARTED, RECORDED]
        assert (letter.kind, letter.subject) == ("hook", f"{started.event.id} to one")
        content = json.loads(letter.detail)
        assert content["event"] == cloud_event(started.event, "lastgreen")
        assert content["attempts"] == deaf.asked.count(STARTED) > 12
        assert content["last_answer"].startswith("503 out")
        trunk.sink.reads = None
        act = Act("again", Verb.RETRY_LETTER, "ada", "it is mended", letter.id)
        story = Story(trunk.store, trunk.parts.engine, trunk.fence, trunk.queue)
        await trunk.store.act(story.stamp(), act, None)
        await (await deliver(trunk, 1))()
        assert trunk.sink.heard[-1] == started.event
        assert await trunk.store.dead_letters(trunk.queue) == []


class Timed:
    """A sink, and when it was called."""

    def __init__(self, sink: Sink) -> None:
        self.times: list[datetime] = []
        self._sink = sink

    async def deliver(self, event: HookEvent) -> None:
        self.times.append(activity.info().started_time)
        await self._sink.deliver(event)


def webhook_to(receiver: Receiver, allow: tuple[str, ...] = ("127.0.0.0/8",)) -> Timed:
    own = SinkSettings("one", "webhook", url=receiver.url, secrets=("HOOK",), allow=allow)
    return Timed(WebhookSink(own, "lastgreen"))


@pytest.fixture(autouse=True)
def _secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOOK", f"whsec_{b64encode(bytes(32)).decode()}")


@pytest.mark.spec("V269")
async def test_whatever_may_pass_is_tried_again_with_growing_waits(
    virtual: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("activities.hooks.CALL", 0.5)
    async with told(virtual, tmp_path, "A") as (trunk, _), receiving() as receiver:
        trunk.sinks["one"] = sink = webhook_to(receiver)
        there = {"location": f"{receiver.url}/elsewhere"}
        receiver.answers.extend([Says(500), Says(404), Says(302, b"", there), HANG, RESET])
        await (await deliver(trunk, 1))()
        assert [event["type"] for event in receiver.events] == [STARTED] * 6 + [RECORDED]
        assert len({event["id"] for event in receiver.events}) == 2
        assert {got.path for got in receiver.got} == {"/hook"}
        first = sink.times[:6]
        waits = [(b - a).total_seconds() for a, b in pairwise(first)]
        assert waits == sorted(waits)
        assert waits[-1] > 4 * waits[0]
        assert await trunk.store.dead_letters(trunk.queue) == []


@pytest.mark.spec("V269")
@pytest.mark.parametrize("why", ["410", "address"])
async def test_what_is_gone_or_may_not_be_called_is_dead_at_once(
    virtual: Client, tmp_path: Path, why: str
) -> None:
    async with told(virtual, tmp_path, "A") as (trunk, _), receiving() as receiver:
        receiver.usual = Says(410)
        sink = webhook_to(receiver, allow=("127.0.0.0/8",) if why == "410" else ())
        trunk.sinks["one"] = sink
        await (await deliver(trunk, 1))()
        letters = await trunk.store.dead_letters(trunk.queue)
        assert [json.loads(letter.detail)["attempts"] for letter in letters] == [1, 1]
        assert len(sink.times) == 2
        assert len(receiver.got) == (2 if why == "410" else 0)


async def test_what_is_refused_for_good_is_dead_after_one_attempt(
    virtual: Client, tmp_path: Path
) -> None:
    async with told(virtual, tmp_path, "A") as (trunk, _):
        trunk.sink.errors.append(Refused("410 gone"))
        await (await deliver(trunk, 1))()
        (letter,) = await trunk.store.dead_letters(trunk.queue)
        content = json.loads(letter.detail)
        assert (content["attempts"], content["last_answer"]) == (1, "410 gone")
        assert [event.type for event in trunk.sink.heard] == [RECORDED]


async def test_a_budget_of_its_own_ends_sooner(virtual: Client, tmp_path: Path) -> None:
    async with told(virtual, tmp_path, "A") as (trunk, _):
        trunk.config.own_sinks["one"] = SinkSettings(
            "one", "webhook", 60, "https://x.example", secrets=("S",)
        )
        deaf = Deaf(trunk.sink, HOUR)
        await (await deliver(trunk, 1))()
        assert len(await trunk.store.dead_letters(trunk.queue)) == 2
        assert deaf.times[-1] - deaf.times[0] < HOUR
