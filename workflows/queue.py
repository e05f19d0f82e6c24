"""A queue's single writer: it ingests, supersedes, gates and admits."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta

from temporalio import workflow
from temporalio.exceptions import FailureError

with workflow.unsafe.imports_passed_through():
    from activities.queue import ActAsk, FailAsk, IngestAsk, StoreSteps, TurnAsk
    from activities.sourcecontrol import AncestryAsk, SourceControlActivities
    from domain.explain import Line
    from domain.gate import Ancestry, Ask, Hold, Known
    from domain.identity import Fence
    from domain.request import Cause
    from domain.trouble import asks
    from stores.rows import Failure, Happening, Stamp, Turned
    from workflows import ids, policies
    from workflows.drive import Drive
    from workflows.look import believed, in_vain, refuse_stranger, settled
    from workflows.messages import Asked, QueueInput, Report
    from workflows.steps import Says, is_fenced, now_ms, stamp, step, why


@workflow.defn
class QueueWorkflow:
    @workflow.init
    def __init__(self, ask: QueueInput) -> None:
        self._ask = ask
        self._asked, self._looked = 1, 0
        self._report = Report(None)
        self._woken = False
        self._one_step = asyncio.Lock()
        self._drive = Drive(ask.fence, ask.queue, self.slot_freed)
        self._known: dict[tuple[str, str], Ancestry] = {}
        self._asking: workflow.ActivityHandle[Sequence[Known]] | None = None
        self._says = Says()

    @workflow.query
    def explain(self) -> list[Line]:
        """What it waits for, as its current details say."""
        return self._says.lines

    @workflow.signal
    def head_moved(self) -> None:
        self._asked += 1

    @workflow.signal
    def slot_freed(self) -> None:
        self._woken = True

    @workflow.signal
    def drive(self) -> None:
        """Start at once what is owed and does not run, however recently it was started."""
        self._drive.forget()
        self._woken = True

    @workflow.update
    async def act(self, asked: Asked) -> Happening:
        """What a person asks; refused ones are answered by a line of kind ``refused``."""
        refuse_stranger(self._ask, asked.fence)
        async with self._one_step:
            done = await step(StoreSteps.act, ActAsk(self._stamp(), asked.act))
        self.drive()
        return done

    @workflow.update
    async def report_head(self, fence: Fence) -> Report:
        """The request of the head as it is now; after 30 s the look goes on without the caller."""
        refuse_stranger(self._ask, fence)
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
            await looks  # a defect: fails the task, and is tried again
        await gate
        if not self._should_continue():
            return  # fenced
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
            seen = await believed(self._stamp, self._says)
            async with self._one_step:
                at = self._stamp()
                done = await step(StoreSteps.ingest, IngestAsk(at, replace(seen, known=())))
            self._learned(seen.known)
        except FailureError as error:
            return in_vain(error, self._says)
        return Report(ids.build(self._ask.queue, done.request), is_new=done.is_new)

    async def _gate_for_ever(self) -> None:
        while not self._should_continue():
            self._woken = False
            known = tuple(Known(a, b, answer) for (a, b), answer in self._known.items())
            turned = await self._turn(known)
            if turned is None:
                return
            for owed in turned.owed:
                await self._drive(owed)
            self._says("gate", *turned.lines)
            if isinstance(turned.step, Ask):
                self._ask_ancestry(turned.step)
            else:
                self._known = settled(self._known)
            await self._wait(turned)
            if self._asking is not None and self._asking.done():
                await self._learn(turned.step, self._asking)

    async def _turn(self, known: tuple[Known, ...]) -> Turned | None:
        """None: a newer epoch has taken over. What is refused stands still, and says so."""
        while True:
            try:
                async with self._one_step:
                    return await step(StoreSteps.turn, TurnAsk(self._stamp(), known))
            except FailureError as error:
                if is_fenced(error):
                    return None
                self._says("gate", Line("stands_still", f"stands still: {why(error)}"))
                await workflow.sleep(policies.STANDS_STILL, summary="try the gate again")

    async def _wait(self, turned: Turned) -> None:
        left = turned.wake_at and timedelta(milliseconds=max(turned.wake_at - now_ms(), 0))
        with suppress(TimeoutError):
            await workflow.wait_condition(
                lambda: (
                    self._woken
                    or self._should_continue()
                    or (self._asking is not None and self._asking.done())
                ),
                timeout=left,
                timeout_summary="look at the gate again",
            )

    def _ask_ancestry(self, ask: Ask) -> None:
        """A wake meanwhile is another turn; the question stays open."""
        if self._asking is None:
            self._says("ancestry", asks("ancestry", now_ms()))
            self._asking = workflow.start_activity_method(
                SourceControlActivities.ancestry,
                AncestryAsk(self._ask.queue, ask.pairs),
                summary="is the base an ancestor?",
                **policies.ANCESTRY,
            )

    async def _learn(
        self, step_: Ask | Hold, asking: workflow.ActivityHandle[Sequence[Known]]
    ) -> None:
        self._asking = None
        self._says("ancestry")
        try:
            self._learned(await asking)
        except FailureError as error:
            if isinstance(step_, Hold):
                return
            detail = why(error)
            failure = Failure(step_.request, Cause.PROCESSING_FAILED, detail)
            async with self._one_step:
                await step(StoreSteps.fail, FailAsk(self._stamp(), failure))

    def _learned(self, known: Sequence[Known]) -> None:
        self._known |= {(k.older, k.newer): k.ancestry for k in known}

    def _should_continue(self) -> bool:
        info = workflow.info()
        return (
            info.is_continue_as_new_suggested()
            or info.get_current_history_length() > policies.LONG_HISTORY
        )

    def _stamp(self) -> Stamp:
        return stamp(self._ask.fence, self._ask.queue)
