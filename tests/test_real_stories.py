"""Worked examples on real git, the command runner and a real server."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import pytest_asyncio
from temporalio.client import Client

import worker
from domain.request import State, Strategy
from domain.settings import QueueSettings
from extensions.queueconfig.fake import FakeConfig
from stores import schema
from stores.engine import open_engine
from stores.rows import Request
from tests.stores.conftest import milliseconds
from wiring.parts import Parts, TaskQueues, make_parts
from workflows import ids

QUEUE = "real/trunk"
IDENTITY = {
    f"GIT_{who}_{what}": value
    for who in ("AUTHOR", "COMMITTER")
    for what, value in (("NAME", "Ada"), ("EMAIL", "ada@example.com"))
}


@dataclass
class Real:
    folder: Path
    parts: Parts
    client: Client

    def git(self, *arguments: str, check: bool = True) -> str:
        environment = {"PATH": os.environ["PATH"], "HOME": str(self.folder), **IDENTITY}
        done = subprocess.run(
            ["git", "-C", str(self.folder / "trunk"), *arguments],
            env=environment,
            check=check,
            capture_output=True,
            text=True,
        )
        return done.stdout.strip()

    def commit(self, name: str, **files: str) -> str:
        for path, text in {name: name, **files}.items():
            (self.folder / "trunk" / path).write_text(text)
        self.git("add", "-A")
        self.git("commit", "-qm", name)
        return self.git("rev-parse", "HEAD")

    async def poke(self) -> None:
        await self.parts.waker.head_moved(await self.parts.store.fence(), QUEUE)

    async def until(
        self, uri: str, *, state: State | None = None, recorded: bool = False
    ) -> Request:
        for _ in range(600):
            attempts = await self.parts.store.attempts(QUEUE, uri)
            in_state = attempts and (state is None or attempts[0].state is state)
            if in_state and (attempts[0].recorded_at or not recorded):
                return attempts[0]
            await asyncio.sleep(0.05)
        raise AssertionError(await self.parts.store.requests(QUEUE))

    def let_builds_end(self) -> None:
        (self.folder / "gate").touch()

    def hold_builds(self) -> None:
        (self.folder / "gate").unlink(missing_ok=True)


@pytest_asyncio.fixture
async def real(client: Client, tmp_path: Path) -> AsyncIterator[Real]:
    (tmp_path / "trunk").mkdir()
    gate = tmp_path / "gate"
    command = f"while [ ! -e {gate} ]; do sleep 0.05; done; test ! -e red"
    settings = QueueSettings(
        QUEUE,
        str(tmp_path / "trunk"),
        "main",
        command=(command,),
        shell=True,
        promote="verified-main",
        rewind_confirm=0.5,
    )
    data = tmp_path / "data"
    data.mkdir()
    parts = make_parts(
        client,
        FakeConfig(settings),
        data,
        open_engine(f"sqlite:///{data / 'store.db'}"),
        TaskQueues(QUEUE, f"{QUEUE}-builds"),
    )
    real = Real(tmp_path, parts, client)
    real.git("init", "-q", "-b", "main")
    await schema.upgrade(parts.engine, milliseconds())
    async with worker.main_worker(client, parts), worker.builds_worker(client, parts, 2):
        yield real
        await client.get_workflow_handle(ids.queue(QUEUE)).terminate("the story is told")
    await parts.engine.dispose()


@pytest.mark.spec("V352", "V278")
async def test_a_rewrite_during_a_build(real: Real) -> None:
    a = real.commit("A")
    real.let_builds_end()
    await real.poke()
    await real.until(a, recorded=True)
    assert real.git("rev-parse", "verified-main") == a

    real.hold_builds()
    b = real.commit("B")
    await real.poke()
    await real.until(b, state=State.PROCESSING)
    real.git("reset", "-q", "--hard", a)
    x = real.commit("X")
    await real.poke()
    await real.until(x, state=State.ACCEPTED)
    assert (await real.until(b)).state is State.PROCESSING

    real.let_builds_end()
    await real.until(b, state=State.SUCCEEDED, recorded=True)
    history = await real.parts.store.history(QUEUE, 2)
    (left,) = [row for row in history if row.kind == "promotion_left_out"]
    assert left.detail.startswith("not_on_ref")

    done = await real.until(x, state=State.SUCCEEDED, recorded=True)
    assert (done.strategy, done.base_uri) == (Strategy.FULL, None)
    queue = await real.parts.store.queue(QUEUE)
    assert queue.last_green and queue.last_green.uri == x
    assert queue.holder and queue.holder.uri == x
    assert real.git("rev-parse", "verified-main") == x


@pytest.mark.spec("V353")
async def test_a_rewind_and_the_return(real: Real) -> None:
    real.let_builds_end()
    a = real.commit("A")
    await real.poke()
    await real.until(a, recorded=True)
    b = real.commit("B")
    await real.poke()
    await real.until(b, recorded=True)
    for number, uri in ((3, a), (4, b)):
        real.git("reset", "-q", "--hard", uri)
        await real.poke()
        for _ in range(200):
            again = await real.until(uri, recorded=True)
            if again.number == number:
                break
            await asyncio.sleep(0.05)
        queue = await real.parts.store.queue(QUEUE)
        assert queue.last_green and (queue.last_green.number, queue.last_green.uri) == (number, uri)
        assert queue.holder and queue.holder.number == number
        assert real.git("rev-parse", "verified-main") == uri
    for number in (3, 4):
        assert await real.parts.store.builds(QUEUE, number) == []
        kinds = [row.kind for row in await real.parts.store.history(QUEUE, number)]
        assert "recorded" in kinds
        assert "admitted" not in kinds
