"""The least that a start through Temporal costs here: a workflow, its child, one activity."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final
from uuid import uuid4

from temporalio import activity, workflow
from temporalio.client import Client
from temporalio.common import WorkflowIDReusePolicy
from temporalio.worker import PollerBehaviorAutoscaling, Worker

with workflow.unsafe.imports_passed_through():
    from datetime import timedelta

    from wiring.temporal import SANDBOX

TASKS: Final = "floor"


@activity.defn
async def now_ns() -> int:
    return time.time_ns()


@workflow.defn
class Inner:
    @workflow.run
    async def run(self) -> int:
        return await workflow.execute_activity(now_ns, start_to_close_timeout=timedelta(seconds=10))


@workflow.defn
class Outer:
    @workflow.run
    async def run(self) -> int:
        return await workflow.execute_child_workflow(
            Inner.run, id_reuse_policy=WorkflowIDReusePolicy.ALLOW_DUPLICATE
        )


@dataclass(frozen=True)
class Floor:
    client: Client

    async def measure(self) -> float:
        """Seconds from the call until the activity runs."""
        began = time.time_ns()
        at = await self.client.execute_workflow(Outer.run, id=uuid4().hex, task_queue=TASKS)
        return (at - began) / 1e9


@asynccontextmanager
async def floor(client: Client) -> AsyncIterator[Floor]:
    """With a worker of the options that the real one has."""
    async with Worker(
        client,
        task_queue=TASKS,
        workflows=[Outer, Inner],
        workflow_runner=SANDBOX,
        activities=[now_ns],
        max_eager_activity_reservations_per_workflow_task=20,
        workflow_task_poller_behavior=PollerBehaviorAutoscaling(),
    ):
        yield Floor(client)
