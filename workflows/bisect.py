"""Searches a red range for the commit that broke it, one probe at a time."""

from __future__ import annotations

from contextlib import suppress

from temporalio import workflow
from temporalio.exceptions import FailureError

with workflow.unsafe.imports_passed_through():
    from activities.bisect import BisectActivities
    from activities.queue import RequestAsk
    from workflows import policies
    from workflows.messages import RequestInput
    from workflows.steps import is_fenced, stamp, why


@workflow.defn
class BisectWorkflow:
    """Rows and facts say where the search is: it may be ended and started anew at any time."""

    @workflow.init
    def __init__(self, ask: RequestInput) -> None:
        self._ask = ask
        self._woken = True

    @workflow.signal
    def news(self) -> None:
        self._woken = True

    @workflow.run
    async def run(self, ask: RequestInput) -> None:
        while True:
            self._woken = False
            at = stamp(ask.fence, ask.queue)
            try:
                said = await workflow.execute_activity_method(
                    BisectActivities.bisect,
                    RequestAsk(at, ask.request),
                    summary="what is to be built next?",
                    **policies.ANCESTRY,
                )
            except FailureError as error:
                if is_fenced(error):
                    return
                said = why(error)
            if not said:
                return
            workflow.set_current_details(said)
            with suppress(TimeoutError):
                await workflow.wait_condition(
                    lambda: self._woken, timeout=policies.BISECT_AGAIN, timeout_summary="look again"
                )
            if workflow.info().is_continue_as_new_suggested():
                workflow.continue_as_new(ask)
