"""One build, as durable work on the builds task queue."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from datetime import timedelta
from typing import Final

from temporalio import workflow
from temporalio.exceptions import ActivityError, ApplicationError, FailureError

with workflow.unsafe.imports_passed_through():
    from extensions.buildrunner.contract import Order

NEWS: Final = "news"
VERDICT: Final = "verdict"
MISCONFIGURED: Final = "misconfigured"
HEARTBEAT_TIMEOUT: Final = timedelta(seconds=10)
SLACK: Final = timedelta(minutes=5)


@workflow.defn
class CommandWorkflow:
    """Its memo has the verdict before whoever waits for it is woken."""

    @workflow.run
    async def run(self, order: Order, builds_queue: str) -> str:
        try:
            verdict = await self._build(order, builds_queue)
        except (ActivityError, asyncio.CancelledError) as error:
            cause = error.__cause__
            if isinstance(cause, ApplicationError) and cause.non_retryable:
                await self._tell(order, {VERDICT: MISCONFIGURED, MISCONFIGURED: cause.message})
                raise
            # Cancelled before it was started, or nobody waits for it any more.
            verdict = "cancelled"
        await self._tell(order, {VERDICT: verdict})
        return verdict

    async def _build(self, order: Order, builds_queue: str) -> str:
        left = timedelta(seconds=order.until / 1000 - workflow.now().timestamp())
        verdict: str = await workflow.execute_activity(
            "run_command",
            order,
            task_queue=builds_queue,
            result_type=str,
            schedule_to_close_timeout=max(left + SLACK, timedelta(seconds=1)),
            heartbeat_timeout=HEARTBEAT_TIMEOUT,
            cancellation_type=workflow.ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
        )
        return verdict

    async def _tell(self, order: Order, memo: dict[str, str]) -> None:
        workflow.upsert_memo(memo)
        if order.wake:
            with suppress(FailureError):
                await workflow.get_external_workflow_handle(order.wake).signal(NEWS)
