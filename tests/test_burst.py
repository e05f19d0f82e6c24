"""A burst of heads during one build, on real git, a real server and a real command."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Final

from benchmarks.real import QUEUE, real_trunk
from domain.request import State

HEADS: Final = 200
SECONDS: Final = 6


async def test_two_hundred_heads_during_a_build_are_one_build_more(tmp_path: Path) -> None:
    """The one that runs, and the newest."""
    built = tmp_path / "built"
    command = f"echo $LASTGREEN_COMMIT >> {built}; test $LASTGREEN_STRATEGY != full || sleep"
    async with real_trunk(tmp_path, f"{command} {SECONDS}") as real:
        running = await real.land()
        heads = real.repository.write(HEADS)
        for head in heads:
            real.repository.land(head)
            _ = real.parts.waker.head_moved(real.fence, QUEUE)
            await asyncio.sleep(0)
        assert (await real.request(running)).state is State.PROCESSING
        await real.recorded(heads[-1])
        assert built.read_text().split() == [running, heads[-1]]
        requests = await real.parts.store.requests(QUEUE, limit=HEADS)
        states = [request.state for request in reversed(requests)]
        superseded = [State.SUPERSEDED] * (len(states) - 2)
        assert states == [State.SUCCEEDED, *superseded, State.SUCCEEDED]
        promoted = real.repository.git("rev-parse", "refs/heads/verified-main")
        assert promoted == heads[-1]
