"""The build runner that needs nothing but git: a build is a workflow, its key the workflow's id."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from hashlib import sha256
from pathlib import Path
from typing import Final

from temporalio.api.enums.v1 import PendingActivityState
from temporalio.client import Client, WorkflowExecutionDescription, WorkflowExecutionStatus
from temporalio.common import Priority, WorkflowIDReusePolicy
from temporalio.exceptions import WorkflowAlreadyStartedError
from temporalio.service import RPCError, RPCStatusCode

from domain.errors import Misconfigured, NoSuchBuild, RunnerOut
from domain.settings import QueueSettings
from extensions.buildrunner.command.log import log_path
from extensions.buildrunner.command.workflow import MISCONFIGURED, VERDICT, CommandWorkflow
from extensions.buildrunner.contract import LOST, Order, Triggered

PREFIX: Final = "command/"
_BUILD_ID: Final = re.compile(r"command/[0-9a-f]{32}")
_RPC: Final = timedelta(seconds=10)
_FAIRNESS_KEY: Final = 64


def build_id(key: str, head_uri: str) -> str:
    """Another head under one key is another build."""
    return PREFIX + sha256(f"{key}\0{head_uri}".encode()).hexdigest()[:32]


@dataclass(frozen=True)
class CommandRunner:
    client: Client
    builds_directory: Path
    settings_of: Callable[[str], QueueSettings]
    workflow_queue: str
    builds_queue: str
    has_own_key = True
    pushes = True

    async def trigger(self, order: Order) -> Triggered:
        if not self.settings_of(order.queue).command:
            raise Misconfigured(f"queue {order.queue} has no command")
        build = build_id(order.key, order.head_uri)
        # Already started: the same key and head, so the same build.
        with _answered(), suppress(WorkflowAlreadyStartedError):
            await self.client.start_workflow(
                CommandWorkflow.run,
                args=[order, self.builds_queue],
                id=build,
                task_queue=self.workflow_queue,
                id_reuse_policy=WorkflowIDReusePolicy.REJECT_DUPLICATE,
                static_summary=f"{order.queue} {order.head_uri}"[:200],
                memo={"key": order.key, "head": order.head_uri},
                priority=Priority(fairness_key=order.queue[-_FAIRNESS_KEY:]),
                request_eager_start=True,
                rpc_timeout=_RPC,
            )
        return self._triggered(build)

    async def find(self, key: str, head_uri: str) -> Triggered | None:
        build = build_id(key, head_uri)
        return self._triggered(build) if await self._describe(build) else None

    async def status(self, build_id: str) -> str:
        if not _BUILD_ID.fullmatch(build_id):
            raise NoSuchBuild(f"{build_id[:80]!r} is not a build of the command runner")
        description = await self._describe(build_id)
        return LOST if description is None else await _status_of(description)

    async def cancel(self, build_id: str) -> None:
        if not _BUILD_ID.fullmatch(build_id):
            return
        with _answered():
            try:
                await self.client.get_workflow_handle(build_id).cancel(rpc_timeout=_RPC)
            except RPCError as error:
                if error.status is not RPCStatusCode.NOT_FOUND:
                    raise

    def _triggered(self, build: str) -> Triggered:
        return Triggered(build, str(log_path(self.builds_directory, build)))

    async def _describe(self, build: str) -> WorkflowExecutionDescription | None:
        with _answered():
            try:
                return await self.client.get_workflow_handle(build).describe(rpc_timeout=_RPC)
            except RPCError as error:
                if error.status is RPCStatusCode.NOT_FOUND:
                    return None
                raise


async def _status_of(description: WorkflowExecutionDescription) -> str:
    verdict: str = await description.memo_value(VERDICT, "", type_hint=str)
    if verdict == MISCONFIGURED:
        raise Misconfigured(await description.memo_value(MISCONFIGURED, "", type_hint=str))
    if verdict:
        return verdict
    if description.status is not WorkflowExecutionStatus.RUNNING:
        return "cancelled"  # ended by somebody's hand, without a verdict
    scheduled = PendingActivityState.PENDING_ACTIVITY_STATE_SCHEDULED
    begun = any(
        pending.state != scheduled or pending.attempt > 1
        for pending in description.raw_description.pending_activities
    )
    return "running" if begun else "accepted"


@contextmanager
def _answered() -> Iterator[None]:
    try:
        yield
    except RPCError as error:
        raise RunnerOut(f"temporal: {error.status.name}: {error.message[:200]}") from error
