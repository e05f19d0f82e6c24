"""Looks for moved refs of one remote; an unchanged look costs no history."""

from __future__ import annotations

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from activities.watch import WatchActivities, WatchAsk
    from workflows import policies
    from workflows.messages import WatchInput


@workflow.defn
class WatchWorkflow:
    @workflow.run
    async def run(self, ask: WatchInput) -> None:
        await workflow.execute_activity_method(
            WatchActivities.watch, WatchAsk(ask.fence, ask.remote), **policies.WATCH
        )
        workflow.continue_as_new(ask)
