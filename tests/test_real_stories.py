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
import sqlalchemy as sa
from temporalio.client import Client

import worker
from domain.request import State, Strategy
from domain.settings import QueueSettings
from extensions.queueconfig.fake import FakeConfig
from stores import schema
from stores import tables as t
from stores.engine import begin, open_engine
from stores.ranges import Bisection, Searching
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

    def merge(self, base: str, *names: str) -> tuple[list[str], str]:
        """The commits of a side branch from ``base``, and their merge into main."""
        self.git("checkout", "-q", "-b", f"side-{names[0]}", base)
        side = [self.commit(name) for name in names]
        self.git("checkout", "-q", "main")
        self.git("merge", "-q", "--no-ff", "-m", f"Merge {names[0]}", f"side-{names[0]}")
        return side, self.git("rev-parse", "HEAD")

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

    async def covered(self, number: int) -> list[tuple[str, int]]:
        """Commits that this request's verdict covers, and their places."""
        c = t.coverage.c
        query = sa.select(c.uri, c.offset).where(c.queue == QUEUE, c.request == number)
        async with begin(self.parts.engine, reads=True) as connection:
            return [(uri, offset) for uri, offset in await connection.execute(query)]

    async def searched(self, number: int) -> Bisection:
        for _ in range(600):
            found = await self.parts.store.bisection(QUEUE, number)
            if found is not None and found.state is not Searching.RUNNING:
                return found
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
        bisect="auto",
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


@pytest.mark.spec("V216")
async def test_every_commit_that_a_merge_brings_is_covered_once(real: Real) -> None:
    real.let_builds_end()
    a = real.commit("A")
    await real.poke()
    await real.until(a, recorded=True)
    b = real.commit("B")
    side, merge = real.merge(a, "X", "Y")
    d = real.commit("D")
    await real.poke()
    done = await real.until(d, recorded=True)
    wanted = {b, *side, merge, d}
    assert wanted == set(real.git("rev-list", f"{a}..{d}").split())
    rows = await real.covered(done.number)
    assert sorted(uri for uri, _ in rows) == sorted(wanted)
    assert len({offset for _, offset in rows}) == len(wanted)
    known = await real.parts.store.covers(QUEUE, a)
    assert known.cover is None or known.cover.request != done.number


@pytest.mark.spec("V406")
async def test_a_merge_that_broke_the_trunk_is_named_as_that_merge(real: Real) -> None:
    """Neither commit of the side branch is built, although the first of them is the broken one."""
    real.let_builds_end()
    a = real.commit("A")
    await real.poke()
    await real.until(a, recorded=True)
    b = real.commit("B")
    side, merge = real.merge(a, "red", "Y")
    real.commit("C")
    head = real.commit("D")
    await real.poke()
    done = await real.until(head, state=State.FAILED, recorded=True)
    found = await real.searched(done.number)
    assert (found.state, found.culprit_uri, found.good_uri) == (Searching.FOUND, merge, b)
    requests = await real.parts.store.requests(QUEUE, limit=100)
    assert not {r.uri for r in requests} & set(side)
