"""Every effect of a worker's process, numbered; at one of them it dies, or loses its store."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

from temporalio import activity, workflow
from temporalio.client import (
    Interceptor as ClientInterceptor,
)
from temporalio.client import (
    OutboundInterceptor,
    SignalWorkflowInput,
    StartWorkflowInput,
    WorkflowHandle,
)
from temporalio.worker import (
    Interceptor,
    StartChildWorkflowInput,
    WorkflowInboundInterceptor,
    WorkflowInterceptorClassInput,
    WorkflowOutboundInterceptor,
)
from temporalio.workflow import ChildWorkflowHandle

TASK: Final = timedelta(seconds=1)
"""A workflow task that died with its worker is handed out again after this; 10 s by default."""


@dataclass(frozen=True)
class Point:
    """The ``nth`` effect of that name, before or after it."""

    name: str
    nth: int
    phase: str

    def __str__(self) -> str:
        return f"{self.phase} {self.name} {self.nth}"


@dataclass(frozen=True)
class Plan:
    """What happens at a point: the process is killed, or its store is out for some seconds."""

    point: Point
    store_out: float = 0


class Gate:
    def __init__(self, log: Path, plan: Plan | None = None) -> None:
        self._log = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self._plan = plan
        self._counts = Counter[str]()
        self._lock = threading.Lock()
        self.store_out_until = 0.0

    def before(self, name: str) -> int:
        with self._lock:
            self._counts[name] += 1
            nth = self._counts[name]
        self._pass(Point(name, nth, "before"))
        return nth

    def after(self, name: str, nth: int) -> None:
        self._pass(Point(name, nth, "after"))

    @contextmanager
    def effect(self, name: str) -> Iterator[None]:
        """An answer that is an error is an answer: the effect has passed."""
        nth = self.before(name)
        try:
            yield
        except Exception:
            self.after(name, nth)
            raise
        self.after(name, nth)

    def _pass(self, point: Point) -> None:
        os.write(self._log, f"{point.phase} {point.nth} {point.name}\n".encode())
        if self._plan is None or self._plan.point != point:
            return
        if not self._plan.store_out:
            os.kill(os.getpid(), signal.SIGKILL)
        self.store_out_until = time.monotonic() + self._plan.store_out


def passed(log: Path) -> list[Point]:
    """In the order in which they were passed, by whichever process."""
    found = []
    for line in log.read_text().splitlines() if log.exists() else []:
        phase, nth, name = line.split(" ", 2)
        found.append(Point(name, int(nth), phase))
    return found


class Gated(ClientInterceptor, Interceptor):
    """What is asked of Temporal: by this process's client, and by the workflows that it runs."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate

    def intercept_client(self, next: OutboundInterceptor) -> OutboundInterceptor:
        return _Client(next, self._gate)

    def workflow_interceptor_class(
        self, _: WorkflowInterceptorClassInput
    ) -> type[WorkflowInboundInterceptor] | None:
        gate = self._gate

        class Inbound(WorkflowInboundInterceptor):
            def init(self, outbound: WorkflowOutboundInterceptor) -> None:
                super().init(_Workflow(outbound, gate))

        return Inbound


class _Client(OutboundInterceptor):
    def __init__(self, next: OutboundInterceptor, gate: Gate) -> None:
        super().__init__(next)
        self._gate = gate

    async def start_workflow(self, input: StartWorkflowInput) -> WorkflowHandle[Any, Any]:
        by = " of the watch" if _is_watching() else ""
        name = f"start {input.workflow} {input.start_signal or ''}".strip()
        with self._gate.effect(f"{name}{by}"):
            return await super().start_workflow(replace(input, task_timeout=TASK))

    async def signal_workflow(self, input: SignalWorkflowInput) -> None:
        with self._gate.effect(f"signal {input.signal}"):
            await super().signal_workflow(input)


def _is_watching() -> bool:
    return activity.in_activity() and activity.info().activity_type == "watch"


class _Workflow(WorkflowOutboundInterceptor):
    """A replayed step is no effect: it has been taken before."""

    def __init__(self, next: WorkflowOutboundInterceptor, gate: Gate) -> None:
        super().__init__(next)
        self._gate = gate

    async def start_child_workflow(
        self, input: StartChildWorkflowInput
    ) -> ChildWorkflowHandle[Any, Any]:
        name, nth = f"child {input.workflow}", 0
        if not workflow.unsafe.is_replaying():
            nth = self._gate.before(name)
        handle = await super().start_child_workflow(replace(input, task_timeout=TASK))
        if nth and not workflow.unsafe.is_replaying():
            self._gate.after(name, nth)
        return handle
