"""A trunk whose story a test tells: heads are reported, builds end, and what stands is asked."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

from temporalio.client import (
    Client,
    WorkflowExecutionStatus,
    WorkflowFailureError,
    WorkflowHandle,
)
from temporalio.service import RPCError
from temporalio.worker import Worker

from activities.failures import Failures
from activities.queue import settings_or_none
from domain.act import Act, Verb
from domain.event import EventType
from domain.explain import Line
from domain.fact import Exit, Require
from domain.gate import Seen
from domain.identity import Fence
from domain.request import Cause, State
from domain.settings import QueueSettings, Route, remote_id
from extensions.buildrunner.command.run import CommandActivities
from extensions.buildrunner.fake import FakeBuildRunner
from extensions.hooks.contract import Sink
from extensions.hooks.fake import FakeSink
from extensions.projects.fake import FakeProjects
from extensions.queueconfig.fake import FakeConfig
from extensions.sourcecontrol.fake import FakeRemotes, FakeSourceControl
from stores import schema
from stores.engine import open_engine
from stores.read import subject_of
from stores.rows import Answer, Failure, Happening, QueueState, Request, Stamp
from stores.write import SqlStore
from wiring.asking import Asking
from wiring.explaining import explain
from wiring.parts import WORKFLOWS, Extensions, Parts, TaskQueues
from wiring.temporal import SANDBOX
from wiring.wake import Waker
from workflows import ids, policies
from workflows.build import BuildWorkflow
from workflows.messages import BuildInput, RecordInput, Report, WatchInput
from workflows.queue import QueueWorkflow
from workflows.record import RecordWorkflow
from workflows.watch import WatchWorkflow

NUMBERS = itertools.count(1)
PATIENCE = 20.0
SHORT = {
    State.ACCEPTED: "acc",
    State.PROCESSING: "pro",
    State.SUPERSEDED: "sup",
    State.SUCCEEDED: "suc",
    State.FAILED: "fai",
    State.CANCELLED: "can",
}


@dataclass
class Trunk:
    client: Client
    parts: Parts
    fence: Fence
    queue: str
    config: FakeConfig
    source: FakeSourceControl
    runner: FakeBuildRunner
    sink: FakeSink
    sinks: dict[str, Sink] = field(default_factory=dict)
    """By name; every other one is ``sink``."""
    projects: FakeProjects = field(default_factory=FakeProjects)
    happened: list[Happening] = field(default_factory=list)
    named: list[str] = field(default_factory=list)
    """The runners that were asked for."""

    @property
    def store(self) -> SqlStore:
        assert isinstance(self.parts.store, SqlStore)
        return self.parts.store

    @property
    def handle(self) -> WorkflowHandle[QueueWorkflow, None]:
        return self.client.get_workflow_handle_for(QueueWorkflow.run, ids.queue(self.queue))

    def set(self, **settings: Any) -> None:
        self.config.put(replace(self.config.get(self.queue), **settings))

    async def start(self) -> None:
        await self.parts.waker.queue(self.fence, self.queue)

    async def look(self) -> Report:
        await self.start()
        return await self.handle.execute_update(QueueWorkflow.report_head, self.fence)

    async def act(
        self, verb: Verb, target: int | str = "", *, once: str = "", by: str = "ada"
    ) -> Happening:
        """What a person asks; a refused one raises."""
        act = Act(once or uuid4().hex, verb, by, "because", str(target))
        return await Asking(self.client, self.fence, self.queue).act(self.queue, act)

    async def audit(self, number: int | None = None) -> list[tuple[str, str | None]]:
        """What people did, and who."""
        subject = subject_of(self.queue) if number is None else str(number)
        rows = await self.store.audit(self.queue)
        return [(row.kind, row.actor) for row in rows if row.subject == subject]

    async def report(self, *uris: str) -> list[str]:
        """Each lands on top of the last and is reported, one after another."""
        requests = []
        for uri in uris:
            if uri not in self.source.parents:
                self.source.land(uri)
            report = await self.look()
            assert report.request is not None, report
            requests.append(report.request)
        return requests

    @asynccontextmanager
    async def watched(self) -> AsyncIterator[WorkflowHandle[WatchWorkflow, None]]:
        """Its remote is watched meanwhile; all watches share one task queue."""
        remote = remote_id(self.config.get(self.queue).repository)
        worker = Worker(
            self.client,
            task_queue=policies.WATCH_QUEUE,
            activities=[self.parts.watches().watch],
            interceptors=[Failures()],
            graceful_shutdown_timeout=timedelta(0),
        )
        async with worker:
            handle = await self.client.start_workflow(
                WatchWorkflow.run,
                WatchInput(self.fence, remote),
                id=ids.watch(remote),
                task_queue=self.queue,
            )
            yield handle
            await handle.terminate()

    async def poke(self) -> None:
        await self.parts.waker.head_moved(self.fence, self.queue)

    async def build_ends(self, uri: str, status: str) -> None:
        await self.until(lambda: self._is_triggered(uri))
        await self.runner.finish(uri, status)

    async def _is_triggered(self, uri: str) -> bool:
        return bool(await self.store.builds(self.queue, (await self.request(uri)).number))

    async def succeeds(self, uri: str) -> Request:
        await self.build_ends(uri, "succeeded")
        return await self.recorded(uri)

    async def fails(self, uri: str) -> Request:
        await self.build_ends(uri, "failed")
        return await self.recorded(uri)

    async def request(self, uri: str) -> Request:
        return (await self.store.attempts(self.queue, uri))[0]

    async def is_in(self, uri: str, state: State) -> Request:
        async def reached() -> bool:
            attempts = await self.store.attempts(self.queue, uri)
            return bool(attempts) and attempts[0].state is state

        await self.until(reached)
        return await self.request(uri)

    async def recorded(self, uri: str) -> Request:
        async def reached() -> bool:
            return (await self.request(uri)).recorded_at is not None

        await self.until(reached)
        return await self.request(uri)

    async def state(self) -> QueueState:
        return await self.store.queue(self.queue)

    async def states(self) -> str:
        """Of all requests in ingest order: ``A pro, B sup``."""
        requests = await self.store.requests(self.queue, limit=1000)
        return ", ".join(f"{r.uri} {SHORT[r.state]}" for r in reversed(requests))

    async def last_green(self) -> tuple[int, str] | None:
        green = (await self.state()).last_green
        return (green.number, green.uri) if green else None

    async def history(self, number: int) -> list[str]:
        return [row.kind for row in await self.store.history(self.queue, number)]

    async def is_green(self, uri: str, require: Require = Require.EXACT) -> Exit:
        return (await self.store.covers(self.queue, uri)).answer(require)

    async def covered(self, uri: str) -> tuple[int, float] | None:
        """By which request, with which degree."""
        cover = (await self.store.covers(self.queue, uri)).cover
        return (cover.request, cover.degree) if cover else None

    async def position(self, uri: str) -> tuple[int, int] | None:
        cover = (await self.store.covers(self.queue, uri)).cover
        return (cover.order, cover.offset) if cover else None

    def events(self) -> list[tuple[EventType, int]]:
        """What the sink heard, each event once."""
        known = {event.id: (event.type, event.request) for event in self.sink.heard}
        return list(known.values())

    async def details(self) -> str:
        metadata = await self.handle.query("__temporal_workflow_metadata")
        return str(metadata.current_details)

    async def explain(self, uri: str | None = None) -> list[Line]:
        async def connect() -> Client:
            return self.client

        settings = settings_or_none(self.config, self.queue)
        found = await explain(self.store, settings, connect, queue=self.queue, uri=uri)
        return list(found.lines)

    async def until(self, reached: Callable[[], Awaitable[bool]]) -> None:
        limit = time.monotonic() + PATIENCE
        while not await reached():
            assert time.monotonic() < limit, await self._what_stands()
            await asyncio.sleep(0.02)

    async def drive(self, number: int) -> None:
        """Run the request's own workflow once more, as a queue does that finds it owed."""
        request = await self.store.request(self.queue, number)
        with suppress(WorkflowFailureError, RPCError):
            await self.client.get_workflow_handle(ids.build(self.queue, number)).result()
        await self.client.execute_workflow(
            BuildWorkflow.run,
            BuildInput(
                self.fence, self.queue, number, request.uri, request.deadline_at or 0, again=True
            ),
            id=ids.build(self.queue, number),
            task_queue=self.queue,
        )

    async def observe_late(self, number: int, build: str) -> None:
        """An answer that comes when nobody waits for it any more."""
        status = await self.runner.status(build)
        stamp = Stamp(self.fence, self.queue, int(time.time() * 1000))
        await self.store.observe(stamp, Answer(number, 1, status), self.config.get(self.queue))

    async def fail_closed(self, number: int) -> None:
        stamp = Stamp(self.fence, self.queue, int(time.time() * 1000))
        failure = Failure(number, Cause.PROCESSING_FAILED, "by a test")
        await self.store.fail(stamp, failure, self.config.get(self.queue))

    async def drive_missing(self, number: int) -> None:
        message = BuildInput(self.fence, self.queue, number, "?", 0)
        await self.client.execute_workflow(
            BuildWorkflow.run,
            message,
            id=ids.build(self.queue, number),
            task_queue=self.queue,
        )

    async def record(self, number: int) -> None:
        """Hand the request to record once more, by mistake or after a crash."""
        request = await self.store.request(self.queue, number)
        message = RecordInput(self.fence, self.queue, number, request.uri, request.state)
        await self.client.execute_workflow(
            RecordWorkflow.run,
            message,
            id=f"{ids.record(self.queue, number)}/again",
            task_queue=self.queue,
        )

    async def _what_stands(self) -> str:
        """For a person who wonders why a test waits."""
        lines = [await self.states()]
        lines += [f"{row.at} {row.subject} {row.kind} {row.detail}" for row in self.happened[-12:]]
        query = f"LastgreenQueue = '{self.queue}' AND ExecutionStatus = 'Running'"
        running = [w.id async for w in self.client.list_workflows(query)]
        for workflow_id in [*running, ids.queue(self.queue)]:
            about = await self.client.get_workflow_handle(workflow_id).describe()
            pending = about.raw_description.pending_activities
            lines.append(
                f"{workflow_id}: "
                + ", ".join(
                    f"{a.activity_type.name} {a.attempt} {a.last_failure.message}" for a in pending
                )
            )
        return "\n".join(lines)

    async def stays(self, states: str, seconds: float = 0.3) -> None:
        """Nothing moves for a while; a thing that must not happen would have by then."""
        limit = time.monotonic() + seconds
        while time.monotonic() < limit:
            assert await self.states() == states
            await asyncio.sleep(0.02)

    async def terminate(self, workflow_id: str) -> None:
        with suppress(RPCError):
            await self.client.get_workflow_handle(workflow_id).terminate("by a test")

    async def end_all(self) -> None:
        query = f"LastgreenQueue = '{self.queue}' AND ExecutionStatus = 'Running'"
        running = {w.id async for w in self.client.list_workflows(query)}
        # Whoever waits for another ends first, so that nobody sees its child end.
        for workflow_id in [ids.queue(self.queue), *sorted(running, key=len)]:
            await self.terminate(workflow_id)

    async def triggered(self, number: int = 1, attempt: int = 1) -> str:
        """The stored build of that attempt, once there is one."""

        async def has_build() -> bool:
            return len(await self.store.builds(self.queue, number)) >= attempt

        await self.until(has_build)
        return (await self.store.builds(self.queue, number))[attempt - 1].id

    async def tells(self, number: int, kind: str) -> None:
        """Waits until the history of the request does."""

        async def told() -> bool:
            return kind in await self.history(number)

        await self.until(told)


