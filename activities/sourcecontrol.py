"""What queues and records ask of source control."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from temporalio import activity

from domain.errors import NotFound
from domain.gate import Ancestry, Known, Pair, Seen, plausible_time
from domain.identity import commit_uri
from extensions.queueconfig.contract import QueueConfig
from extensions.sourcecontrol.contract import Promoted, SourceControl
from stores.contract import Store
from stores.rows import Stamp


@dataclass(frozen=True, slots=True)
class AncestryAsk:
    queue: str
    pairs: tuple[Pair, ...]


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
    async def promote(self, stamp: Stamp) -> Promotion:
        """Point the promotion ref at the holder, until it holds after the push as before it."""
        source = self._of(stamp.queue)
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
        await self._store.check(stamp.fence)
        holder = (await self._store.queue(stamp.queue)).holder
        return holder.uri if holder else None


async def promote_or_left(source: SourceControl, uri: str, found: str | None) -> Promotion:
    """A commit that a rewrite took off the ref is left out: the next green one corrects it."""
    try:
        return Promotion(str(await source.promote(uri, found)), uri)
    except NotFound as gone:
        return Promotion("not_on_ref", uri, str(gone))
