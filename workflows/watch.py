"""Looks for moved refs of one remote; an unchanged look costs no history."""

from __future__ import annotations

from temporalio import workflow
from temporalio.exceptions import FailureError

with workflow.unsafe.imports_passed_through():
    from activities.watch import WatchActivities, WatchAsk
    from workflows import policies
    from workflows.messages import WatchInput
    from workflows.steps import is_fenced, why


@workflow.defn
class WatchWorkflow:
    @workflow.run
    async def run(self, ask: WatchInput) -> None:
        """Ends when no queue is configured on the remote, or a newer epoch watches it."""
        try:
            await workflow.execute_activity_method(
                WatchActivities.watch, WatchAsk(ask.fence, ask.remote), **policies.WATCH
            )
        except FailureError as error:
            if is_fenced(error):
                return
            workflow.set_current_details(f"cannot look, tries again in a minute: {why(error)}")
            await workflow.sleep(policies.WATCH_AGAIN, summary="look again")
            workflow.continue_as_new(ask)
