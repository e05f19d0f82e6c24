"""Tells workflows that there is something to look at; what is lost is found by the next turn."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import partial
from typing import Any

import structlog
from temporalio.client import Client
from temporalio.common import WorkflowIDConflictPolicy, WorkflowIDReusePolicy
from temporalio.service import RPCError

from domain.identity import Fence
from stores.rows import Committed, Happening
from wiring.asking import start_of
from workflows import ids, policies
from workflows.hook import HookWorkflow
from workflows.messages import QueueInput, RequestInput
from workflows.queue import QueueWorkflow
from workflows.steps import of_queue

REST = 0.1
"""Seconds between two pokes about one queue's head: a burst is a look now and then."""


class Waker:
    """At most one wake in flight for each workflow: what comes meanwhile rides the next one."""

    def __init__(self, client: Client, task_queue: str = policies.MAIN_QUEUE) -> None:
        self._client = client
        self._task_queue = task_queue
        self._wanted: dict[str, Callable[[], Coroutine[Any, Any, object]]] = {}
        self._running: dict[str, asyncio.Task[None]] = {}
        self.happened: Callable[[Happening], None] = _log

    def __call__(self, fence: Fence, queue: str, committed: Committed) -> None:
        for happening in committed.happenings:
            with suppress(Exception):  # what is told of a step never undoes the step
                self.happened(happening)
        if committed.wake_queue:
            _ = self.poke(ids.queue(queue), partial(self.queue, fence, queue, "slot_freed"))
        for number, attempt in committed.wake_builds:
            build = ids.buildsignal(queue, number, attempt)
            _ = self.poke(build, partial(self._news, build))
        for number in committed.wake_bisections:
            bisection = ids.bisect(queue, number)
            _ = self.poke(bisection, partial(self._news, bisection))
        for number in committed.wake_hooks:
            wake = partial(self._hooks, RequestInput(fence, queue, number))
            _ = self.poke(ids.hooks(queue, number), wake)

    def head_moved(self, fence: Fence, queue: str) -> asyncio.Task[None]:
        wake = partial(self.queue, fence, queue, "head_moved")
        return self.poke(f"head {queue}", wake, rest=REST)

    def poke(
        self, key: str, send: Callable[[], Coroutine[Any, Any, object]], *, rest: float = 0
    ) -> asyncio.Task[None]:
        self._wanted[key] = send
        if key not in self._running:
            task = asyncio.create_task(self._send(key, rest))
            self._running[key] = task
            task.add_done_callback(lambda _: self._running.pop(key, None))
        return self._running[key]

    async def _send(self, key: str, rest: float) -> None:
        while send := self._wanted.pop(key, None):
            try:
                await send()
            except RPCError as error:
                structlog.get_logger("lastgreen").warning("a wake was lost", to=key, why=str(error))
            await asyncio.sleep(rest)

    async def queue(self, fence: Fence, queue: str, signal: str | None = None) -> None:
        """Start the queue's workflow if it does not run, and signal it."""
        await self._client.start_workflow(
            QueueWorkflow.run,
            QueueInput(fence, queue),
            start_signal=signal,
            **start_of(fence, queue, self._task_queue),
        )

    async def _news(self, workflow: str) -> None:
        await self._client.get_workflow_handle(workflow).signal("news")

    async def _hooks(self, ask: RequestInput) -> None:
        await self._client.start_workflow(
            HookWorkflow.run,
            ask,
            id=ids.hooks(ask.queue, ask.request),
            task_queue=self._task_queue,
            start_signal="wake",
            id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
            id_reuse_policy=WorkflowIDReusePolicy.ALLOW_DUPLICATE,
            search_attributes=of_queue(ask.queue),
        )


def _log(row: Happening) -> None:
    log = structlog.get_logger("lastgreen")
    request = f"request/{row.queue}/{row.subject}"
    log.info(row.kind, queue=row.queue, request=request, detail=row.detail)
