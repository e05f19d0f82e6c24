"""Sees one request through: triggers its build, hears the verdict, has it recorded."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from temporalio import workflow
from temporalio.exceptions import FailureError

with workflow.unsafe.imports_passed_through():
    from activities.buildrunner import BuildRunnerActivities, Question, TriggerAsk
    from activities.failures import BUDGET_SPENT
    from activities.queue import FailAsk, StoreSteps
    from domain.build import LOST
    from domain.explain import shown
    from domain.request import Cause, State, Why
    from domain.trouble import asks
    from stores.rows import Build, Failure, Follows, Judged, Next, Stage, Stamp
    from workflows import ids, policies
    from workflows.buildsignal import BuildSignalWorkflow
    from workflows.messages import BuildInput, RecordInput, WatchBuild
    from workflows.record import RecordWorkflow
    from workflows.steps import (
        Says,
        at_hand,
        attributes,
        child,
        failure_of,
        is_fenced,
        is_final,
        now_ms,
        once,
        stamp,
        step,
        why,
    )


@workflow.defn
class BuildWorkflow:
    @workflow.init
    def __init__(self, ask: BuildInput) -> None:
        self._ask = ask
        self._build: Build | None = None
        self._cause = Cause.TRIGGER_FAILED
        self._ended: State | None = None
        self._says = Says()

    @workflow.run
    async def run(self, ask: BuildInput) -> None:
        try:
            state = await self._see_through()
        except FailureError as error:
            state = await self._fail_closed(error)
        if self._ended is not None:
            workflow.upsert_search_attributes([ids.STATE.value_set(str(self._ended))])
        if state is not None:
            await child(
                RecordWorkflow.run,
                RecordInput(ask.fence, ask.queue, ask.request, ask.uri, state),
                id=ids.record(ask.queue, ask.request),
                search_attributes=attributes(ask.queue, ask.request, ask.uri, state),
                static_summary=f"records the verdict of {ask.uri[:12]}",
            )

    async def _see_through(self) -> State | None:
        """The state to record; None when there is no verdict, or nothing is owed."""
        stage = await self._trigger(lost=False)
        while stage is not None and stage.next is Next.BUILD and stage.build is not None:
            self._build = stage.build
            judged = await self._watch(stage, stage.build)
            if judged.follows is Follows.SETTLED:
                self._ended = judged.state
                return _to_record(judged)
            stage = await self._trigger(lost=judged.reason == LOST)
        if stage is not None and stage.next is not Next.BUILD:
            return stage.request.state if stage.next is Next.RECORD else None
        if stage is not None and stage.request.ending is Why.PERSON:
            self._cause = Cause.CANCELLED_BY_PERSON
            return await self._fail("cancelled before the build runner had a build of it")
        self._cause = Cause.VALIDATION_TIMEOUT
        return await self._fail("the build runner has no build of it by the deadline")

    async def _trigger(self, *, lost: bool) -> Stage | None:
        """None: the deadline passed, and the runner did not answer one last time."""
        self._cause = Cause.TRIGGER_FAILED
        self._says("build", asks("trigger", now_ms(), until=self._ask.deadline))
        left = timedelta(milliseconds=self._ask.deadline - now_ms())
        driven = workflow.info().run_id if self._ask.again else ""
        ask = TriggerAsk(self._stamp(), self._ask.request, lost=lost, driven=driven)
        late = replace(ask, find_only=True)
        if self._ask.deadline and left <= timedelta(0):
            return await once(BuildRunnerActivities.trigger, late)
        try:
            if stage := await at_hand(BuildRunnerActivities.trigger, ask):
                return stage
            return await workflow.execute_activity_method(
                BuildRunnerActivities.trigger,
                ask,
                schedule_to_close_timeout=left if self._ask.deadline else None,
                summary="find or trigger the build",
                **policies.RUNNER,
            )
        except FailureError as error:
            if is_final(error) or now_ms() < self._ask.deadline - policies.ALMOST_MS:
                raise
            return await once(BuildRunnerActivities.trigger, late)

    async def _watch(self, stage: Stage, build: Build) -> Judged:
        self._cause = Cause.PROCESSING_FAILED
        ask = self._ask
        self._says("build", asks("watch_build", now_ms(), shown(build), ask.deadline))
        question = Question(
            self._stamp(),
            ask.request,
            build.attempt,
            build.id,
            build.runner,
            build.status,
            stage.pushes,
        )
        return await child(
            BuildSignalWorkflow.run,
            WatchBuild(question, ask.uri, stage.until),
            id=ids.buildsignal(ask.queue, ask.request, build.attempt),
            search_attributes=attributes(ask.queue, ask.request, ask.uri, State.PROCESSING),
            static_summary=f"waits for the verdict about {ask.uri[:12]}",
        )

    async def _fail_closed(self, error: FailureError) -> State | None:
        """What cannot finish must neither hold its slot nor count as green."""
        if is_fenced(error):
            return None
        if self._cause is Cause.PROCESSING_FAILED and _is_spent(error):
            self._cause = Cause.POLLING_EXHAUSTED
        state = await self._fail(why(error))
        if self._build is not None:
            await self._cancel(self._build)
        return state

    async def _fail(self, detail: str) -> State | None:
        failure = Failure(self._ask.request, self._cause, detail)
        stands = await step(StoreSteps.fail, FailAsk(self._stamp(), failure))
        self._ended = stands.state if stands is not None else None
        return stands.state if stands is not None and stands.owes_record else None

    async def _cancel(self, build: Build) -> None:
        question = Question(
            self._stamp(), self._ask.request, build.attempt, build.id, build.runner, build.status
        )
        try:
            await once(BuildRunnerActivities.cancel, question)
        except FailureError:
            workflow.logger.warning("the build could not be cancelled")

    def _stamp(self) -> Stamp:
        return stamp(self._ask.fence, self._ask.queue)


def _to_record(judged: Judged) -> State | None:
    return judged.state if judged.reason and Cause(judged.reason).has_verdict else None


def _is_spent(error: FailureError) -> bool:
    failure = failure_of(error)
    return failure is not None and failure.type == BUDGET_SPENT
