"""Starts what is owed: once a run, and again when it closed without being done."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from temporalio import workflow
from temporalio.common import WorkflowIDReusePolicy
from temporalio.exceptions import WorkflowAlreadyStartedError

with workflow.unsafe.imports_passed_through():
    from domain.identity import Fence
    from stores.rows import Owed, Work
    from workflows import ids, policies
    from workflows.bisect import BisectWorkflow
    from workflows.build import BuildWorkflow
    from workflows.hook import HookWorkflow
    from workflows.messages import BuildInput, RequestInput
    from workflows.steps import attributes, now_ms, of_queue


class Drive:
    def __init__(self, fence: Fence, queue: str, closed: Callable[[], None]) -> None:
        self._fence = fence
        self._queue = queue
        self._closed = closed
        self._driven: dict[tuple[int, Work, bool], int] = {}
        self._live: set[int] = set()

    def forget(self) -> None:
        """A person asked: what is owed and does not run is started at once."""
        self._driven.clear()

    async def __call__(self, owed: Owed) -> None:
        at, key = now_ms(), (owed.request, owed.kind, owed.overdue)
        recent = at - self._driven.get(key, -policies.DRIVE_AGAIN_MS) < policies.DRIVE_AGAIN_MS
        lives = owed.kind is Work.BUILD and owed.request in self._live
        if recent or (lives and not owed.overdue):
            return
        self._driven[key] = at
        try:
            await self._start(owed)
        except WorkflowAlreadyStartedError:
            return

    async def _start(self, owed: Owed) -> None:
        match owed.kind:
            case Work.BUILD:
                await self._build(owed)
            case Work.HOOKS:
                await self._other(HookWorkflow.run, ids.hooks, owed)
            case Work.BISECT:
                await self._other(BisectWorkflow.run, ids.bisect, owed)

    async def _build(self, owed: Owed) -> None:
        reuse = (
            WorkflowIDReusePolicy.TERMINATE_IF_RUNNING
            if owed.overdue
            else WorkflowIDReusePolicy.ALLOW_DUPLICATE
        )
        handle = await workflow.start_child_workflow(
            BuildWorkflow.run,
            BuildInput(self._fence, self._queue, owed.request, owed.uri, owed.deadline, owed.again),
            id=ids.build(self._queue, owed.request),
            id_reuse_policy=reuse,
            parent_close_policy=workflow.ParentClosePolicy.ABANDON,
            search_attributes=attributes(self._queue, owed.request, owed.uri, owed.state),
            static_summary=f"validates {owed.uri[:12]}",
        )
        self._live.add(owed.request)
        handle.add_done_callback(lambda done: self._ended(owed.request, done))

    async def _other(
        self,
        run: Callable[[Any, RequestInput], Awaitable[None]],
        named: Callable[[str, int], str],
        owed: Owed,
    ) -> None:
        handle = await workflow.start_child_workflow(
            run,
            RequestInput(self._fence, self._queue, owed.request),
            id=named(self._queue, owed.request),
            search_attributes=of_queue(self._queue),
            id_reuse_policy=WorkflowIDReusePolicy.ALLOW_DUPLICATE,
            parent_close_policy=workflow.ParentClosePolicy.ABANDON,
        )
        handle.add_done_callback(lambda done: done.cancelled() or done.exception())

    def _ended(self, number: int, handle: asyncio.Task[None]) -> None:
        self._live.discard(number)
        if not handle.cancelled():
            handle.exception()
        self._closed()
