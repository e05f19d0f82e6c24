"""What outlives a worker: source control, runner and sink, behind a socket; and who watches."""

from __future__ import annotations

import asyncio
import itertools
import multiprocessing
import pickle
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

from sqlalchemy.ext.asyncio import AsyncEngine
from temporalio.client import Client
from temporalio.service import RPCError

from domain.act import Act, Verb
from domain.errors import Refused
from domain.request import VERDICTS, State
from domain.settings import QueueSettings, Route, remote_id
from extensions.buildrunner.contract import Order, Triggered
from extensions.buildrunner.fake import FakeBuildRunner
from extensions.hooks.fake import FakeSink
from extensions.sourcecontrol.fake import FakeRemotes, FakeSourceControl
from stores import schema
from stores.engine import open_engine
from stores.ranges import Searching
from stores.reader import SqlReader
from stores.rows import Happening
from tests.chaos.evidence import Evidence, Ran, Row, answers_of, newest, rows_of
from tests.chaos.gate import Plan, Point, passed
from tests.chaos.worker_process import UP, Job, main
from wiring.asking import Asking
from wiring.wake import Waker
from workflows import ids

NUMBERS: Final = itertools.count(1)
PATIENCE: Final = 60.0
SINK: Final = "fake"
LOOK: Final = 0.03
MIGRATION: Final = asyncio.Lock()
"""What Alembic migrates stands in a global of its own: one store at a time."""
FORKS: Final = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["tests.chaos.worker_process"])


class Builds(FakeBuildRunner):
    """With a key of its own; knows how many ran at one time, and refuses some for good."""

    most_open = 0
    refused: frozenset[int] = frozenset()

    async def trigger(self, order: Order) -> Triggered:
        if order.request in self.refused:
            raise Refused("chaos: no such job")
        answer = await super().trigger(order)
        running = [build for build in self.builds.values() if build.status in OPEN]
        self.most_open = max(self.most_open, len(running))
        return answer


OPEN: Final = frozenset({"accepted", "running"})


@dataclass
class World:
    client: Client
    settings: QueueSettings
    url: str
    folder: Path
    engine: AsyncEngine
    source: FakeSourceControl = field(default_factory=FakeSourceControl)
    runner: Builds = field(default_factory=lambda: Builds(pushes=True))
    sink: FakeSink = field(default_factory=FakeSink)
    again_ms: int = 600_000
    """After what the queue tries again by itself."""
    process: ForkServerProcess | None = None
    deaths: int = 0
    starts: int = 0
    at_death: list[Mapping[str, Sequence[Row]]] = field(default_factory=list)
    """What the store held whenever a worker had died."""
    patience: float = PATIENCE
    on_death: Callable[[World], Awaitable[Act | None]] | None = None
    """What else is lost with a worker; who asks for a recover, where it must be one."""

    @property
    def queue(self) -> str:
        return self.settings.name

    @property
    def store(self) -> SqlReader:
        return SqlReader(self.engine)

    # The process

    def start(self, plan: Plan | None = None, by: Act | None = None) -> None:
        address = self.client.service_client.config.target_host
        (self.folder / UP).unlink(missing_ok=True)
        job = Job(address, self.settings, self.url, self.folder, plan, by, self.again_ms)
        self.process = FORKS.Process(target=main, args=(job,), daemon=True)
        self.process.start()
        self.starts += 1

    async def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            while self.process.is_alive():  # noqa: ASYNC110 - a process sets no event
                await asyncio.sleep(0.01)  # never in a thread: starting others polls it too
            self.process.close()
            self.process = None

    async def look_after(self) -> None:
        """Start the worker anew if it has died."""
        if self.process is not None and not self.process.is_alive():
            assert self.process.exitcode == -9, f"the worker ended: {self.process.exitcode}"
            self.process.close()
            self.process = None
            self.deaths += 1
            self.at_death.append(await rows_of(self.engine, self.queue))
            by = await self.on_death(self) if self.on_death else None
            self.start(by=by)

    async def until(self, reached: Callable[[], Awaitable[bool]], what: str = "") -> None:
        limit = time.monotonic() + self.patience
        while not await reached():
            await self.look_after()
            assert time.monotonic() < limit, await self.what_stands(what)
            await asyncio.sleep(LOOK)

    # Those who ask it

    async def poke(self) -> None:
        """An incoming webhook, say."""
        await Waker(self.client, self.queue).head_moved(await self.store.fence(), self.queue)

    async def ask(self, verb: Verb, target: int | str = "", *, once: str = "") -> Happening:
        act = Act(once or uuid4().hex, verb, "ada", "because", str(target))
        asking = Asking(self.client, await self.store.fence(), self.queue)
        answer = asyncio.create_task(asking.act(self.queue, act))

        async def answered() -> bool:
            return answer.done()

        await self.until(answered, f"an answer to {verb}")
        return await answer

    # What it waits for

    async def has(self, uri: str, *states: State) -> bool:
        attempts = await self.store.attempts(self.queue, uri)
        return bool(attempts) and attempts[0].state in states

    async def runs(self, uri: str) -> bool:
        """A build of it is stored as running."""
        for request in await self.store.attempts(self.queue, uri):
            builds = await self.store.builds(self.queue, request.number)
            if builds and builds[-1].status == "running":
                return True
        return False

    async def is_quiet(self) -> bool:
        """Nothing waits that could go on, nothing is owed, nothing is to be delivered."""
        rows = await rows_of(self.engine, self.queue)  # all of one moment
        requests, queues = rows["requests"], rows["queues"]
        idle = {State.ACCEPTED, State.PROCESSING}
        if queues and queues[0]["paused_reason"]:
            idle = {State.PROCESSING}
        moving = any(r["state"] in idle for r in requests)
        owes = any(r["cause"] in VERDICTS and r["recorded_at"] is None for r in requests)
        pending = any(d["state"] == "pending" for d in rows["hook_deliveries"])
        moving |= any(b["state"] == Searching.RUNNING for b in rows["bisections"])
        top = newest(requests)
        is_seen = top is not None and top["uri"] == self.source.tip
        return is_seen and not (moving or owes or pending)

    async def evidence(self) -> Evidence:
        builds = self.runner.builds.values()
        return Evidence(
            self.queue,
            await rows_of(self.engine, self.queue),
            list(self.source.pushes),
            self.source.promotion,
            {SINK: list(self.sink.heard)},
            [Ran(b.id, b.order.key, b.order.head_uri, b.status) for b in builds],
            self.source.tip,
            self.settings.max_concurrent,
            self.runner.most_open,
            self.at_death,
            parents=dict(self.source.parents),
            answers=await answers_of(self.store, self.queue, self.source.parents),
        )

    def passed(self) -> list[Point]:
        return passed(self.folder / "effects")

    async def what_stands(self, what: str) -> str:
        """For a person who wonders why a test waits."""
        rows = await rows_of(self.engine, self.queue)
        lines = [f"{self.queue} waits for {what}; {self.starts} starts, {self.deaths} deaths"]
        lines += [
            f"{r['number']} {r['uri']} {r['state']} {r['cause']} recorded {r['recorded_at']}"
            for r in rows["requests"]
        ]
        told = sorted(rows["history"], key=lambda h: h["seq"])[-15:]
        lines += [f"{h['at']} {h['subject']} {h['kind']} {h['detail']}" for h in told]
        lines += [f"{b.id} {b.order.head_uri} {b.status}" for b in self.runner.builds.values()]
        lines += [str(point) for point in self.passed()[-8:]]
        for workflow in await self.workflows():
            lines.append(await self._pending(workflow))
        return "\n".join(lines)

    async def _pending(self, workflow: str) -> str:
        with suppress(RPCError):
            about = await self.client.get_workflow_handle(workflow).describe()
            pending = about.raw_description.pending_activities
            asked = [
                f"{a.activity_type.name} {a.attempt} {a.last_failure.message}" for a in pending
            ]
            return f"{workflow}: {about.status and about.status.name} {asked}"
        return f"{workflow}: gone"

    # Temporal

    async def workflows(self) -> Sequence[str]:
        """All that may run for the queue, by their names: visibility lags."""
        names = [ids.queue(self.queue), ids.watch(remote_id(self.settings.repository))]
        for request in await self.store.requests(self.queue, limit=10_000):
            number = request.number
            names += [ids.build(self.queue, number), ids.record(self.queue, number)]
            names += [ids.hooks(self.queue, number), ids.bisect(self.queue, number)]
            names += [ids.buildsignal(self.queue, number, attempt) for attempt in (1, 2, 3)]
        return names

    async def lose_namespace(self) -> None:
        """Every workflow is gone; what the store and the outside hold stays."""
        for _ in range(2):  # a parent may have started a child meanwhile
            for workflow in await self.workflows():
                with suppress(RPCError):
                    await self.client.get_workflow_handle(workflow).terminate("by chaos")


