"""A worker in a process of its own: the product's own parts, between a gate and a small world."""

from __future__ import annotations

import asyncio
import os
import pickle
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, Final

import sqlalchemy as sa
from temporalio.client import Client
from temporalio.common import RetryPolicy
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.worker import Worker

import domain.gate
import stores.epoch
import stores.write
import wiring.recover
import worker
from domain.act import Act
from domain.errors import StoreOut
from domain.settings import QueueSettings
from extensions.buildrunner.command.run import CommandActivities
from extensions.buildrunner.contract import Order
from extensions.projects.none import NoProjects
from extensions.queueconfig.fake import FakeConfig
from stores.contract import Reader, Writer
from stores.engine import open_engine
from stores.rows import Answer, Failure
from stores.write import SqlStore
from tests.chaos.gate import Gate, Gated, Plan
from wiring.parts import Extensions, Parts, TaskQueues
from wiring.recover import recover, start_queues
from wiring.wake import Waker
from workflows import policies

WRITES: Final = [name for name in vars(Writer) if not name.startswith("_")]
READS: Final = [name for name in vars(Reader) if not name.startswith("_")]
STICKY: Final = timedelta(seconds=0.2)
OUT: Final = "store-is-out"
UP: Final = "is-up"
"""While a file of that name is in the folder, the store cannot be reached."""


@dataclass(frozen=True)
class Job:
    address: str
    settings: QueueSettings
    url: str
    folder: Path
    plan: Plan | None = None
    by: Act | None = None
    """Started by ``recover`` or ``restore``, whoever asks for it."""
    again_ms: int = 600_000

    @property
    def queue(self) -> str:
        return self.settings.name


@dataclass
class Commit:
    """A transaction under way: told to the gate before it commits, and after."""

    gate: Gate
    name: str
    nth: int = 0

    def begins(self) -> None:
        self.nth = self.nth or self.gate.before(self.name)

    def is_done(self) -> None:
        if self.nth:
            self.gate.after(self.name, self.nth)


UNDER_WAY: Final = ContextVar[Commit | None]("UNDER_WAY", default=None)


def _about(arguments: tuple[Any, ...]) -> str:
    """What tells two transactions of one kind apart."""
    match arguments[1:2]:
        case (Answer(said=said),):
            return f" {said}"
        case (Failure(cause=cause),):
            return f" {cause}"
        case (Act(verb=verb),):
            return f" {verb}"
        case _:
            return ""


async def gated(
    gate: Gate, name: str, write: Callable[..., Awaitable[Any]], *arguments: Any, **named: Any
) -> Any:
    commit = Commit(gate, f"store.{name}{_about(arguments)}")
    token = UNDER_WAY.set(commit)
    try:
        answer = await write(*arguments, **named)
    finally:
        UNDER_WAY.reset(token)
    commit.is_done()
    return answer


async def reached(
    gate: Gate, folder: Path, call: Callable[..., Awaitable[Any]], *arguments: Any, **named: Any
) -> Any:
    """The store, while it can be."""
    if time.monotonic() < gate.store_out_until or (folder / OUT).exists():
        raise StoreOut("chaos: the store cannot be reached")
    return await call(*arguments, **named)


def gated_store(store: SqlStore, gate: Gate, folder: Path) -> SqlStore:
    for name in WRITES:
        write = partial(gated, gate, name, getattr(store, name))
        setattr(store, name, partial(reached, gate, folder, write))
    for name in READS:
        setattr(store, name, partial(reached, gate, folder, getattr(store, name)))

    def commits(connection: sa.Connection) -> None:
        commit = UNDER_WAY.get()
        if commit and not connection.get_execution_options().get("reads", False):
            commit.begins()

    sa.event.listen(store._engine.sync_engine, "commit", commits)
    return store


class Far:
    """A part of the outside, which outlives this process: each call is one effect."""

    def __init__(self, gate: Gate, folder: Path, part: str, **told: bool) -> None:
        self._gate = gate
        self._folder = folder
        self._part = part
        self.__dict__.update(told)

    def __getattr__(self, method: str) -> Callable[..., Awaitable[Any]]:
        return partial(self._call, method)

    async def _call(self, method: str, *arguments: Any, **named: Any) -> Any:
        about = "".join(f" {a.attempt}" for a in arguments if isinstance(a, Order))
        with self._gate.effect(f"{self._part}.{method}{about}"):
            return await ask(self._folder / "world", self._part, method, *arguments, **named)


