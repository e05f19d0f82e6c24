"""What the worker leans on goes away in the middle of a build, and comes back: nothing fails."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from asyncio.subprocess import DEVNULL, Process
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from temporalio.client import Client
from temporalio.contrib.pydantic import pydantic_data_converter

from tests.cli.command import Up, answer, free_ports, lastgreen
from tests.conftest import TEMPORAL
from tests.databases import server
from tests.extensions.remote import GREEN, Remote
from wiring.temporal import check_search_attributes

QUEUE: Final = "shop/main"
OUT: Final = 30.0 if os.environ.get("CHAOS") == "whole" else 4.0
"""Seconds."""
PATIENCE: Final = 90.0


class Temporal:
    """A server with a file of its own: it may be killed, and started again on it."""

    def __init__(self, folder: Path, port: int) -> None:
        self.address = f"127.0.0.1:{port}"
        self._command = [
            *(TEMPORAL, "server", "start-dev", "--headless", "--log-level", "never"),
            *("--port", str(port), "--db-filename", str(folder / "temporal.db")),
        ]
        self._process: Process | None = None

    async def start(self) -> None:
        self._process = await asyncio.create_subprocess_exec(*self._command, stdout=DEVNULL)
        async with asyncio.timeout(PATIENCE):
            await check_search_attributes(await self._client())

    async def _client(self) -> Client:
        while True:
            try:
                return await Client.connect(self.address, data_converter=pydantic_data_converter)
            except RuntimeError:
                await asyncio.sleep(0.05)

    async def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            await self._process.wait()
            self._process = None


class GitServer:
    def __init__(self, folder: Path, port: int) -> None:
        where = subprocess.run(["git", "--exec-path"], capture_output=True, text=True, check=True)
        self.address = f"git://127.0.0.1:{port}"
        self._port = port
        self._command = [
            *(f"{where.stdout.strip()}/git-daemon", "--export-all", "--enable=receive-pack"),
            *("--reuseaddr", "--listen=127.0.0.1", f"--port={port}", f"--base-path={folder}"),
        ]
        self._process: Process | None = None

    async def start(self) -> None:
        self._process = await asyncio.create_subprocess_exec(*self._command, stderr=DEVNULL)
        async with asyncio.timeout(PATIENCE):
            while not await self._listens():  # noqa: ASYNC110 - another process
                await asyncio.sleep(0.05)

    async def _listens(self) -> bool:
        with suppress(OSError):
            _, writer = await asyncio.open_connection("127.0.0.1", self._port)
            writer.close()
            return True
        return False

    def pause(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGSTOP)

    async def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            await self._process.wait()
            self._process = None


@dataclass
class Site:
    folder: Path
    remote: Remote
    temporal: Temporal
    git: GitServer
    environment: dict[str, str] = field(default_factory=dict[str, str])

    @property
    def hold(self) -> Path:
        """While it is there, no build ends."""
        return self.folder / "hold"

    async def ask(self, *arguments: str) -> Any:
        return await asyncio.to_thread(answer, self.folder, *arguments, **self.environment)

    async def states(self) -> list[str]:
        """Oldest first."""
        told = await self.ask("requests", QUEUE)
        return ["recorded" if r["recorded_at"] else r["state"] for r in told[::-1]]

    async def are(self, *states: str) -> None:
        async with asyncio.timeout(PATIENCE):
            while await self.states() != [*states]:  # noqa: ASYNC110 - another process
                await asyncio.sleep(0.1)


@asynccontextmanager
async def without_temporal(site: Site) -> AsyncIterator[None]:
    await site.temporal.kill()
    yield
    await site.temporal.start()


@asynccontextmanager
async def without_git(site: Site) -> AsyncIterator[None]:
    """It takes every connection and says nothing, then it dies."""
    site.git.pause()
    yield
    await site.git.kill()
    await site.git.start()


Outage = Callable[[Site], AbstractAsyncContextManager[None]]


@asynccontextmanager
async def a_site(folder: Path, **environment: str) -> AsyncIterator[Site]:
    for_temporal, for_git = free_ports()
    temporal, git = Temporal(folder, for_temporal), GitServer(folder, for_git)
    site = Site(folder, Remote(folder / "shop.git"), temporal, git)
    site.environment = {"TEMPORAL_ADDRESS": temporal.address, **environment}
    (folder / "lastgreen.toml").write_text(
        f'version = 1\n[[queue]]\nname = "{QUEUE}"\nref = "main"\npromote = "green"\n'
        f'repository = "{git.address}/shop.git"\nwatch_interval = 1\n'
        f'command = ["sh", "-c", "while [ -e {site.hold} ]; do sleep 0.1; done"]\n'
    )
    await temporal.start()
    await git.start()
    try:
        upgraded = await asyncio.to_thread(lastgreen, folder, "db", "upgrade", **site.environment)
        assert upgraded.returncode == 0, upgraded.stderr
        yield site
    finally:
        await git.kill()
        await temporal.kill()


async def must_only_delay(site: Site, out: Outage) -> None:
    """A is green, B builds; in the outage B's build ends and C lands."""
    site.remote.land("A")
    with Up(site.folder, verb="worker", **site.environment).running():
        await site.are("recorded")
        site.hold.touch()
        site.remote.land("B")
        await site.are("recorded", "processing")
        async with out(site):
            site.hold.unlink()
            (c,) = site.remote.land("C")
            await asyncio.sleep(OUT)
        await site.are("recorded", "recorded", "recorded")
        assert site.remote.at(GREEN) == c
        assert await site.ask("dead-letters", "list", QUEUE) == []
        for number in (1, 2, 3):
            told = await site.ask("show", f"request/{QUEUE}/{number}")
            kinds = [row["kind"] for row in told["history"]]
            once = ("build_succeeded", "fact_recorded", "promoted", "recorded")
            assert [kinds.count(kind) for kind in once] == [1, 1, 1, 1]
            assert len(told["builds"]) == 1


async def test_nothing_fails_while_temporal_is_away(tmp_path: Path) -> None:
    async with a_site(tmp_path) as site:
        await must_only_delay(site, without_temporal)


async def test_nothing_fails_while_source_control_is_away(tmp_path: Path) -> None:
    async with a_site(tmp_path) as site:
        await must_only_delay(site, without_git)


async def test_nothing_fails_while_postgresql_is_stopped(tmp_path: Path) -> None:
    async with server() as own, own.database("template0") as url:

        @asynccontextmanager
        async def without_postgresql(_: Site) -> AsyncIterator[None]:
            await own.stop(signal.SIGQUIT)
            yield
            await own.start()

        async with a_site(tmp_path, LASTGREEN_DATABASE_URL=url) as site:
            await must_only_delay(site, without_postgresql)
