"""A queue that lives through what a seed has for it; whatever that is, its end is proven.

``python -m tests.chaos.life --seeds 200`` lives through many, and ends with 1 at a violation.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import sysconfig
import traceback
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Final

from temporalio.client import Client
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.testing import WorkflowEnvironment

from domain.act import Verb
from domain.errors import NotFound, Refused, RunnerOut
from extensions.buildrunner.fake import TERMINAL
from tests.chaos.checker import check
from tests.chaos.worker_process import OUT, UP
from tests.chaos.world import World, a_world
from wiring.temporal import check_search_attributes

STEPS: Final = 14
AT_ONCE: Final = 4
OUTAGE: Final = 0.4
"""Seconds."""
FIRST: Final = 6
"""So many commits at least are good."""
TURNS: Final = 0.25
FLAKES: Final = 0.1


@dataclass(frozen=True)
class Lived:
    seed: int
    did: Counter[str]
    starts: int
    deaths: int
    searches: Counter[str]


class Life:
    def __init__(self, world: World, random: Random) -> None:
        self.world = world
        self.random = random
        self.did = Counter[str]()
        self.kills = 0
        self._landed = 0
        self._turns = set[str]()
        """Commits that break the trunk, or repair it."""

    async def push(self) -> None:
        for _ in range(self.random.randrange(1, FIRST)):
            self.world.source.land(self._new())
        for _ in range(self.random.randrange(3)):
            await self.world.poke()

    async def force_push(self) -> None:
        """Back to an older commit, and on from there or not."""
        line = self.world.source.line(self.world.source.tip)
        new = [self._new()] if self.random.random() < 0.5 else []
        self.world.source.rewrite(self.random.choice(line), *new)
        await self.world.poke()

    async def webhook_twice(self) -> None:
        await self.world.poke()
        await self.world.poke()

    async def builds_end(self) -> None:
        for build in list(self.world.runner.builds.values()):
            if build.status not in TERMINAL:
                await self.world.runner.finish(
                    build.order.head_uri, self._says(build.order.head_uri)
                )

    async def kill(self) -> None:
        await self.world.kill()
        self.kills += 1
        self.world.start()

    async def pause(self) -> None:
        await self.world.ask(Verb.PAUSE)

    async def resume(self) -> None:
        await self.world.ask(Verb.RESUME)

    async def cancel(self) -> None:
        await self._ask_of_one(Verb.CANCEL)

    async def cancel_search(self) -> None:
        await self._ask_of_one(Verb.CANCEL_BISECT)

    async def retry(self) -> None:
        await self._ask_of_one(Verb.RETRY)

    async def store_outage(self) -> None:
        """Of a worker that is up: one that starts without a store ends, and is started anew."""
        await self.world.until(self._is_up, "a worker")
        out = self.world.folder / OUT
        out.touch()
        await asyncio.sleep(OUTAGE)
        out.unlink()

    async def source_outage(self) -> None:
        self.world.source.out = True
        await asyncio.sleep(OUTAGE)
        self.world.source.out = False

    async def runner_outage(self) -> None:
        """A status that nobody gives, and a trigger whose answer never arrives."""
        self.world.runner.fail("status", RunnerOut("chaos: 500"), 2)
        self.world.runner.lose_answer("trigger")

    async def deafness(self) -> None:
        """From now on, or no longer: a cancel is accepted, and the build runs on."""
        self.world.runner.is_deaf = not self.world.runner.is_deaf

    async def sink_outage(self) -> None:
        self.world.sink.out = ConnectionError("chaos: nobody hears")
        await asyncio.sleep(OUTAGE)
        self.world.sink.out = None

    async def live(self) -> None:
        await self.push()
        await self.world.until(self._is_green, "the first green")
        for _ in range(STEPS):
            step = self.random.choice(WHAT_MAY_HAPPEN)
            self.did[step.__name__] += 1
            await step(self)
            await self.world.look_after()
            await asyncio.sleep(self.random.random() * 0.3)
        await self.resume()
        await self.world.until(self._is_over, "the end")

    async def _is_over(self) -> bool:
        await self.builds_end()
        return await self.world.is_quiet()

    async def _is_green(self) -> bool:
        """A search begins at one."""
        await self.world.runner.finish(self.world.source.tip or "", "succeeded")
        return (await self.world.store.queue(self.world.queue)).last_green is not None

    async def _is_up(self) -> bool:
        return (self.world.folder / UP).exists()

    async def _ask_of_one(self, verb: Verb) -> None:
        requests = await self.world.store.requests(self.world.queue, limit=100)
        if requests:
            with suppress(Refused, NotFound):  # told to who asks, and audited
                await self.world.ask(verb, self.random.choice(requests).number)

    def _new(self) -> str:
        self._landed += 1
        new = f"commit-{self._landed}"
        if self.random.random() < TURNS:
            self._turns.add(new)
        return new

    def _says(self, uri: str) -> str:
        """What the commit is, most times."""
        turns = self._turns & set(self.world.source.line(uri)[:-FIRST])
        is_red = len(turns) % 2 == 1 or self.random.random() < FLAKES
        return "failed" if is_red else "succeeded"


WHAT_MAY_HAPPEN: Final[Sequence[Callable[[Life], Awaitable[None]]]] = (
    *(Life.push, Life.push, Life.push, Life.push, Life.kill, Life.kill),
    *(Life.builds_end, Life.builds_end, Life.builds_end, Life.builds_end, Life.builds_end),
    *(Life.force_push, Life.webhook_twice, Life.pause, Life.resume, Life.cancel, Life.retry),
    Life.cancel_search,
    *(Life.deafness, Life.store_outage, Life.source_outage, Life.runner_outage, Life.sink_outage),
)


async def live(client: Client, seed: int, url: str = "") -> Lived:
    random = Random(seed)
    given = {
        "max_concurrent": random.choice((1, 2, 3, 3)),
        "bisect": random.choice(("off", "auto", "auto", "auto")),
        "confirm_failures": random.choice((0, 1)),
        "validation_timeout": random.choice((14_400, 14_400, 2)),
        "cancel_grace": 1,
        "slot_grace": 5,
    }
    async with a_world(client, url, **given) as world:
        life = Life(world, random)
        world.start()
        await life.live()
        evidence = await world.evidence()
        check(evidence)
        searches = Counter(str(row["state"]) for row in evidence.rows["bisections"])
        return Lived(seed, life.did, world.starts, life.kills, searches)


async def live_all(client: Client, seeds: Sequence[int]) -> int:
    """How many violated something; each seed is told as it ends."""
    places = asyncio.Semaphore(AT_ONCE)
    did, searches = Counter[str](), Counter[str]()
    starts = kills = 0
    violated: list[int] = []

    async def one(seed: int) -> None:
        nonlocal starts, kills
        async with places:
            try:
                lived = await live(client, seed)
            except Exception:  # noqa: BLE001 - told, and the others go on
                violated.append(seed)
                _tell(f"seed {seed}: {traceback.format_exc(limit=-1)}")
                return
        did.update(lived.did)
        searches.update(lived.searches)
        starts, kills = starts + lived.starts, kills + lived.deaths
        _tell(f"seed {seed}: {sum(lived.did.values())} steps, {lived.starts} starts")

    await asyncio.gather(*map(one, seeds))
    _tell(", ".join(f"{name} {count}" for name, count in sorted(did.items())))
    _tell(", ".join(f"searches {state} {n}" for state, n in sorted(searches.items())))
    _tell(f"{len(seeds)} seeds, {kills} kills, {starts} starts, violations={len(violated)}")
    if violated:
        _tell(f"again: make chaos ARGS='--seeds 1 --first {min(violated)}'")
    return len(violated)


def _tell(line: str) -> None:
    print(line, flush=True)  # noqa: T201 - to a person


async def _main(seeds: Sequence[int]) -> int:
    async with await WorkflowEnvironment.start_local(
        dev_server_existing_path=str(Path(sysconfig.get_path("scripts")) / "temporal"),
        dev_server_log_level="error",
        data_converter=pydantic_data_converter,
    ) as environment:
        await check_search_attributes(environment.client)
        return await live_all(environment.client, seeds)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=200, help="how many (200)")
    parser.add_argument("--first", type=int, default=0, help="the first of them (0)")
    asked = parser.parse_args()
    violated = asyncio.run(_main(range(asked.first, asked.first + asked.seeds)))
    return min(violated, 1)


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)  # the SDK's threads can crash an interpreter that winds down
