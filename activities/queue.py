"""The store's steps: one transaction each, local while the store is well."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from temporalio import activity

from domain.act import Act
from domain.errors import NotFound
from domain.gate import Known, Seen
from domain.results import ProjectResult, check_results
from domain.settings import QueueSettings
from extensions.projects.contract import Projects
from extensions.queueconfig.contract import QueueConfig
from stores.contract import Store
from stores.rows import (
    COVERED,
    Answer,
    Failure,
    Happening,
    Ingested,
    Judged,
    Recorded,
    Request,
    Stamp,
    Turned,
)


@dataclass(frozen=True, slots=True)
class TurnAsk:
    stamp: Stamp
    known: tuple[Known, ...] = ()


@dataclass(frozen=True, slots=True)
class IngestAsk:
    stamp: Stamp
    seen: Seen


@dataclass(frozen=True, slots=True)
class ObserveAsk:
    stamp: Stamp
    answer: Answer


@dataclass(frozen=True, slots=True)
class ActAsk:
    stamp: Stamp
    act: Act


@dataclass(frozen=True, slots=True)
class FailAsk:
    stamp: Stamp
    failure: Failure


@dataclass(frozen=True, slots=True)
class RequestAsk:
    stamp: Stamp
    request: int


@dataclass(frozen=True, slots=True)
class FactsAsk:
    """``with_projects`` False: their results cannot be had, and are left out."""

    stamp: Stamp
    request: int
    with_projects: bool = True


@dataclass(frozen=True, slots=True)
class AnnounceAsk:
    stamp: Stamp
    request: int
    promotion: Happening | None = None


def settings_or_none(config: QueueConfig, queue: str) -> QueueSettings | None:
    try:
        return config.get(queue)
    except NotFound:
        return None


class StoreSteps:
    def __init__(
        self, store: Store, config: QueueConfig, projects: Callable[[str], Projects]
    ) -> None:
        self._store = store
        self._config = config
        self._projects = projects

    @activity.defn
    async def ingest(self, ask: IngestAsk) -> Ingested:
        settings = self._config.get(ask.stamp.queue)
        return await self._store.ingest(ask.stamp, ask.seen, settings)

    @activity.defn
    async def turn(self, ask: TurnAsk) -> Turned:
        known = {(k.older, k.newer): k.ancestry for k in ask.known}
        settings = settings_or_none(self._config, ask.stamp.queue)
        return await self._store.turn(ask.stamp, settings, known)

    @activity.defn
    async def observe(self, ask: ObserveAsk) -> Judged:
        """Without an answer: what may be judged by the clock alone."""
        settings = await self._settings(ask.stamp)
        return await self._store.observe(ask.stamp, ask.answer, settings)

    @activity.defn
    async def fail(self, ask: FailAsk) -> Request | None:
        settings = settings_or_none(self._config, ask.stamp.queue)
        return await self._store.fail(ask.stamp, ask.failure, settings)

    @activity.defn
    async def act(self, ask: ActAsk) -> Happening:
        settings = settings_or_none(self._config, ask.stamp.queue)
        return await self._store.act(ask.stamp, ask.act, settings)

    @activity.defn
    async def facts(self, ask: FactsAsk) -> Recorded | None:
        """Project results are asked for before any fact is written, so all come together."""
        settings = settings_or_none(self._config, ask.stamp.queue)
        results = await self._results(ask, settings) if settings and ask.with_projects else None
        bisects = settings is not None and settings.bisect == "auto"
        recorded = await self._store.facts(ask.stamp, ask.request, results, bisects=bisects)
        if recorded is None:
            return None
        has_target = settings is not None and settings.promote is not None
        return replace(recorded, has_target=has_target)

    async def _results(self, ask: FactsAsk, settings: QueueSettings) -> Sequence[ProjectResult]:
        projects = self._projects(settings.projects)
        request = await self._store.request(ask.stamp.queue, ask.request)
        if request.terminal_build_id is None:
            return ()
        found = await projects.resolve(ask.stamp.queue, request.terminal_build_id)
        return check_results(found)

    @activity.defn
    async def announce(self, ask: AnnounceAsk) -> None:
        settings = settings_or_none(self._config, ask.stamp.queue)
        await self._store.announce(ask.stamp, ask.request, settings, ask.promotion)

    @activity.defn
    async def dead_letter_record(self, ask: FailAsk) -> None:
        await self._store.dead_letter(ask.stamp, "record", ask.failure)

    @activity.defn
    async def dead_letter_projects(self, ask: FailAsk) -> None:
        await self._store.dead_letter(ask.stamp, "projects", ask.failure)

    @activity.defn
    async def dead_letter_published(self, ask: FailAsk) -> None:
        """Of what a verdict means for others; a ref that has no green to go to waits for none."""
        request = await self._store.request(ask.stamp.queue, ask.failure.request)
        if not await self._store.is_told(ask.stamp.queue, request.number, COVERED):
            await self._store.dead_letter(ask.stamp, "coverage", ask.failure)
        settings = settings_or_none(self._config, ask.stamp.queue)
        if request.green_at is not None and settings is not None and settings.promote is not None:
            await self._store.dead_letter(ask.stamp, "promotion", ask.failure)

    async def _settings(self, stamp: Stamp) -> QueueSettings:
        known = settings_or_none(self._config, stamp.queue)
        return known or QueueSettings(stamp.queue, repository="", ref="")
