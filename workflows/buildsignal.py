"""Waits for a build's verdict: woken by the runner, polled as the fallback."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from datetime import timedelta

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from activities.buildrunner import BuildRunnerActivities
    from activities.queue import ObserveAsk, StoreSteps
    from domain.build import Status
    from domain.trouble import asks
    from stores.rows import Answer, Follows, Judged
    from workflows import policies
    from workflows.messages import WatchBuild
    from workflows.steps import Says, at_hand, now_ms, once, stamp, step


@workflow.defn
class BuildSignalWorkflow:
    @workflow.init
    def __init__(self, watch: WatchBuild) -> None:
        self._question = watch.question
        self._until = watch.until
        self._woken = False
        self._poll: workflow.ActivityHandle[Judged] | None = None
        self._cancel: workflow.ActivityHandle[None] | None = None

    @workflow.signal
    def news(self) -> None:
        """From the runner, or whoever heard of it: look now. It carries no truth."""
        self._woken = True

    @workflow.run
    async def run(self, _watch: WatchBuild) -> Judged:
        while True:
            self._explain()
            judged = await self._next()
            if judged.follows in (Follows.SETTLED, Follows.AGAIN):
                return judged
            self._until = judged.until
            if judged.follows is Follows.CANCEL and self._cancel is None:
                self._ask_to_cancel()
            if judged.status is not self._question.stored:
                self._restart_poll(judged.status)

    async def _next(self) -> Judged:
        poll = self._poll or self._start_poll()
        left = timedelta(milliseconds=max(self._until - now_ms(), 0))
        with suppress(TimeoutError):
            await workflow.wait_condition(
                lambda: self._woken or poll.done(), timeout=left, timeout_summary="judge the build"
            )
        if poll.done():
            self._poll = None
            return await poll
        self._woken = False
        return await self._ask_once()

    async def _ask_once(self) -> Judged:
        """A timeout is judged on an answer; where there is none, by the clock."""
        ask = self._question
        asked = replace(ask, stamp=stamp(ask.stamp.fence, ask.stamp.queue))
        for ask_it in (at_hand, once):
            if judged := await ask_it(BuildRunnerActivities.ask_once, asked):
                return judged
        silent = Answer(ask.request, ask.attempt, None)
        return await step(StoreSteps.observe, ObserveAsk(asked.stamp, silent))

    def _start_poll(self) -> workflow.ActivityHandle[Judged]:
        self._poll = workflow.start_activity_method(
            BuildRunnerActivities.watch_build,
            self._question,
            summary=f"ask {self._question.runner} for the verdict",
            **(policies.POLL_PUSHED if self._question.pushes else policies.POLL),
        )
        return self._poll

    def _restart_poll(self, stored: Status) -> None:
        self._question = replace(self._question, stored=stored)
        if self._poll is not None and not self._question.pushes:
            self._poll.cancel()
            self._poll = None

    def _ask_to_cancel(self) -> None:
        left = timedelta(milliseconds=max(self._until - now_ms(), 1000))
        self._cancel = workflow.start_activity_method(
            BuildRunnerActivities.cancel,
            self._question,
            schedule_to_close_timeout=left,
            **policies.RUNNER,
        )

    def _explain(self) -> None:
        ask, since = self._question, int(workflow.info().start_time.timestamp() * 1000)
        about = f"{ask.build} of {ask.runner}, {ask.stored}"
        Says()("build", asks("watch_build", since, about, self._until))
