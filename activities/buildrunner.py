"""What a request's own workflow asks of its build runner."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from temporalio import activity

from activities.queue import settings_or_none
from domain.build import Status
from domain.errors import NotYet
from domain.identity import RequestId, build_id, idempotency_key
from domain.request import Strategy
from domain.settings import QueueSettings, ms
from extensions.buildrunner.contract import BuildRunner, Order, Triggered
from extensions.queueconfig.contract import QueueConfig
from stores.contract import Store
from stores.rows import Answer, Build, Follows, Happening, Judged, Next, Stage, Stamp


@dataclass(frozen=True, slots=True)
class TriggerAsk:
    """``find_only``: no new build, the deadline has passed. ``lost``: the stored build is gone.
    ``driven``: the run that drives the request again, "" when it is the first.
    """

    stamp: Stamp
    request: int
    find_only: bool = False
    lost: bool = False
    driven: str = ""


@dataclass(frozen=True, slots=True)
class Question:
    """About one stored build."""

    stamp: Stamp
    request: int
    attempt: int
    build: str
    runner: str
    stored: Status
    pushes: bool = False


class BuildRunnerActivities:
    def __init__(
        self, store: Store, config: QueueConfig, runners: Callable[[str], BuildRunner]
    ) -> None:
        self._store = store
        self._config = config
        self._runners = runners

    @activity.defn
    async def trigger(self, ask: TriggerAsk) -> Stage:
        """Find the attempt's build, or start it; where the request stands afterwards."""
        stage = await self._stage(ask)
        if ask.driven and stage.build is not None and stage.next is not Next.NOTHING:
            await self._store.note(
                ask.stamp,
                Happening(ask.stamp.queue, str(ask.request), "driven_again", ask.driven, 0),
            )
        if stage.next is not Next.BUILD or (stage.build is not None and not ask.lost):
            return self._timed(stage)
        settings = self._config.get(ask.stamp.queue)
        if stage.is_ending and _stamp_of_now(ask.stamp).at >= self._give_up_at(stage, settings):
            return stage
        order = _order(ask, stage)
        runner = self._runners(settings.runner)
        found = await runner.find(order.key, order.head_uri)
        if found is None:
            stage = await self._stage(ask)
            if ask.find_only or stage.next is not Next.BUILD or stage.is_ending:
                return stage
        triggered = found or await runner.trigger(order)
        return await self._keep(ask, stage, settings, triggered, found=found is not None)

    def _give_up_at(self, stage: Stage, settings: QueueSettings) -> int:
        """Until when a build is looked for, only to be cancelled."""
        return (stage.request.ending_at or 0) + ms(settings.cancel_grace)

    async def _stage(self, ask: TriggerAsk) -> Stage:
        return await self._store.stage(ask.stamp.fence, ask.stamp.queue, ask.request)

    async def _keep(
        self,
        ask: TriggerAsk,
        stage: Stage,
        settings: QueueSettings,
        triggered: Triggered,
        *,
        found: bool,
    ) -> Stage:
        stamp = _stamp_of_now(ask.stamp)
        build = Build(
            settings.runner,
            build_id(triggered.build_id),
            ask.request,
            stage.attempt,
            Status.ACCEPTED,
            stamp.at,
            triggered.url,
        )
        await self._store.build_row(stamp, build, found=found)
        return self._timed(replace(stage, build=build))

    def _timed(self, stage: Stage) -> Stage:
        request, build = stage.request, stage.build
        settings = settings_or_none(self._config, request.queue)
        if build is None or settings is None:
            return replace(stage, until=request.deadline_at or 0)
        until = request.deadline_at or 0
        if build.status is Status.ACCEPTED:
            until = min(until, build.triggered_at + ms(settings.start_timeout))
        return replace(stage, until=until, pushes=self._runners(build.runner).pushes)

    @activity.defn
    async def watch_build(self, ask: Question) -> Judged:
        """Not done while the runner says nothing that something follows from."""
        runner = self._runners(ask.runner)
        stage = await self._store.stage(ask.stamp.fence, ask.stamp.queue, ask.request)
        said = await runner.status(ask.build)
        if self._is_quiet(stage, ask, said):
            raise NotYet(f"{ask.build}: still {said}")
        judged = await self._observe(ask, said)
        news = judged.status is not ask.stored and not runner.pushes
        if judged.follows is Follows.WAIT and not news:
            raise NotYet(f"{ask.build}: still {judged.status}")
        return judged

    def _is_quiet(self, stage: Stage, ask: Question, said: str) -> bool:
        """Nothing is new and nothing is due: then a poll writes nothing."""
        build, request = stage.build, stage.request
        if stage.next is not Next.BUILD or build is None or build.id != ask.build:
            return False
        is_ending = request.ending is not None and request.ending_attempt == ask.attempt
        if is_ending or build.status.is_terminal or said != build.status:
            return False
        return _stamp_of_now(ask.stamp).at < self._timed(stage).until

    @activity.defn
    async def ask_once(self, ask: Question) -> Judged:
        """One call; what follows from its answer, whatever that is."""
        await self._store.stage(ask.stamp.fence, ask.stamp.queue, ask.request)
        return await self._observe(ask, await self._runners(ask.runner).status(ask.build))

    async def _observe(self, ask: Question, said: str) -> Judged:
        stamp = _stamp_of_now(ask.stamp)
        settings = settings_or_none(self._config, stamp.queue)
        return await self._store.observe(
            stamp,
            Answer(ask.request, ask.attempt, said),
            settings or QueueSettings(stamp.queue, repository="", ref=""),
        )

    @activity.defn
    async def cancel(self, ask: Question) -> None:
        await self._store.stage(ask.stamp.fence, ask.stamp.queue, ask.request)
        await self._runners(ask.runner).cancel(ask.build)


def _stamp_of_now(stamp: Stamp) -> Stamp:
    """Of the attempt: one may begin hours after its activity was scheduled."""
    info = activity.info()
    now = 0 if info.is_local else int(info.started_time.timestamp() * 1000)
    return replace(stamp, at=max(stamp.at, now))


def _order(ask: TriggerAsk, stage: Stage) -> Order:
    request = stage.request
    identity = RequestId(request.queue, request.number)
    return Order(
        key=idempotency_key(ask.stamp.fence.installation, identity, stage.attempt),
        queue=request.queue,
        request=request.number,
        attempt=stage.attempt,
        base_uri=request.base_uri,
        head_uri=request.uri,
        strategy=request.strategy or Strategy.FULL,
        wake=f"{identity}/buildsignal/{stage.attempt}",
        until=request.deadline_at or 0,
    )
