from __future__ import annotations

import asyncio
from pathlib import Path

from temporalio.client import Client

from tests.trunk import running_trunk
from wiring.wake import Waker


async def test_pokes_during_a_poke_become_one_more(client: Client) -> None:
    waker = Waker(client)
    sent: list[int] = []
    gate = asyncio.Event()

    async def send() -> None:
        sent.append(1)
        await gate.wait()

    first = waker.poke("queue/a", send)
    await asyncio.sleep(0)
    for _ in range(100):
        assert waker.poke("queue/a", send) is first
    await asyncio.sleep(0)
    gate.set()
    await first
    assert len(sent) == 2


async def test_a_poke_starts_a_queue_that_does_not_run(client: Client, tmp_path: Path) -> None:
    async with running_trunk(client, tmp_path) as trunk:
        trunk.source.land("A")
        await trunk.poke()

        async def accepted() -> bool:
            return bool(await trunk.store.attempts(trunk.queue, "A"))

        await trunk.until(accepted)
