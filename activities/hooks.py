"""What delivers events: each sink on its own, in order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from temporalio import activity

from activities.queue import RequestAsk
from extensions.hooks.contract import Sink
from stores.contract import Store
from stores.rows import Delivering, Delivery, Stamp


@dataclass(frozen=True, slots=True)
class DeliverAsk:
    stamp: Stamp
    delivery: Delivery


class HookActivities:
    def __init__(self, store: Store, sinks: Callable[[str], Sink]) -> None:
        self._store = store
        self._sinks = sinks

    @activity.defn
    async def pending(self, ask: RequestAsk) -> Sequence[Delivery]:
        return await self._store.pending(ask.stamp.queue, ask.request)

    @activity.defn
    async def deliver(self, ask: DeliverAsk) -> None:
        await self._store.stage(ask.stamp.fence, ask.stamp.queue, ask.delivery.event.request)
        await self._sinks(ask.delivery.sink).deliver(ask.delivery.event)
        await self._store.delivered(ask.stamp, replace(ask.delivery, state=Delivering.DELIVERED))

    @activity.defn
    async def bury(self, ask: DeliverAsk) -> None:
        await self._store.delivered(ask.stamp, replace(ask.delivery, state=Delivering.DEAD))
