"""A queue's single writer: it ingests, supersedes, gates and admits."""

from __future__ import annotations

import asyncio
from datetime import timedelta

from temporalio import workflow
from temporalio.common import WorkflowIDReusePolicy
from temporalio.exceptions import (
    ActivityError,
    WorkflowAlreadyStartedError,
)

with workflow.unsafe.imports_passed_through():
    from activities.queue import FailAsk, IngestAsk, Known, StoreSteps, TurnAsk
    from activities.sourcecontrol import AncestryAsk, SourceControlActivities
    from domain.gate import Ancestry, Ask, Hold, Reason, Seen, sentence
    from domain.request import Cause
    from stores.contract import Failure, Owed, Turned
    from workflows import ids, policies
    from workflows.build import BuildWorkflow
    from workflows.hook import HookWorkflow
    from workflows.messages import BuildInput, HookInput, QueueInput, Report
    from workflows.steps import attributes, failure_of, now_ms, stamp, step


@workflow.defn
class QueueWorkflow:
    @workflow.init
    def __init__(self, ask: QueueInput) -> None:
        self._ask = ask
        self._asked, self._looked = 1, 0
        self._report = Report(None)
        self._woken = False
        self._one_step = asyncio.Lock()
        self._driven: dict[int, int] = {}
        self._live: set[int] = set()
        self._known: dict[tuple[str, str], Ancestry] = {}
        self._asking: workflow.ActivityHandle[list[Known]] | None = None

    @workflow.signal
    def head_moved(self) -> None:
        self._asked += 1

    @workflow.signal
    def slot_freed(self) -> None:
        self._woken = True

    @workflow.update
    async def report_head(self) -> Report:
        """The request of the head as it is now; after 30 s the look goes on without the caller."""
        self._asked += 1
        mine = self._asked
        try:
            await workflow.wait_condition(
                lambda: self._looked >= mine, timeout=policies.REPORT_WAIT
            )
        except TimeoutError:
            return Report(None, error="still looking; ask again", kind="pending")
        return self._report

    @workflow.run
    async def run(self, ask: QueueInput) -> None:
        looks = asyncio.create_task(self._look_for_ever())
        gate = asyncio.create_task(self._gate_for_ever())
        await workflow.wait_condition(lambda: gate.done() or looks.done())
        if looks.done():
            await looks
        await gate
        await workflow.wait_condition(
            lambda: workflow.all_handlers_finished() and self._looked >= self._asked
        )
        looks.cancel()
        workflow.continue_as_new(ask)

    async def _look_for_ever(self) -> None:
        while True:
            await workflow.wait_condition(lambda: self._asked > self._looked)
            asked = self._asked
            self._report = await self._look()
            self._looked, self._woken = asked, True

    async def _look(self) -> Report:
        try:
            seen = await self._believed()
            async with self._one_step:
                at = self._stamp()
                done = await step(StoreSteps.ingest, IngestAsk(at, seen))
        except ActivityError as error:
            failure = failure_of(error)
            return Report(None, error=str(failure or error), kind=(failure and failure.type) or "")
        return Report(ids.build(self._ask.queue, done.request), is_new=done.is_new)

    async def _believed(self) -> Seen:
        """What a second look agrees with, where one look may be a replica's stale answer."""
        seen = await self._see()
        while seen.is_doubtful and not seen.is_same:
            workflow.set_current_details(f"sees {seen.uri}, which may be stale: looks again")
            await workflow.sleep(timedelta(seconds=seen.confirm), summary="second look")
            again = await self._see()
            if again.uri == seen.uri:
                return again
            seen = again
        return seen

    async def _see(self) -> Seen:
        return await workflow.execute_activity_method(
            SourceControlActivities.look,
            self._stamp(),
            heartbeat_timeout=policies.SOURCE_CONTROL["start_to_close_timeout"],
            summary="what is the head?",
            **policies.SOURCE_CONTROL,
        )

    async def _gate_for_ever(self) -> None:
        while not self._should_continue():
            self._woken = False
            known = tuple(Known(a, b, answer) for (a, b), answer in self._known.items())
            async with self._one_step:
                turned = await step(StoreSteps.turn, TurnAsk(self._stamp(), known))
            for owed in turned.owed:
                await self._drive(owed)
            match turned.step:
                case Ask() as ask:
                    await self._learn(ask)
                case Hold() as hold:
                    self._forget()
                    workflow.set_current_details(sentence(self._ask.queue, hold))
                    await self._wait(turned)

    async def _wait(self, turned: Turned) -> None:
        until = turned.wake_at and timedelta(milliseconds=max(turned.wake_at - now_ms(), 0))
        try:
            await workflow.wait_condition(
                lambda: self._woken or self._should_continue(),
                timeout=until,
                timeout_summary="look at the gate again",
            )
        except TimeoutError:
            return

    async def _learn(self, ask: Ask) -> None:
        """Ask source control; a wake meanwhile is another turn, the question stays open."""
        self._asking = self._asking or workflow.start_activity_method(
            SourceControlActivities.ancestry,
            AncestryAsk(self._ask.queue, ask.pairs),
            summary="is the base an ancestor?",
            **policies.ANCESTRY,
        )
        asking = self._asking
        held = Hold(Reason.SOURCE_CONTROL, ask.request)
        workflow.set_current_details(sentence(self._ask.queue, held))
        await workflow.wait_condition(lambda: asking.done() or self._woken)
        if not asking.done():
            return
        self._asking = None
        try:
            self._known |= {(k.older, k.newer): k.ancestry for k in await asking}
        except ActivityError as error:
            failure = Failure(ask.request, Cause.PROCESSING_FAILED, str(failure_of(error) or error))
            await step(StoreSteps.fail, FailAsk(self._stamp(), failure))

    def _forget(self) -> None:
        """Yes and no never change between two commits; unknown may."""
        self._known.clear()

    async def _drive(self, owed: Owed) -> None:
        at, last = now_ms(), self._driven.get(owed.request)
        fresh = last is None or at - last >= policies.DRIVE_AGAIN_MS
        if not fresh or (owed.request in self._live and not owed.overdue):
            return
        self._driven[owed.request] = at
        try:
            handle = await (self._hooks(owed) if owed.hooks_only else self._build(owed))
        except WorkflowAlreadyStartedError:
            return
        self._live.add(owed.request)
        handle.add_done_callback(lambda done: self._closed(owed.request, done))

    async def _build(self, owed: Owed) -> workflow.ChildWorkflowHandle[BuildWorkflow, None]:
        ask = self._ask
        policy = (
            WorkflowIDReusePolicy.TERMINATE_IF_RUNNING
            if owed.overdue
            else WorkflowIDReusePolicy.ALLOW_DUPLICATE
        )
        return await workflow.start_child_workflow(
            BuildWorkflow.run,
            BuildInput(ask.fence, ask.queue, owed.request, owed.uri, owed.deadline, owed.again),
            id=ids.build(ask.queue, owed.request),
            id_reuse_policy=policy,
            parent_close_policy=workflow.ParentClosePolicy.ABANDON,
            search_attributes=attributes(ask.queue, owed.request, owed.uri, owed.state),
            static_summary=f"validates {owed.uri[:12]}",
        )

    async def _hooks(self, owed: Owed) -> workflow.ChildWorkflowHandle[HookWorkflow, None]:
        ask = self._ask
        return await workflow.start_child_workflow(
            HookWorkflow.run,
            HookInput(ask.fence, ask.queue, owed.request),
            id=ids.hooks(ask.queue, owed.request),
            id_reuse_policy=WorkflowIDReusePolicy.ALLOW_DUPLICATE,
            parent_close_policy=workflow.ParentClosePolicy.ABANDON,
        )

    def _closed(self, number: int, handle: asyncio.Task[None]) -> None:
        self._live.discard(number)
        self._woken = True
        if not handle.cancelled():
            handle.exception()

    def _should_continue(self) -> bool:
        info = workflow.info()
        return (
            info.is_continue_as_new_suggested()
            or info.get_current_history_length() > policies.LONG_HISTORY
        )

    def _stamp(self):
        return stamp(self._ask.fence, self._ask.queue)
