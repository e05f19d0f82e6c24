"""What queues and records ask of source control."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Final

from temporalio import activity

from domain.errors import NotFound
from domain.gate import Ancestry, Known, Pair, Seen, plausible_time
from domain.identity import commit_uri
from extensions.queueconfig.contract import QueueConfig
from extensions.sourcecontrol.contract import Promoted, SourceControl
from stores.contract import Store
from stores.ranges import RangePage
from stores.rows import Happening, Stamp

MOST: Final = 10_000
"""Commits that one verdict covers."""
PAGE: Final = 500


@dataclass(frozen=True, slots=True)
class AncestryAsk:
    queue: str
    pairs: tuple[Pair, ...]


@dataclass(frozen=True, slots=True)
class PublishAsk:
    """``base`` None: the range is the head alone."""

    stamp: Stamp
    request: int
    head: str
    base: str | None
    promotes: bool


@dataclass(frozen=True, slots=True)
class Promotion:
    """``uri`` is where the ref was set, or would have been."""

    result: str
    uri: str = ""
    detail: str = ""


class SourceControlActivities:
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
    async def look(self, stamp: Stamp) -> Seen:
        """The ref's head, against the queue's: URI, time and ancestry in one answer."""
        source = self._of(stamp.queue)
        head = await source.latest()
        uri, at = commit_uri(head.uri), plausible_time(head.committed_at, stamp.at)
        queue = await self._store.queue(stamp.queue)
        known = queue.latest.uri if queue.latest else None
        if known is None or known == uri:
            return Seen(uri, at, known, Ancestry.YES, named_before=False)
        named = bool(await self._store.attempts(stamp.queue, uri))
        descends = await source.is_ancestor(known, uri)
        bases = {r.uri for r in (queue.last_green, *queue.in_flight) if r is not None}
        answers = await self._ancestry(source, [(base, uri) for base in sorted(bases)])
        confirm = self._config.get(stamp.queue).rewind_confirm
        return Seen(uri, at, known, descends, named, confirm, tuple(answers))

    @activity.defn
    async def ancestry(self, ask: AncestryAsk) -> Sequence[Known]:
        return await self._ancestry(self._of(ask.queue), ask.pairs)

    async def _ancestry(self, source: SourceControl, pairs: Sequence[Pair]) -> list[Known]:
        return [Known(old, new, await source.is_ancestor(old, new)) for old, new in pairs]

    @activity.defn
    async def publish(self, ask: PublishAsk) -> Promotion | None:
        """What a verdict means for others: the commits it covers, then, if green, the ref."""
        source = self._of(ask.stamp.queue)
        await self._cover(ask, source)
        return await self._promote(ask.stamp, source) if ask.promotes else None

    async def _cover(self, ask: PublishAsk, source: SourceControl) -> None:
        """Page by page from the head down; written again, it is the same."""
        stamp, number = ask.stamp, ask.request
        try:
            async for page in _below_head(source, ask.head, ask.base):
                if not await self._store.cover(stamp, number, page):
                    return
                activity.heartbeat()
        except NotFound as gone:
            told = Happening(stamp.queue, str(number), "coverage_missing", "", 0, str(gone))
            await self._store.note(stamp, told)

    async def _promote(self, stamp: Stamp, source: SourceControl) -> Promotion:
        """Point the promotion ref at the holder, until it holds after the push as before it."""
        while True:
            found = await source.promoted()
            uri = await self._holder(stamp)
            if uri is None:
                return Promotion("no_holder")
            result = await promote_or_left(source, uri, found)
            if result.result == Promoted.MOVED_MEANWHILE:
                activity.heartbeat()
            elif await self._holder(stamp) == uri:
                return result

    async def _holder(self, stamp: Stamp) -> str | None:
        holder = await self._store.holder(stamp.fence, stamp.queue)
        return holder.uri if holder else None


async def _below_head(
    source: SourceControl, head: str, base: str | None
) -> AsyncIterator[RangePage]:
    """What the head has and the base has not, without the head: with it at most ``MOST``."""
    cursor, first, is_last = None, -1, base is None
    while not is_last:
        found = await source.commits_between(base, head, cursor=cursor, limit=PAGE)
        uris, room = tuple(uri for uri in found.uris if uri != head), MOST + first
        is_last, cursor = found.cursor is None or len(uris) >= room, found.cursor
        is_cut = len(uris) > room or (is_last and cursor is not None)
        yield RangePage(uris[:room], first, is_last, is_cut)
        first -= len(uris)


async def promote_or_left(source: SourceControl, uri: str, found: str | None) -> Promotion:
    """A commit that a rewrite took off the ref is left out: the next green one corrects it."""
    try:
        return Promotion(str(await source.promote(uri, found)), uri)
    except NotFound as gone:
        return Promotion("not_on_ref", uri, str(gone))
