"""Who was told what; once more on demand; and whether a sink would hear at all."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated, Final

import typer
from temporalio.client import Client

from activities.hooks import one_call
from cli.output import show, show_rows
from cli.verb import Here
from cli.verbs.people import RequestName, Why, by_the_queue
from domain.act import Verb
from domain.errors import NotFound, StoreOut
from domain.event import EventType, HookEvent, queue_named_in
from domain.fact import Exit
from domain.identity import RequestId
from extensions.queueconfig.contract import QueueConfig
from wiring.parts import make_parts
from wiring.settings import reading

EventId = Annotated[str, typer.Argument(metavar="EVENT", help="Its id, as `hooks list` shows it")]
SinkName = Annotated[str, typer.Argument(metavar="SINK", help="As the configuration names it")]
NOBODY: Final = "lastgreen/test"
SAMPLE: Final = "0" * 32
"""The installation of a sample: no event of a store has its id."""


@dataclass(frozen=True)
class Only:
    sink: Annotated[str, typer.Option(help="Only to this one; default: to all that heard it")] = ""


async def deliveries(here: Here, request: RequestName) -> int:
    """The events of a request, and what became of each at each sink."""
    parsed = RequestId.parse(request)
    async with reading(here.settings) as reader:
        _ = await reader.request(parsed.queue, parsed.number)
        found = await reader.deliveries(parsed.queue, parsed.number)
    told = [
        {"event": d.event.id, "sink": d.sink, "state": d.state, "last_error": d.last_error}
        for d in found
    ]
    rows = [tuple(map(str, row.values())) for row in told]
    show_rows(here, told, ("event", "sink", "state", "last error"), rows)
    return Exit.GREEN


async def replay(here: Here, event: EventId, why: Why, only: Only) -> int:
    """Deliver an event once more, under the same id."""
    target = f"{event} to {only.sink}" if only.sink else event
    done = await by_the_queue(here, queue_named_in(event), why.act(Verb.REPLAY, target))
    show(here, done, f"{done.kind}: {done.detail}")
    return Exit.GREEN


async def test(here: Here, sink: SinkName) -> int:
    """Send a sample, about the newest recorded request of a queue that tells this sink."""
    config = here.settings.queues()
    queue = next((q.name for q in config.list() if sink in {r.sink for r in q.hooks}), NOBODY)
    number = await _newest_recorded(here, queue)
    sample = HookEvent(SAMPLE, EventType.RECORDED, queue, number, int(time.time() * 1000))
    await _deliver(here, config, sink, sample)
    show(here, {"sink": sink, "event": sample.id}, f"{sink} took {sample.id}")
    return Exit.GREEN


async def _newest_recorded(here: Here, queue: str) -> int:
    """1 where there is none: most sinks need no more than an id."""
    with suppress(StoreOut, NotFound):
        async with reading(here.settings) as reader:
            newest = await reader.requests(queue)
            return next((r.number for r in newest if r.recorded_at is not None), 1)
    return 1


async def _deliver(here: Here, config: QueueConfig, sink: str, sample: HookEvent) -> None:
    unused = await Client.connect("127.0.0.1:1", lazy=True)
    parts = make_parts(unused, config, here.settings.data, here.settings.open_engine())
    try:
        async with one_call():
            await parts.extensions.sinks(sink).deliver(sample)
    finally:
        await parts.engine.dispose()
