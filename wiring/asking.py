"""Asks a queue's workflow, which is started when it does not run."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, TypeVar

from temporalio.client import (
    Client,
    WithStartWorkflowOperation,
    WorkflowUpdateFailedError,
    WorkflowUpdateRPCTimeoutOrCancelledError,
)
from temporalio.common import WorkflowIDConflictPolicy, WorkflowIDReusePolicy
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError, RPCStatusCode

from domain.act import Act
from domain.errors import Fenced, Malformed, NotFound, Refused, WrongInstallation
from domain.identity import Fence
from stores.rows import Happening
from wiring.temporal import TemporalOut
from workflows import ids, policies
from workflows.messages import Asked, QueueInput, Report
from workflows.queue import QueueWorkflow
from workflows.steps import of_queue

T = TypeVar("T")
REST: Final = 0.2
RUN_ENDED: Final = (
    RPCStatusCode.NOT_FOUND,
    RPCStatusCode.FAILED_PRECONDITION,
    RPCStatusCode.ABORTED,
)
KINDS: Final = {kind.__name__: kind for kind in (Fenced, Malformed, NotFound, WrongInstallation)}
WAIT: Final = policies.REPORT_WAIT + timedelta(seconds=10)
"""The queue answers in time, also when its look does not: longer means that nobody works."""


def start_of(fence: Fence, queue: str, task_queue: str) -> dict[str, Any]:
    """How a queue's workflow is started, by whoever needs it."""
    return {
        "id": ids.queue(queue),
        "task_queue": task_queue,
        "id_conflict_policy": WorkflowIDConflictPolicy.USE_EXISTING,
        "id_reuse_policy": WorkflowIDReusePolicy.ALLOW_DUPLICATE,
        "static_summary": f"validates {queue}",
        "search_attributes": of_queue(queue),
        "memo": {"installation": fence.installation, "epoch": fence.epoch},
    }


@dataclass(frozen=True)
class Asking:
    """``TemporalOut`` when nobody answers: the same action may be asked again."""

    client: Client
    fence: Fence
    task_queue: str = policies.MAIN_QUEUE

    async def report(self, queue: str) -> Report:
        return await self._answered(
            queue,
            lambda: self.client.execute_update_with_start_workflow(
                QueueWorkflow.report_head,
                self.fence,
                start_workflow_operation=self._start(queue),
            ),
        )

    async def act(self, queue: str, act: Act) -> Happening:
        """``Refused`` when it is not allowed now; the audit has it all the same."""
        done = await self._answered(
            queue,
            lambda: self.client.execute_update_with_start_workflow(
                QueueWorkflow.act,
                Asked(self.fence, act),
                start_workflow_operation=self._start(queue),
            ),
        )
        return allowed(done)

    def _start(self, queue: str) -> WithStartWorkflowOperation[QueueWorkflow, None]:
        return WithStartWorkflowOperation(
            QueueWorkflow.run,
            QueueInput(self.fence, queue),
            **start_of(self.fence, queue, self.task_queue),
        )

    async def _answered(self, queue: str, update: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Asked anew when a run ended under it: the same report or action, so nothing is lost."""
        limit = time.monotonic() + WAIT.total_seconds()
        while True:
            try:
                async with asyncio.timeout(max(limit - time.monotonic(), 0)):
                    return await update()
            except WorkflowUpdateFailedError as error:
                raise _as_itself(error) from error
            except (RPCError, WorkflowUpdateRPCTimeoutOrCancelledError, TimeoutError) as error:
                lost = isinstance(error, RPCError) and error.status in RUN_ENDED
                if not lost or time.monotonic() > limit:
                    raise _nobody(queue) from error
            await asyncio.sleep(REST)


def _nobody(queue: str) -> TemporalOut:
    return TemporalOut(
        f"no worker answered for queue {queue}: start `lastgreen up` or `lastgreen worker`"
    )


def allowed(done: Happening) -> Happening:
    if done.is_refused:
        raise Refused(done.detail)
    return done


def _as_itself(error: WorkflowUpdateFailedError) -> Exception:
    """The error that the workflow, or its activity, raised under that name."""
    cause: BaseException | None = error.cause
    while cause is not None and not isinstance(cause, ApplicationError):
        cause = cause.__cause__
    kind = KINDS.get(cause.type or "") if cause else None
    return kind(cause.message) if kind and cause else error
