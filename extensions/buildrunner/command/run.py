"""The activity behind a build: the command in a worktree, under a leash."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from errno import EACCES, ENOENT, ENOEXEC, ENOTDIR
from pathlib import Path
from typing import Final

from temporalio import activity
from temporalio.exceptions import ApplicationError

from domain.errors import Misconfigured, Permanent
from domain.identity import RequestId
from domain.settings import QueueSettings
from extensions.buildrunner.command.log import CAP, CappedLog, log_path
from extensions.buildrunner.command.worktree import Wanted, checked_out
from extensions.buildrunner.contract import Order
from extensions.gitcommand import COMMIT, GitFailed
from extensions.kept import keep_report, report_path
from extensions.leash import Leash, handed_on
from extensions.text import clean

BEAT: Final = 2.0
_LONGEST_BACK_OFF: Final = 30
_LAST_WORDS: Final = 1.0
_NEVER: Final = (ENOENT, ENOTDIR, EACCES, ENOEXEC)


@dataclass(frozen=True)
class CommandActivities:
    builds_directory: Path
    settings_of: Callable[[str], QueueSettings]
    log_cap: int = CAP

    @activity.defn
    async def run_command(self, order: Order) -> str:
        """``succeeded``, ``failed`` or ``cancelled``; whatever else ends it, it is run again."""
        return await _until_told(self._build(order))

    async def _build(self, order: Order) -> str:
        info = activity.info()
        build = info.workflow_id or ""
        log = CappedLog(log_path(self.builds_directory, build), self.log_cap)
        log.say(f"attempt {info.attempt}, {datetime.now(UTC):%F %T} UTC")
        try:
            return await self._attempt(order, build, log)
        except GitFailed as failed:
            log.say(text := f"no worktree: {failed}")
            raise _again(text, "NoWorktree") from failed
        except Permanent as wrong:
            log.say(str(wrong))
            raise ApplicationError(
                clean(str(wrong)), type="Misconfigured", non_retryable=True
            ) from wrong
        finally:
            log.close()

    async def _attempt(self, order: Order, build: str, log: CappedLog) -> str:
        settings = self.settings_of(order.queue)
        argv = argv_of(settings)
        wanted = Wanted(
            build=build.rpartition("/")[2],
            about=f"{build} of {order.queue} at {order.head_uri}: {argv}",
            url=settings.repository,
            head=commit_of(order.head_uri),
            base=order.base_uri and commit_of(order.base_uri),
        )
        environment = environment_of(order, wanted, settings.environment)
        async with checked_out(self.builds_directory, wanted) as tree, _collected(log) as output:
            log.say(f"{argv}")
            code = await _run(argv, tree, environment, output)
            if settings.report is not None:
                kept = report_path(self.builds_directory, build)
                await asyncio.to_thread(keep_report, tree, settings.report, kept)
        log.say(f"ended with {code}")
        if code in settings.infrastructure_codes:
            raise _again(f"ended with {code}, which is no verdict", "Infrastructure")
        return "failed" if code else "succeeded"


def argv_of(settings: QueueSettings) -> list[str]:
    if not settings.command:
        raise Misconfigured(f"queue {settings.name} has no command")
    return ["/bin/sh", "-c", " ".join(settings.command)] if settings.shell else [*settings.command]


def commit_of(uri: str) -> str:
    if not COMMIT.fullmatch(uri):
        raise Misconfigured(f"{uri!r} is not a commit of git, which the command runner needs")
    return uri


def environment_of(order: Order, wanted: Wanted, named: tuple[str, ...]) -> dict[str, str]:
    return handed_on(named) | {
        "LASTGREEN_QUEUE": order.queue,
        "LASTGREEN_REQUEST": str(RequestId(order.queue, order.request)),
        "LASTGREEN_URI": order.head_uri,
        "LASTGREEN_COMMIT": wanted.head,
        "LASTGREEN_BASE_COMMIT": wanted.base or "",
        "LASTGREEN_STRATEGY": order.strategy,
        "LASTGREEN_ATTEMPT": str(order.attempt),
    }


async def _run(argv: list[str], tree: Path, environment: Mapping[str, str], output: int) -> int:
    try:
        leash = await Leash.start(argv, tree, environment, output)
    except OSError as error:
        if error.errno not in _NEVER:
            raise
        raise Misconfigured(f"{argv} cannot be started: {error.strerror}") from error
    try:
        return await leash.wait()
    finally:
        leash.close()
        await leash.wait()


@asynccontextmanager
async def _collected(log: CappedLog) -> AsyncIterator[int]:
    """A pipe whose other end is read into the log, however much comes."""
    reader, writer = os.pipe()
    pump = asyncio.ensure_future(_pump(reader, log))
    try:
        yield writer
    finally:
        os.close(writer)
        # Whoever left the group may hold the pipe for ever.
        await asyncio.wait({pump}, timeout=_LAST_WORDS)
        pump.cancel()


async def _pump(pipe: int, log: CappedLog) -> None:
    stream = asyncio.StreamReader()
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(stream), os.fdopen(pipe, "rb", buffering=0)
    )
    try:
        while output := await stream.read(1 << 16):
            log.write(output)
    finally:
        transport.close()


async def _until_told(build: Coroutine[None, None, str]) -> str:
    """A cancel is a verdict. A shutdown, or a server that gave us up, is none."""
    beat = asyncio.ensure_future(_beat())
    work = asyncio.ensure_future(build)
    shutdown = asyncio.ensure_future(activity.wait_for_worker_shutdown())
    try:
        await asyncio.wait({work, shutdown}, return_when=asyncio.FIRST_COMPLETED)
        if work.done():
            return work.result()
        raise _again("the worker is shut down", "WorkerShutdown")
    except asyncio.CancelledError:
        details = activity.cancellation_details()
        if details is None or not details.cancel_requested:
            raise _again("this attempt was given up", "GivenUp") from None
        return "cancelled"
    finally:
        for task in (work, shutdown):
            task.cancel()
        await asyncio.gather(work, shutdown, return_exceptions=True)
        beat.cancel()


async def _beat() -> None:
    while True:
        activity.heartbeat()
        await asyncio.sleep(BEAT)


def _again(text: str, kind: str) -> ApplicationError:
    wait = timedelta(seconds=min(2 ** min(activity.info().attempt - 1, 5), _LONGEST_BACK_OFF))
    return ApplicationError(clean(text), type=kind, next_retry_delay=wait)
