"""After a namespace or a store was lost: everything is started anew, from the store alone."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from temporalio.client import Client, WorkflowExecutionStatus
from temporalio.common import WorkflowIDConflictPolicy, WorkflowIDReusePolicy
from temporalio.service import RPCError

from domain.act import Act, Verb
from domain.errors import WrongInstallation
from domain.identity import Fence
from domain.settings import remote_id
from extensions.gitcommand import redact
from stores.epoch import raise_epoch
from wiring.parts import Parts
from workflows import ids
from workflows.messages import WatchInput
from workflows.watch import WatchWorkflow

AT_ONCE: Final = 50
"""Queues named in one question to Temporal's visibility."""


@dataclass(frozen=True)
class Recovered:
    epoch: int
    terminated: tuple[str, ...]
    started: tuple[str, ...]


async def recover(client: Client, parts: Parts, by: Act, at: int) -> Recovered:
    """Safe to repeat. Builds of a runner go on: their keys find them again."""
    fence = await raise_epoch(parts.engine, by, at, jump=by.verb is Verb.RESTORE)
    queues = await known_queues(parts)
    ended = [workflow async for workflow in ours(client, parts, queues)]
    for workflow in ended:
        with suppress(RPCError):  # it has ended by itself meanwhile
            await client.get_workflow_handle(workflow).terminate(f"{by.verb}: {by.reason}")
    started = await start_queues(client, parts, fence, alone=True)
    return Recovered(fence.epoch, tuple(ended), started)


async def known_queues(parts: Parts) -> list[str]:
    """Configured, or known to the store from before."""
    configured = {queue.name for queue in parts.config.list()}
    return sorted(configured | {*await parts.store.queues()})


async def ours(client: Client, parts: Parts, queues: Sequence[str]) -> AsyncIterator[str]:
    """What runs for these queues and their remotes; not the builds of a runner."""
    found = set[str]()
    for first in range(0, len(queues), AT_ONCE):
        names = ", ".join(f"'{name}'" for name in queues[first : first + AT_ONCE])
        query = f"{ids.QUEUE.name} IN ({names}) AND ExecutionStatus = 'Running'"
        found |= {workflow.id async for workflow in client.list_workflows(query)}
    # Visibility lags; these are known by their names.
    watches = {ids.watch(remote_id(queue.repository)) for queue in parts.config.list()}
    for workflow in sorted(found | watches | {ids.queue(name) for name in queues}):
        with suppress(RPCError):
            about = await client.get_workflow_handle(workflow).describe()
            if about.status is WorkflowExecutionStatus.RUNNING:
                yield workflow


async def start_queues(
    client: Client, parts: Parts, fence: Fence, *, alone: bool = False
) -> tuple[str, ...]:
    """``alone``: a watch that runs is one whose worker is gone; it would be missed only later."""
    policy = WorkflowIDConflictPolicy
    configured = {queue.name: queue for queue in parts.config.list()}
    queues = await known_queues(parts)
    for name in queues:
        await check_owner(client, fence, name)
        await parts.waker.queue(fence, name, "head_moved" if name in configured else None)
    remotes = sorted({queue.repository for queue in configured.values()})
    for remote in remotes:
        await client.start_workflow(
            WatchWorkflow.run,
            WatchInput(fence, remote_id(remote)),
            id=ids.watch(remote_id(remote)),
            task_queue=parts.task_queues.main,
            id_conflict_policy=policy.TERMINATE_EXISTING if alone else policy.USE_EXISTING,
            id_reuse_policy=WorkflowIDReusePolicy.ALLOW_DUPLICATE,
            static_summary=f"watches {redact(remote)}"[:200],
        )
    return (*map(ids.queue, queues), *(ids.watch(remote_id(remote)) for remote in remotes))


async def check_owner(client: Client, fence: Fence, queue: str) -> None:
    """``WrongInstallation`` where another store's workflow runs under the queue's id."""
    owner = await owner_of(client, queue)
    if owner is not None and owner.installation != fence.installation:
        raise WrongInstallation(
            f"queue {queue} of namespace {client.namespace} belongs to installation "
            f"{owner.installation}, this store is installation {fence.installation}: give one of "
            "the two a namespace of its own, or another name for the queue"
        )


async def owner_of(client: Client, queue: str) -> Fence | None:
    """Under which fence the queue's workflow runs; None when it does not."""
    with suppress(RPCError):
        about = await client.get_workflow_handle(ids.queue(queue)).describe()
        if about.status is WorkflowExecutionStatus.RUNNING:
            memo = await about.memo()
            return Fence(memo.get("installation", ""), memo.get("epoch", 0))
    return None
