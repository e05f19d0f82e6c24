"""One step of a search for the commit that broke a range."""

from __future__ import annotations

from collections.abc import Callable

from temporalio import activity

from activities.queue import RequestAsk, settings_or_none
from domain.bisect import Found, Inconclusive, Probe, search
from domain.gate import plausible_time
from domain.identity import RequestId
from extensions.queueconfig.contract import QueueConfig
from extensions.sourcecontrol.contract import SourceControl
from stores.contract import Store
from stores.ranges import Bisection, Searching
from stores.rows import Stamp


class BisectActivities:
    def __init__(
        self,
        store: Store,
        config: QueueConfig,
        source_control: Callable[[str], SourceControl],
    ) -> None:
        self._store = store
        self._config = config
        self._of = source_control

    @activity.defn
    async def bisect(self, ask: RequestAsk) -> str:
        """What it waits for, in words; empty when the search is over."""
        stamp, queue = ask.stamp, ask.stamp.queue
        await self._store.check(stamp.fence)
        found = await self._store.bisection(queue, ask.request)
        if found is None or found.state is not Searching.RUNNING:
            return ""
        if (probe := found.active) is not None:
            return f"waits for {RequestId(queue, probe.number)}, a probe at {probe.uri}"
        source = self._of(queue)
        line = await _line(source, found)
        observed = await self._store.observed(queue, ask.request, line)
        match search(found.base, line, observed):
            case Probe() as probe_:
                change = await source.change_info(probe_.uri)
                at = plausible_time(change.created_at, stamp.at)
                await self._store.probe(stamp, ask.request, probe_, at)
                return f"builds {probe_.uri}: the culprit is in ({probe_.good}, {probe_.bad}]"
            case Found(culprit):
                change = await source.change_info(culprit)
                await self._end(stamp, found, culprit, f"{change.author}: {change.title}")
            case Inconclusive(why, good, bad):
                await self._end(stamp, found, None, f"{why}; it is in ({good}, {bad}]")
        return ""

    async def _end(self, stamp: Stamp, found: Bisection, culprit: str | None, detail: str) -> None:
        settings = settings_or_none(self._config, stamp.queue)
        number = found.request.number
        await self._store.end_bisection(stamp, number, culprit, detail, settings)


async def _line(source: SourceControl, found: Bisection) -> list[str]:
    """The commits of the range along first parents, oldest first."""
    uris: list[str] = []
    cursor: str | None = None
    while True:
        page = await source.commits_between(
            found.base, found.request.uri, cursor=cursor, first_parent=True
        )
        uris += page.uris
        activity.heartbeat()
        if (cursor := page.cursor) is None:
            return uris[::-1]
