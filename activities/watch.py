"""The look for moved refs: one heartbeating activity a remote."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from temporalio import activity

from domain.identity import Fence
from domain.settings import QueueSettings, normal_ref, remote_id
from extensions.queueconfig.contract import QueueConfig
from extensions.sourcecontrol.contract import Remotes
from stores.contract import Store


@dataclass(frozen=True, slots=True)
class WatchAsk:
    """``remote`` is its id: see ``domain.settings.remote_id``."""

    fence: Fence
    remote: str


class WatchActivities:
    def __init__(
        self,
        store: Store,
        config: QueueConfig,
        remotes: Callable[[str], Remotes],
        head_moved: Callable[[Fence, str], Awaitable[None]],
    ) -> None:
        self._store = store
        self._config = config
        self._remotes = remotes
        self._head_moved = head_moved

    @activity.defn
    async def watch(self, ask: WatchAsk) -> None:
        """Until nobody is configured on this remote any more."""
        seen: dict[str, str | None] = {}
        while queues := [q for q in self._config.list() if remote_id(q.repository) == ask.remote]:
            await self._store.check(ask.fence)
            refs = await self._remotes(queues[0].repository).refs()
            for queue in queues:
                await self._tell(ask.fence, queue, refs.get(normal_ref(queue.ref)), seen)
            activity.heartbeat()
            await asyncio.sleep(min(queue.watch_interval for queue in queues))

    async def _tell(
        self, fence: Fence, queue: QueueSettings, now: str | None, seen: dict[str, str | None]
    ) -> None:
        if queue.name not in seen:
            latest = (await self._store.queue(queue.name)).latest
            seen[queue.name] = latest.uri if latest else None
        if now is not None and now != seen[queue.name]:
            await self._head_moved(fence, queue.name)
            seen[queue.name] = now