def default_settings(queue: str, **settings: Any) -> QueueSettings:
    given: dict[str, Any] = {
        "repository": f"memory:{queue}",
        "ref": "main",
        "runner": "fake",
        "promote": "verified-main",
        "hooks": (Route("fake"),),
        "rewind_confirm": 0.2,
    }
    return QueueSettings(queue, **(given | settings))


async def make_trunk(client: Client, folder: Path, **settings: Any) -> Trunk:
    queue = f"t{next(NUMBERS)}-{time.time_ns()}/main"
    config = FakeConfig(default_settings(queue, **settings))
    source, runner, sink = FakeSourceControl(), FakeBuildRunner(pushes=True), FakeSink()
    folder.mkdir(exist_ok=True, parents=True)
    engine = open_engine(f"sqlite+aiosqlite:///{folder / 'store.db'}")
    await schema.upgrade(engine, int(time.time() * 1000))
    waker = Waker(client, queue)
    store = SqlStore(engine, waker)
    remotes = FakeRemotes({"refs/heads/main": source})
    named: list[str] = []
    projects = FakeProjects()

    def runner_of(name: str) -> FakeBuildRunner:
        named.append(name)
        return runner

    sinks: dict[str, Sink] = {}

    def sink_of(name: str) -> Sink:
        return sinks.get(name, sink)

    extensions = Extensions(
        lambda _: source, lambda _: remotes, runner_of, sink_of, lambda _: projects
    )
    builds = CommandActivities(folder / "builds", config.get)
    task_queues = TaskQueues(queue, f"{queue}-builds")
    parts = Parts(engine, store, config, waker, extensions, builds, task_queues)
    trunk = Trunk(client, parts, await store.fence(), queue, config, source, runner, sink)
    trunk.named, trunk.projects, trunk.sinks = named, projects, sinks
    waker.happened = trunk.happened.append

    async def wake(workflow_id: str) -> None:
        with suppress(RPCError):
            await client.get_workflow_handle(workflow_id).signal("news")

    runner.wake = wake
    return trunk


def trunk_worker(trunk: Trunk) -> Worker:
    return Worker(
        trunk.client,
        task_queue=trunk.queue,
        workflows=WORKFLOWS,
        workflow_runner=SANDBOX,
        activities=trunk.parts.activities(),
        interceptors=[Failures()],
        graceful_shutdown_timeout=timedelta(0),
    )


@asynccontextmanager
async def running_trunk(client: Client, folder: Path, **settings: Any) -> AsyncIterator[Trunk]:
    """Its own store, task queue and worker; the server is shared."""
    trunk = await make_trunk(client, folder, **settings)
    try:
        async with trunk_worker(trunk):
            try:
                yield trunk
            finally:
                await trunk.end_all()
    finally:
        await trunk.parts.engine.dispose()


__all__ = ["Seen", "Trunk", "WorkflowExecutionStatus", "make_trunk", "running_trunk"]
