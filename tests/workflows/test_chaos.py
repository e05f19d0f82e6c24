"""Workflows are killed at random while heads land and builds end: nothing is lost, nothing lies."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from pathlib import Path

import pytest
from temporalio.client import Client

from domain.request import Cause, State
from stores.rows import Request
from tests.trunk import Trunk, running_trunk
from workflows import ids

SETTINGS = {"validation_timeout": 6, "cancel_grace": 1, "slot_grace": 2, "gate_wait": 1}


class Chaos:
    def __init__(self, trunk: Trunk, seed: int) -> None:
        self.trunk = trunk
        self.random = random.Random(seed)
        self.landed = 0

    async def act(self) -> None:
        what = self.random.choice(["land", "land", "end", "end", "kill", "kill queue", "out"])
        match what:
            case "land":
                self.landed += 1
                self.trunk.source.land(f"H{self.landed:03}")
                await self.trunk.poke()
            case "end":
                await self.end_a_build(self.random.choice(["succeeded", "failed", "cancelled"]))
            case "kill":
                await self.kill()
            case "kill queue":
                await self.trunk.terminate(ids.queue(self.trunk.queue))
                await self.trunk.poke()
            case _:
                self.trunk.runner.fail("status", ConnectionError("reset"), 2)

    async def end_a_build(self, status: str) -> None:
        running = [b for b in self.trunk.runner.builds.values() if b.status == "running"]
        if running:
            await self.trunk.runner.finish(self.random.choice(running).order.head_uri, status)

    async def kill(self) -> None:
        queue, number = self.trunk.queue, self.random.randint(1, self.landed or 1)
        victims = [ids.build(queue, number), ids.buildsignal(queue, number, 1)]
        await self.trunk.terminate(self.random.choice([*victims, ids.record(queue, number)]))

    async def calm(self) -> Sequence[Request]:
        """Whatever still runs succeeds from now on, and everything comes to its end."""

        async def quiet() -> bool:
            await self.end_a_build("succeeded")
            state = await self.trunk.state()
            requests = await self.trunk.store.requests(self.trunk.queue, limit=500)
            owes = any(request.owes_record for request in requests)
            return not (state.waiting or state.in_flight or owes)

        self.trunk.runner.verdicts = {f"H{n:03}": "succeeded" for n in range(500)}
        await self.trunk.poke()
        for _ in range(4):
            await self.trunk.until(quiet)
            await asyncio.sleep(0.2)
        return list(reversed(await self.trunk.store.requests(self.trunk.queue, limit=500)))


def overlapping(requests: Sequence[Request]) -> int:
    """The most requests that held a slot at one moment."""
    moments = [(r.admitted_at or 0, 1) for r in requests if r.admitted_at]
    moments += [(r.ended_at or 0, -1) for r in requests if r.admitted_at]
    held = most = 0
    for _, change in sorted(moments):
        held += change
        most = max(most, held)
    return most


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("cap", [1, 2])
async def test_whatever_is_killed_everything_ends_and_nothing_lies(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, cap: int
) -> None:
    monkeypatch.setattr("workflows.policies.DRIVE_AGAIN_MS", 1_000)
    monkeypatch.setattr("stores.write.OWED_WAKE_MS", 1_000)
    async with running_trunk(client, tmp_path, max_concurrent=cap, **SETTINGS) as trunk:
        chaos = Chaos(trunk, seed)
        for _ in range(40):
            await chaos.act()
            await asyncio.sleep(chaos.random.uniform(0, 0.25))
        requests = await chaos.calm()
        assert overlapping(requests) <= cap
        assert all(request.state.is_terminal for request in requests)
        newest = requests[-1]
        assert newest.uri == trunk.source.tip
        for request in requests:
            fact = await trunk.store.fact(trunk.queue, request.uri)
            assert (fact is not None) is bool(request.cause and request.cause.has_verdict)
            builds = await trunk.store.builds(trunk.queue, request.number)
            if request.cause is Cause.BUILD_SUCCEEDED:
                assert "succeeded" in [build.status for build in builds]
        greens = [request for request in requests if request.state is State.SUCCEEDED]
        if greens:
            assert trunk.source.promotion == greens[-1].uri
            assert await trunk.last_green() == (greens[-1].number, greens[-1].uri)
        assert trunk.source.pushes == sorted(trunk.source.pushes)
        keys = [order.key for order in trunk.runner.triggers]
        assert len(keys) == len(set(keys))
