"""Sixty commits and one that breaks the trunk, on real git, a real server and real commands."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from random import Random
from typing import Final

import pytest

from benchmarks.real import QUEUE, Real, real_trunk
from domain.fact import Exit, Require
from domain.request import Origin, State
from stores.ranges import Bisection, Searching

BURSTS: Final = (1, 18, 8, 15, 18)
"""The third has the bad commit in it, the fourth its repair; the second is seen one by one."""
COMMITS: Final = sum(BURSTS)
STARTS: Final = (0, *accumulate(BURSTS))
BREAKS: Final = "M 100644 inline red\ndata <<.\nred\n.\n"
REPAIRS: Final = "D red\n"
PATIENCE: Final = 150


@dataclass
class Trunk:
    real: Real
    folder: Path
    bad: int
    repair: int
    commits: Sequence[str] = field(init=False)

    def __post_init__(self) -> None:
        changes = {self.bad + 1: BREAKS, self.repair + 1: REPAIRS}
        self.commits = self.real.repository.write(COMMITS, changes)

    def is_good(self, commit: str) -> bool:
        """What a build says that does not flake."""
        return not self.bad <= self.commits.index(commit) < self.repair

    def burst(self, number: int) -> Sequence[str]:
        return self.commits[STARTS[number] : STARTS[number + 1]]

    async def push(self, commit: str) -> None:
        self.real.repository.land(commit)
        assert (await self.real.report()).request

    async def one_by_one(self, commits: Sequence[str]) -> None:
        """Each is seen, while nothing that is built ends."""
        (self.folder / "hold").touch()
        for commit in commits:
            await self.push(commit)
        (self.folder / "hold").unlink()
        await self.real.recorded(commits[-1])

    async def searched(self, head: str) -> Bisection:
        number = (await self.real.recorded(head)).number
        async with asyncio.timeout(PATIENCE):
            while True:
                found = await self.real.parts.store.bisection(QUEUE, number)
                if found is not None and found.state is not Searching.RUNNING:
                    return found
                await asyncio.sleep(0.05)

    async def idle(self) -> None:
        async with asyncio.timeout(PATIENCE):
            while await self.real.parts.store.owed(QUEUE, 0, None):  # noqa: ASYNC110 - a store
                await asyncio.sleep(0.05)

    def built(self) -> list[str]:
        """A line for each build, of whatever sort: what it was, and what it said."""
        return (self.folder / "built").read_text().splitlines()


@asynccontextmanager
async def a_trunk(folder: Path, seed: int) -> AsyncIterator[Trunk]:
    """One build in twenty is red by chance, by the same chance whenever it is built again."""
    command = f"""
        while [ -e {folder}/hold ]; do sleep 0.05; done
        build="$LASTGREEN_COMMIT $LASTGREEN_ATTEMPT" said=green
        chance=$(echo "{seed} $build" | cksum | cut -d ' ' -f 1)
        if [ $((chance % 20)) = 0 ]; then said=flake; fi
        if [ -e red ]; then said=red; fi
        echo "$build $LASTGREEN_REQUEST $said" >> {folder}/built
        [ $said = green ]
    """
    random = Random(seed)
    bad = random.randrange(STARTS[2], STARTS[3])
    repair = random.randrange(STARTS[3], STARTS[4])
    settings = {"max_concurrent": 3, "confirm_failures": 1, "bisect": "auto"}
    async with real_trunk(folder, command, **settings) as real:
        yield Trunk(real, folder, bad, repair)


@pytest.mark.timeout(400)
@pytest.mark.parametrize("seed", [1, 9] if os.environ.get("CHAOS") == "whole" else [9])
async def test_of_sixty_commits_each_is_answered_for_and_the_one_that_broke_them_is_named(
    tmp_path: Path, seed: int
) -> None:
    async with a_trunk(tmp_path, seed) as trunk:
        first, each, broken, repaired, last = [trunk.burst(n) for n in range(len(BURSTS))]
        await trunk.push(first[-1])
        await trunk.real.recorded(first[-1])
        await trunk.one_by_one(each)
        await trunk.push(broken[-1])
        await trunk.real.recorded(broken[-1])
        await trunk.push(repaired[-1])  # lands while the search is under way
        found = await trunk.searched(broken[-1])
        await trunk.push(last[-1])
        await trunk.real.recorded(last[-1])
        await trunk.idle()
        assert (found.state, found.culprit_uri) == (Searching.FOUND, trunk.commits[trunk.bad])
        await every_commit_is_answered_for(trunk)
        await nothing_red_was_called_green(trunk)
        await trunk_ends_green(trunk)
        built = trunk.built()
        print(f"seed {seed}: {COMMITS} commits, {len(built)} builds", *built, sep="\n  ")  # noqa: T201
        assert len(built) < COMMITS / 3
        assert any(line.endswith("flake") for line in built), "a seed without a flake proves less"


async def every_commit_is_answered_for(trunk: Trunk) -> None:
    """By its own fact, or by a cover."""
    for commit in trunk.commits:
        covers = await trunk.real.parts.store.covers(QUEUE, commit)
        assert covers.fact or covers.cover, commit
        assert covers.answer(Require.COVERED) in (Exit.GREEN, Exit.BROKEN)


async def nothing_red_was_called_green(trunk: Trunk) -> None:
    """Red by the rule without chance; a cover says of no commit that it was built."""
    store = trunk.real.parts.store
    for commit in trunk.commits:
        if (await store.covers(QUEUE, commit)).answer(Require.EXACT) is Exit.GREEN:
            assert trunk.is_good(commit)
    for request in await store.requests(QUEUE, limit=COMMITS * 2):
        assert request.state is not State.SUCCEEDED or trunk.is_good(request.uri)


async def trunk_ends_green(trunk: Trunk) -> None:
    store = trunk.real.parts.store
    queue = await store.queue(QUEUE)
    assert queue.last_green and queue.last_green.uri == trunk.commits[-1]
    assert trunk.real.repository.git("rev-parse", "verified-main") == trunk.commits[-1]
    assert not queue.in_flight
    assert not await store.dead_letters(QUEUE)
    requests = await store.requests(QUEUE, limit=COMMITS * 2)
    heads = [r.uri for r in requests if r.origin is Origin.HEAD]
    assert len(heads) == BURSTS[1] + len(BURSTS) - 1, "each push was seen once"
