from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest
from temporalio.client import Client
from temporalio.testing import ActivityEnvironment

import worker
from activities.watch import WatchActivities, WatchAsk
from domain.identity import Fence
from domain.settings import QueueSettings, remote_id
from extensions.queueconfig.fake import FakeConfig
from extensions.sourcecontrol.fake import FakeRemotes, FakeSourceControl
from stores import schema
from stores.engine import open_engine
from stores.write import SqlStore
from tests.trunk import make_trunk
from workflows import policies

REMOTE = "memory:monorepo"


@pytest.mark.spec("V36")
async def test_only_the_queue_whose_ref_moved_is_woken(tmp_path: Path) -> None:
    trunks = {f"refs/heads/{name}": FakeSourceControl("A") for name in ("main", "next", "old")}
    queues = [
        QueueSettings(name, REMOTE, name, watch_interval=1) for name in ("main", "next", "old")
    ]
    elsewhere = QueueSettings("elsewhere", "memory:other", "main", watch_interval=1)
    engine = open_engine(f"sqlite+aiosqlite:///{tmp_path / 'store.db'}")
    await schema.upgrade(engine, int(time.time() * 1000))
    store = SqlStore(engine, lambda *_: None)
    fence = await store.fence()
    woken: list[str] = []

    async def head_moved(_: Fence, queue: str) -> None:
        woken.append(queue)

    config = FakeConfig(*queues, elsewhere)
    watches = WatchActivities(store, config, lambda _: FakeRemotes(trunks), head_moved)
    beats: list[object] = []
    environment = ActivityEnvironment()
    environment.on_heartbeat = lambda *details: beats.append(details)
    running = asyncio.create_task(
        environment.run(watches.watch, WatchAsk(fence, remote_id(REMOTE)))
    )
    await asyncio.sleep(0.3)
    assert sorted(woken) == ["main", "next", "old"]  # none of them has a request yet
    woken.clear()
    trunks["refs/heads/next"].land("B")
    await asyncio.sleep(2.2)
    assert woken == ["next"]
    assert len(beats) >= 3
    for queue in queues:
        config.remove(queue.name)
    await asyncio.wait_for(running, 5)
    await engine.dispose()


@pytest.mark.spec("V356")
async def test_watches_have_a_task_queue_and_slots_of_their_own(
    client: Client, tmp_path: Path
) -> None:
    trunk = await make_trunk(client, tmp_path)
    watch, main = worker.watch_worker(client, trunk.parts), worker.main_worker(client, trunk.parts)
    async with watch, main:
        assert policies.WATCH["task_queue"] == policies.WATCH_QUEUE == watch.task_queue
        assert main.task_queue != watch.task_queue
    names = {activity.__name__ for activity in trunk.parts.activities()}
    assert "watch" not in names
    await trunk.parts.engine.dispose()