async def _serve(
    parts: dict[str, Any], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    part, method, given, named = pickle.loads(await reader.read())  # noqa: S301  # our worker's
    try:
        answer = True, await getattr(parts[part], method)(*given, **named)
    except Exception as error:  # noqa: BLE001  # an answer as any
        answer = False, error
    with suppress(ConnectionError):  # who asked may be dead
        writer.write(pickle.dumps(answer))
        await writer.drain()
    writer.close()


@asynccontextmanager
async def a_world(client: Client, url: str, **settings: Any) -> AsyncIterator[World]:
    """One queue in a store of its own, and no worker yet."""
    queue = f"c{next(NUMBERS)}-{time.time_ns()}/main"
    given: dict[str, Any] = {
        "repository": f"memory:{queue}",
        "ref": "main",
        "runner": "fake",
        "promote": "verified-main",
        "hooks": (Route(SINK),),
        "rewind_confirm": 0.05,
        "gate_wait": 1,
        "watch_interval": 1,
    }
    with tempfile.TemporaryDirectory(prefix="chaos") as folder:
        engine = open_engine(url or f"sqlite+aiosqlite:///{folder}/store.db")
        async with MIGRATION:
            await schema.upgrade(engine, int(time.time() * 1000))
        world = World(
            client,
            QueueSettings(queue, **(given | settings)),
            url or f"sqlite+aiosqlite:///{folder}/store.db",
            Path(folder),
            engine,
        )
        parts = {
            "source": world.source,
            "remotes": FakeRemotes({"refs/heads/main": world.source}),
            "runner": world.runner,
            "sink": world.sink,
        }

        async def wake(workflow_id: str) -> None:
            with suppress(RPCError):
                await client.get_workflow_handle(workflow_id).signal("news")

        world.runner.wake = wake
        server = await asyncio.start_unix_server(
            lambda reader, writer: _serve(parts, reader, writer), Path(folder) / "world"
        )
        try:
            yield world
        finally:
            await world.kill()
            await world.lose_namespace()
            server.close()
            await server.wait_closed()
            await engine.dispose()
