"""Runs Temporal workers; chooses nothing."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta

from temporalio.client import Client
from temporalio.worker import PollerBehaviorAutoscaling, Worker

from activities.failures import Failures
from wiring.parts import WORKFLOWS, Parts
from wiring.temporal import SANDBOX
from workflows import policies

GRACE = timedelta(seconds=20)


def main_worker(client: Client, parts: Parts) -> Worker:
    return Worker(
        client,
        task_queue=parts.task_queues.main,
        workflows=WORKFLOWS,
        workflow_runner=SANDBOX,
        activities=parts.activities(),
        interceptors=[Failures()],
        max_cached_workflows=2_000,
        max_eager_activity_reservations_per_workflow_task=20,
        workflow_task_poller_behavior=PollerBehaviorAutoscaling(),
        graceful_shutdown_timeout=GRACE,
    )


def watch_worker(client: Client, parts: Parts) -> Worker:
    """Of its own: a slow remote is never waited for by anything else."""
    return Worker(
        client,
        task_queue=policies.WATCH_QUEUE,
        activities=[parts.watches().watch],
        interceptors=[Failures()],
        max_concurrent_activities=1_000,
        graceful_shutdown_timeout=timedelta(seconds=1),
    )


def builds_worker(client: Client, parts: Parts, builds: int) -> Worker:
    return Worker(
        client,
        task_queue=parts.task_queues.builds,
        activities=[parts.builds.run_command],
        max_concurrent_activities=builds,
        max_heartbeat_throttle_interval=timedelta(seconds=1),
        graceful_shutdown_timeout=timedelta(seconds=5),
    )


@asynccontextmanager
async def workers(client: Client, parts: Parts, builds: int) -> AsyncIterator[None]:
    """All roles in this process, until the block ends."""
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(main_worker(client, parts))
        await stack.enter_async_context(watch_worker(client, parts))
        await stack.enter_async_context(builds_worker(client, parts, builds))
        yield
