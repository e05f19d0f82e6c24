"""What delivers events: each sink on its own, in order."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Final

from temporalio import activity

from activities.failures import spend_at_most
from activities.queue import RequestAsk
from domain.errors import SinkBusy, SinkOut
from extensions.hooks.contract import Sink
from extensions.hooks.envelope import cloud_event
from extensions.queueconfig.contract import QueueConfig
from stores.contract import Store
from stores.rows import Delivering, Delivery, Stamp

AT_A_TIME: Final = 10
"""Deliveries to one sink in one process: a sink that hangs leaves room for everything else."""
LAST_ANSWER: Final = 500
CALL: Final = 12.0
"""Seconds for one call, less than Temporal's limit, which would count no failure."""


@dataclass(frozen=True, slots=True)
class DeliverAsk:
    stamp: Stamp
    delivery: Delivery


@asynccontextmanager
async def one_call() -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(CALL):
            yield
    except TimeoutError as error:
        raise SinkOut(str(error) or f"no answer within {CALL:g} s") from error


class HookActivities:
    def __init__(self, store: Store, config: QueueConfig, sinks: Callable[[str], Sink]) -> None:
        self._store = store
        self._config = config
        self._sinks = sinks
        self._going: Counter[str] = Counter()

    @activity.defn
    async def pending(self, ask: RequestAsk) -> Sequence[Delivery]:
        return await self._store.pending(ask.stamp.queue, ask.request)

    @activity.defn
    async def deliver(self, ask: DeliverAsk) -> None:
        event, sink = ask.delivery.event, ask.delivery.sink
        if (own := self._config.sinks().get(sink)) is not None:
            spend_at_most(own.hook_budget)
        await self._store.stage(ask.stamp.fence, ask.stamp.queue, event.request)
        async with self._in_turn(sink):
            await self._sinks(sink).deliver(event)
        await self._store.delivered(ask.stamp, replace(ask.delivery, state=Delivering.DELIVERED))

    @activity.defn
    async def bury(self, ask: DeliverAsk) -> None:
        """The letter holds the whole event: whoever reads it may have nothing else."""
        dead = replace(ask.delivery, state=Delivering.DEAD)
        letter = {
            "event": cloud_event(dead.event, self._config.source()),
            "attempts": dead.attempts,
            "last_answer": dead.last_error[:LAST_ANSWER],
        }
        await self._store.delivered(ask.stamp, dead, json.dumps(letter, ensure_ascii=False))

    @asynccontextmanager
    async def _in_turn(self, sink: str) -> AsyncIterator[None]:
        if self._going[sink] >= AT_A_TIME:
            raise SinkBusy(f"{AT_A_TIME} deliveries to {sink} are under way")
        self._going[sink] += 1
        try:
            async with one_call():
                yield
        finally:
            self._going[sink] -= 1
