"""A verdict becomes a fact; then the promotion ref, then the event."""

from __future__ import annotations

from temporalio import workflow
from temporalio.exceptions import FailureError

with workflow.unsafe.imports_passed_through():
    from activities.queue import AnnounceAsk, FactsAsk, FailAsk, StoreSteps
    from activities.sourcecontrol import Promotion, PublishAsk, SourceControlActivities
    from domain.request import Cause
    from domain.trouble import asks
    from stores.rows import Failure, Happening, Recorded
    from workflows import policies
    from workflows.messages import RecordInput
    from workflows.steps import Says, is_about_projects, stamp, step, why


@workflow.defn
class RecordWorkflow:
    @workflow.init
    def __init__(self, ask: RecordInput) -> None:
        self._ask = ask

    @workflow.run
    async def run(self, ask: RecordInput) -> None:
        try:
            recorded = await self._facts()
        except FailureError as error:
            # The request goes on owing its record: the queue drives it again until it is written.
            await step(StoreSteps.dead_letter_record, self._failure(error))
            return
        if recorded is None:
            return
        promotion = await self._publish(recorded)
        at = stamp(ask.fence, ask.queue)
        await step(StoreSteps.announce, AnnounceAsk(at, ask.request, promotion))

    async def _facts(self) -> Recorded | None:
        at, number = stamp(self._ask.fence, self._ask.queue), self._ask.request
        try:
            return await step(StoreSteps.facts, FactsAsk(at, number))
        except FailureError as error:
            if not is_about_projects(error):
                raise
            await step(StoreSteps.dead_letter_projects, self._failure(error))
        return await step(StoreSteps.facts, FactsAsk(at, number, with_projects=False))

    async def _publish(self, recorded: Recorded) -> Happening | None:
        """None: the verdict covers nothing below its head, and moves no ref."""
        ask, promotes = self._ask, recorded.is_green and recorded.has_target
        if recorded.base is None and not promotes:
            return None
        at = stamp(ask.fence, ask.queue)
        Says()("record", asks("publish", at.at, recorded.head or ask.uri))
        try:
            done = await workflow.execute_activity_method(
                SourceControlActivities.publish,
                PublishAsk(at, ask.request, recorded.head, recorded.base, promotes),
                summary="cover the range, point the promotion ref at the newest green commit",
                **policies.SOURCE_CONTROL,
            )
        except FailureError as error:
            await step(StoreSteps.dead_letter_published, self._failure(error))
            left_out = self._happened("promotion_left_out", f"failed: {why(error)}")
            return left_out if promotes else None
        return self._told(done) if done is not None else None

    def _told(self, done: Promotion) -> Happening:
        if done.result in ("moved", "same"):
            return self._happened("promoted", f"{done.result}: {done.uri}")
        return self._happened("promotion_left_out", f"{done.result}: {done.uri} {done.detail}")

    def _happened(self, kind: str, detail: str) -> Happening:
        return Happening(self._ask.queue, str(self._ask.request), kind, "", 0, detail)

    def _failure(self, error: FailureError) -> FailAsk:
        detail = why(error)
        failure = Failure(self._ask.request, Cause.PROCESSING_FAILED, detail)
        return FailAsk(stamp(self._ask.fence, self._ask.queue), failure)
