"""A namespace that was lost, one that comes back, a second store, an old copy of the store."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Awaitable, Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import Client
from temporalio.common import RetryPolicy

from domain.act import Act, Verb
from domain.errors import Invariant, WrongInstallation
from domain.event import EventType
from domain.request import Cause, State
from stores.epoch import raise_epoch
from tests.trunk import Trunk, make_trunk, running_trunk, trunk_worker
from wiring.asking import Asking
from wiring.recover import Recovered, recover, start_queues
from workflows import ids, policies


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    often = RetryPolicy(initial_interval=0.1 * policies.SECOND, maximum_interval=policies.SECOND)
    for policy in (policies.RUNNER, policies.POLL, policies.POLL_PUSHED, policies.FOR_EVER):
        monkeypatch.setitem(policy, "retry_policy", often)
    monkeypatch.setitem(policies.SINK, "retry_policy", often)


async def recovered(trunk: Trunk, verb: Verb = Verb.RECOVER, by: str = "ada") -> Recovered:
    act = Act(f"{time.monotonic_ns()}", verb, by, "the disk is new")
    done = await recover(trunk.client, trunk.parts, act, int(time.time() * 1000))
    trunk.fence = await trunk.store.fence()
    return done


async def effects(trunk: Trunk) -> tuple[Any, ...]:
    """Everything that recovering without need must not repeat."""
    requests = await trunk.store.requests(trunk.queue, limit=100)
    facts = [await trunk.store.fact(trunk.queue, request.uri) for request in requests]
    history = [await trunk.store.history(trunk.queue, r.number) for r in requests]
    asked = (trunk.source.asked["promote"], len(trunk.sink.heard), len(trunk.runner.triggers))
    return (requests, facts, history, asked, len(trunk.runner.builds), trunk.source.promotion)


@pytest.mark.spec("V256", "V260")
async def test_recover_without_need_starts_everything_anew_and_changes_nothing_else(
    client: Client, tmp_path: Path
) -> None:
    async with running_trunk(client, tmp_path) as trunk:
        await trunk.report("A")
        await trunk.succeeds("A")
        await trunk.report("B")
        await trunk.triggered(2)
        await trunk.until(lambda: _heard(trunk, EventType.STARTED, 2))
        await trunk.tells(2, "build_running")
        before, epoch = await effects(trunk), trunk.fence.epoch
        run = (await trunk.handle.describe()).run_id
        for turn in (1, 2):
            done = await recovered(trunk)
            assert done.epoch > epoch
            assert ids.queue(trunk.queue) in done.terminated
            assert ids.queue(trunk.queue) in done.started
            await trunk.look()
            assert (await trunk.handle.describe()).run_id != run
            assert await trunk.audit() == [("recovered", "ada")] * turn
        requests, facts, history, *rest = before
        again = await effects(trunk)
        assert (again[0], again[1], list(again[3:])) == (requests, facts, rest)
        told = [[r.kind for r in rows if r.kind != "driven_again"] for rows in again[2]]
        assert told == [[row.kind for row in rows] for rows in history]
        await trunk.succeeds("B")
        assert len(trunk.runner.builds) == 2
        assert trunk.source.promotion == "B"


async def _heard(trunk: Trunk, kind: EventType, number: int) -> bool:
    return (kind, number) in trunk.events()


@pytest.mark.spec("V257")
async def test_after_the_namespace_was_lost_everything_ends_as_it_would_have(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_trunk(client, tmp_path) as trunk:
        trunk.sink.out = ConnectionError("nobody hears")
        with monkeypatch.context() as patch:
            patch.setattr(trunk.store, "announce", _refuses)
            await trunk.report("A")
            await trunk.build_ends("A", "succeeded")  # settled, its fact written, not recorded
            await trunk.tells(1, "fact_recorded")
            await trunk.report("B", "C")  # one in flight, one waits
            await trunk.triggered(2)
            await trunk.end_all()
            await asyncio.sleep(0.3)
        assert await trunk.states() == "A suc, B pro, C acc"
        assert await trunk.store.pending(trunk.queue, 1)
        trunk.sink.out = None
        trunk.sink.heard.clear()
        facts = [await trunk.store.fact(trunk.queue, "A")]
        await recovered(trunk)
        await trunk.recorded("A")
        await trunk.succeeds("B")
        await trunk.succeeds("C")
        assert await trunk.states() == "A suc, B suc, C suc"
        assert [await trunk.store.fact(trunk.queue, "A")] == facts
        assert len(trunk.runner.builds) == 3
        assert trunk.source.promotion == "C"
        await trunk.until(lambda: _heard(trunk, EventType.RECORDED, 3))
        expected = {(k, n) for n in (1, 2, 3) for k in (EventType.STARTED, EventType.RECORDED)}
        assert set(trunk.events()) == expected
        assert len(trunk.events()) == 6


async def _refuses(*_: Any) -> Any:
    raise Invariant("must not be")


async def _in_trigger(trunk: Trunk) -> None:
    trunk.runner.hang("find")
    await trunk.report("A")
    await trunk.until(lambda: _has(trunk.named))


async def _in_the_poll(trunk: Trunk) -> None:
    trunk.runner.pushes = False
    await trunk.report("A")
    await trunk.triggered()
    trunk.runner.hang("status")
    trunk.runner.asked.clear()
    await trunk.until(lambda: _has(trunk.runner.asked))


async def _in_the_push(trunk: Trunk) -> None:
    await trunk.report("A")
    await trunk.triggered()
    trunk.source.answering.clear()
    trunk.source.asked.clear()
    await trunk.build_ends("A", "succeeded")
    await trunk.until(lambda: _has(trunk.source.asked))


async def _in_a_delivery(trunk: Trunk) -> None:
    trunk.sink.out = ConnectionError("not now")
    await trunk.report("A")
    await trunk.triggered()

    async def called() -> bool:
        return trunk.sink.calls > 0

    await trunk.until(called)


async def _has(things: Any) -> bool:
    return bool(things)


@pytest.mark.spec("V389")
@pytest.mark.parametrize("begins", [_in_trigger, _in_the_poll, _in_the_push, _in_a_delivery])
async def test_what_an_old_namespace_has_in_hand_ends_without_an_effect(
    client: Client, tmp_path: Path, begins: Callable[[Trunk], Awaitable[None]]
) -> None:
    async with running_trunk(client, tmp_path, validation_timeout=60) as trunk:
        await begins(trunk)
        by = Act("1", Verb.RECOVER, "ada", "elsewhere")
        fence = await raise_epoch(trunk.parts.engine, by, int(time.time() * 1000))
        triggers, pushes = len(trunk.runner.triggers), trunk.source.promotion
        requests = await trunk.store.requests(trunk.queue)
        trunk.runner.released.set()
        trunk.source.answering.set()
        trunk.sink.out = None
        for build in trunk.runner.builds.values():
            build.status = "succeeded"
        await trunk.poke()
        await trunk.until(lambda: _nothing_runs(trunk))
        assert await trunk.store.requests(trunk.queue) == requests
        assert (len(trunk.runner.triggers), trunk.source.promotion) == (triggers, pushes)
        assert trunk.runner.cancelled == []
        assert trunk.sink.heard == [] or begins is not _in_a_delivery
        heard = len(trunk.sink.heard)
        trunk.fence = fence
        await trunk.start()
        await trunk.look()
        a = await trunk.succeeds("A")
        assert a.cause is Cause.BUILD_SUCCEEDED
        assert len(trunk.runner.builds) == 1
        await trunk.until(lambda: _heard(trunk, EventType.RECORDED, 1))
        assert len(trunk.sink.heard) <= heard + 2


async def _nothing_runs(trunk: Trunk) -> bool:
    names = [ids.queue(trunk.queue), ids.build(trunk.queue, 1), ids.record(trunk.queue, 1)]
    names += [ids.buildsignal(trunk.queue, 1, 1), ids.hooks(trunk.queue, 1)]
    query = f"LastgreenQueue = '{trunk.queue}' AND ExecutionStatus = 'Running'"
    running = {w.id async for w in trunk.client.list_workflows(query)}
    return not running & set(names)


@pytest.mark.spec("V390")
async def test_a_second_store_on_the_namespace_is_refused_by_the_installation(
    client: Client, tmp_path: Path
) -> None:
    async with running_trunk(client, tmp_path / "one") as trunk:
        await trunk.report("A")
        other = await make_trunk(client, tmp_path / "two")
        stranger = Asking(client, other.fence, trunk.queue)
        both = f"{trunk.fence.installation}.*{other.fence.installation}"
        with pytest.raises(WrongInstallation, match=both):
            await stranger.report(trunk.queue)
        with pytest.raises(WrongInstallation, match=both):
            await stranger.act(trunk.queue, Act("1", Verb.RETRY, "eve", "why not", "1"))
        other.config.put(trunk.config.get(trunk.queue))
        with pytest.raises(WrongInstallation, match=both):
            await start_queues(client, other.parts, other.fence)
        assert await trunk.audit(1) == []
        await trunk.succeeds("A")
        await other.parts.engine.dispose()


@pytest.mark.spec("V390")
async def test_an_activity_that_reaches_a_worker_of_another_store_writes_nothing_and_is_tried_again(
    client: Client, tmp_path: Path
) -> None:
    trunk = await make_trunk(client, tmp_path / "one")
    other = await make_trunk(client, tmp_path / "two")
    other.queue, other.parts.task_queues.main = trunk.queue, trunk.queue
    other.config.put(trunk.config.get(trunk.queue))
    trunk.source.land("A")
    async with trunk_worker(other):
        await trunk.start()
        await asyncio.sleep(1)
        assert await other.store.queues() == []
    async with trunk_worker(trunk):
        await trunk.look()
        await trunk.succeeds("A")
        await trunk.end_all()
    await trunk.parts.engine.dispose()
    await other.parts.engine.dispose()


@pytest.mark.spec("V391")
async def test_after_a_restore_nothing_that_the_lost_store_gave_out_comes_again(
    client: Client, tmp_path: Path
) -> None:
    """The same old copy, put in place twice."""
    async with running_trunk(client, tmp_path) as trunk:
        await trunk.report("A")
        await trunk.succeeds("A")
        await trunk.report("B")
        await trunk.triggered(2)
        copy = await _copied(trunk, tmp_path)
        lost: set[str] = set()
        numbers, epochs = [2], [trunk.fence.epoch]
        for commit in ("C", "D"):
            trunk.source.land(commit)
            await trunk.look()
            lost.add(f"{(await trunk.request(commit)).number}")
            await asyncio.to_thread(_put_in_place, copy, tmp_path / "store.db")
            await recovered(trunk, Verb.RESTORE)
            epochs.append(trunk.fence.epoch)
            request = (await trunk.look()).request
            assert request is not None
            numbers.append(int(request.rpartition("/")[2]))
            assert request.rpartition("/")[2] not in lost
        assert numbers == sorted(set(numbers))
        assert epochs == sorted(set(epochs))
        assert numbers[-1] > 1_700_000_000_000
        await trunk.succeeds("B")
        assert (await trunk.request("B")).state is State.SUCCEEDED
        assert len([b for b in trunk.runner.builds.values() if b.order.head_uri == "B"]) == 1
        assert ("restored", "ada") in await trunk.audit()
        await trunk.succeeds("D")


def _put_in_place(copy: Path, store: Path) -> None:
    """Page by page in one transaction: the worker has the store open."""
    with closing(sqlite3.connect(copy)) as old, closing(sqlite3.connect(store)) as live:
        old.backup(live)


async def _copied(trunk: Trunk, folder: Path) -> Path:
    await trunk.parts.engine.dispose()
    source, copy = folder / "store.db", folder / "copy.db"
    await trunk.store.queues()
    async with trunk.parts.engine.connect() as connection:
        await connection.exec_driver_sql("COMMIT")
        await connection.exec_driver_sql(f"VACUUM INTO '{copy}'")
        await connection.exec_driver_sql("BEGIN")
    assert source.exists()
    return copy
