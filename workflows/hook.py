"""Delivers one request's events: in order for each sink, and no sink waits for another."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain, groupby

from temporalio import workflow
from temporalio.exceptions import FailureError

with workflow.unsafe.imports_passed_through():
    from activities.hooks import DeliverAsk, HookActivities
    from activities.queue import RequestAsk
    from stores.rows import Delivery
    from workflows import policies
    from workflows.messages import RequestInput
    from workflows.steps import attempts_of, stamp, step, why


@workflow.defn
class HookWorkflow:
    @workflow.init
    def __init__(self, ask: RequestInput) -> None:
        self._ask = ask
        self._woken = True
        self._lines: dict[str, list[Delivery]] = {}
        """Sink → what it has not got yet, the first one under way."""
        self._going: dict[str, asyncio.Task[None]] = {}

    @workflow.signal
    def wake(self) -> None:
        self._woken = True

    @workflow.run
    async def run(self, _: RequestInput) -> None:
        if not workflow.patched("a-line-for-each-sink"):
            await self._all_together()
            return
        while self._woken or self._going:
            if self._woken:
                self._woken = False
                await self._line_up()
            await workflow.wait_condition(lambda: self._woken or not self._going or self._is_over())
            self._reap()

    async def _pending(self) -> Sequence[Delivery]:
        at = stamp(self._ask.fence, self._ask.queue)
        return await step(HookActivities.pending, RequestAsk(at, self._ask.request))

    async def _line_up(self) -> None:
        """What stood in a line before the read is old news, whatever became of it meanwhile."""
        known = [*chain.from_iterable(self._lines.values())]
        pending = await self._pending()
        self._reap()
        for delivery in pending:
            if delivery in known:
                continue
            line = self._lines.setdefault(delivery.sink, [])
            line.append(delivery)
            if delivery.sink not in self._going:
                self._going[delivery.sink] = asyncio.create_task(self._deliver_all(line))

    def _is_over(self) -> bool:
        return any(task.done() for task in self._going.values())

    def _reap(self) -> None:
        for sink in [sink for sink, task in self._going.items() if task.done()]:
            self._going.pop(sink).result()

    async def _deliver_all(self, line: list[Delivery]) -> None:
        while line:
            await self._deliver(line[0])
            del line[0]

    async def _deliver(self, delivery: Delivery) -> None:
        ask = DeliverAsk(stamp(self._ask.fence, self._ask.queue), delivery)
        try:
            await workflow.execute_activity_method(
                HookActivities.deliver,
                ask,
                summary=f"{delivery.event.type} to {delivery.sink}",
                **policies.SINK,
            )
        except FailureError as error:
            dead = replace(delivery, last_error=why(error), attempts=attempts_of(error))
            await step(HookActivities.bury, DeliverAsk(ask.stamp, dead))

    async def _all_together(self) -> None:
        """As it ran when all sinks read again together: for histories of then."""
        while self._woken:
            self._woken = False
            pending = sorted(await self._pending(), key=lambda d: d.sink)
            lines = [list(mine) for _, mine in groupby(pending, key=lambda d: d.sink)]
            await asyncio.gather(*(self._deliver_all(line) for line in lines))