async def ask(socket: Path, part: str, method: str, *arguments: Any, **named: Any) -> Any:
    reader, writer = await asyncio.open_unix_connection(socket)
    try:
        writer.write(pickle.dumps((part, method, arguments, named)))
        writer.write_eof()
        is_good, answer = pickle.loads(await reader.read())  # noqa: S301  # of our own test
    finally:
        writer.close()
    if not is_good:
        raise answer
    return answer


def make_parts(client: Client, job: Job, gate: Gate) -> Parts:
    engine = open_engine(job.url)
    waker = Waker(client, job.queue)
    waker.happened = lambda _: None
    store = gated_store(SqlStore(engine, waker), gate, job.folder)
    config = FakeConfig(job.settings)
    far: Callable[..., Any] = partial(Far, gate, job.folder)
    source, remotes, sink = far("source"), far("remotes"), far("sink")
    runner = far("runner", has_own_key=True, pushes=True)
    none = NoProjects()
    extensions = Extensions(
        lambda _: source, lambda _: remotes, lambda _: runner, lambda _: sink, lambda _: none
    )
    builds = CommandActivities(job.folder / "builds", config.get)
    return Parts(engine, store, config, waker, extensions, builds, TaskQueues(job.queue))


def hurry(queue: str, again_ms: int) -> None:
    """Waits that matter only to people: none of them shapes a history."""
    often = RetryPolicy(
        initial_interval=timedelta(seconds=0.2), maximum_interval=timedelta(seconds=1)
    )
    quick = {"start_to_close_timeout": timedelta(seconds=2), "retry_policy": often}
    for policy in (policies.FOR_EVER, policies.POLL, policies.POLL_PUSHED, policies.SINK):
        policy.update(quick)
    policies.ONCE["start_to_close_timeout"] = timedelta(seconds=2)
    beats = {"heartbeat_timeout": timedelta(seconds=1), "retry_policy": often}
    for policy in (policies.RUNNER, policies.SOURCE_CONTROL, policies.ANCESTRY, policies.WATCH):
        policy.update(beats)
    policies.WATCH["task_queue"] = f"{queue}-watch"
    for module, name, value in (
        (policies, "WATCH_QUEUE", f"{queue}-watch"),
        (policies, "DRIVE_AGAIN_MS", 1_000),
        (policies, "CHILD_AGAIN", timedelta(seconds=0.2)),
        (policies, "WATCH_AGAIN", timedelta(seconds=1)),
        (stores.write, "OWED_WAKE_MS", 1_000),
        (domain.gate, "AGAIN_FIRST_MS", again_ms),
        (worker, "GRACE", timedelta(0)),
        (worker, "Worker", partial(Worker, sticky_queue_schedule_to_start_timeout=STICKY)),
    ):
        setattr(module, name, value)


async def work(job: Job) -> None:
    """As ``lastgreen up`` does, until it is killed."""
    gate = Gate(job.folder / "effects", job.plan)
    client = await Client.connect(
        job.address, data_converter=pydantic_data_converter, interceptors=[Gated(gate)]
    )
    parts = make_parts(client, job, gate)
    raise_it = partial(gated, gate, "recover", stores.epoch.raise_epoch)
    setattr(wiring.recover, "raise_epoch", raise_it)  # noqa: B010 - imported there by name
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(worker.main_worker(client, parts))
        await stack.enter_async_context(worker.watch_worker(client, parts))
        if job.by is not None:
            await recover(client, parts, job.by, int(time.time() * 1000))
        else:
            await start_queues(client, parts, await parts.store.fence(), alone=True)
        (job.folder / UP).touch()
        await asyncio.Event().wait()


def main(job: Job) -> None:
    os.chdir(job.folder)
    hurry(job.queue, job.again_ms)
    asyncio.run(work(job))
