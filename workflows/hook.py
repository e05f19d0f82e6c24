"""Delivers one request's events: in order, each sink on its own retries."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby

from temporalio import workflow
from temporalio.exceptions import FailureError

with workflow.unsafe.imports_passed_through():
    from activities.hooks import DeliverAsk, HookActivities
    from activities.queue import RequestAsk
    from stores.rows import Delivery
    from workflows import policies
    from workflows.messages import RequestInput
    from workflows.steps import stamp, step, why


@workflow.defn
class HookWorkflow:
    @workflow.init
    def __init__(self, ask: RequestInput) -> None:
        self._ask = ask
        self._woken = True

    @workflow.signal
    def wake(self) -> None:
        self._woken = True

    @workflow.run
    async def run(self, ask: RequestInput) -> None:
        while self._woken:
            self._woken = False
            at = stamp(ask.fence, ask.queue)
            pending = await step(HookActivities.pending, RequestAsk(at, ask.request))
            by_sink = groupby(sorted(pending, key=lambda d: d.sink), key=lambda d: d.sink)
            sinks = [list(deliveries) for _, deliveries in by_sink]
            await asyncio.gather(*(self._deliver_all(deliveries) for deliveries in sinks))

    async def _deliver_all(self, deliveries: Sequence[Delivery]) -> None:
        for delivery in deliveries:
            ask = DeliverAsk(stamp(self._ask.fence, self._ask.queue), delivery)
            try:
                await workflow.execute_activity_method(
                    HookActivities.deliver,
                    ask,
                    summary=f"{delivery.event.type} to {delivery.sink}",
                    **policies.SINK,
                )
            except FailureError as error:
                last = why(error)
                dead = DeliverAsk(ask.stamp, replace(delivery, last_error=last))
                await step(HookActivities.bury, dead)
