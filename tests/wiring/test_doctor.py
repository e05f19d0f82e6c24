"""Every way in which rows, what is owed and what runs can disagree, and the cure of each."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import Client
from temporalio.common import RetryPolicy

from domain.act import Act, Verb
from domain.errors import Refused, StoreOut
from domain.event import EventType
from domain.request import State
from domain.settings import remote_id
from stores.epoch import raise_epoch
from tests.trunk import Trunk, make_trunk, running_trunk
from wiring.doctor import Doctor, Finding
from wiring.recover import recover, start_queues
from workflows import ids, policies


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    often = RetryPolicy(initial_interval=0.1 * policies.SECOND, maximum_interval=policies.SECOND)
    monkeypatch.setitem(policies.SINK, "retry_policy", often)


async def doctor(trunk: Trunk, later: float = 0) -> Doctor:
    at = int((time.time() + later) * 1000)
    return Doctor(trunk.client, trunk.parts, await trunk.store.fence(), at)


async def findings(trunk: Trunk, later: float = 0) -> list[Finding]:
    return [f for f in await (await doctor(trunk, later)).findings() if not f.is_note]


async def started(trunk: Trunk) -> None:
    await start_queues(trunk.client, trunk.parts, trunk.fence)
    await trunk.report("A")
    await trunk.triggered()


async def _the_queue_ended(trunk: Trunk) -> None:
    await trunk.handle.terminate("by a test")


async def _the_build_ended(trunk: Trunk) -> None:
    await trunk.terminate(ids.build(trunk.queue, 1))


async def _the_watch_ended(trunk: Trunk) -> None:
    watch = ids.watch(remote_id(trunk.config.get(trunk.queue).repository))
    await trunk.terminate(watch)


DISAGREE: dict[str, Callable[[Trunk], Awaitable[None]]] = {
    "its workflow does not run": _the_queue_ended,
    "is processing, and no workflow runs for it": _the_build_ended,
    "nobody watches its remote": _the_watch_ended,
}


@pytest.mark.parametrize("what", DISAGREE)
async def test_what_does_not_run_is_named_with_its_cure_and_started_by_it(
    client: Client, tmp_path: Path, what: str
) -> None:
    async with running_trunk(client, tmp_path) as trunk:
        await started(trunk)
        assert await findings(trunk) == []
        await DISAGREE[what](trunk)
        (found,) = await findings(trunk)
        assert what in found.what
        assert "--fix" in found.cure
        await (await doctor(trunk)).fix()
        await trunk.until(lambda: _agrees(trunk))
        await trunk.succeeds("A")
        await _the_watch_ended(trunk)


async def _agrees(trunk: Trunk) -> bool:
    return await findings(trunk) == []


async def test_a_record_and_a_delivery_that_nobody_works_on_are_named(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_trunk(client, tmp_path) as trunk:
        await started(trunk)
        trunk.sink.out = ConnectionError("nobody hears")
        with monkeypatch.context() as patch:
            patch.setattr(trunk.store, "facts", _is_out)
            await trunk.build_ends("A", "succeeded")
            await trunk.is_in("A", State.SUCCEEDED)
            (record,) = await _ended_for_good(trunk, ids.build(trunk.queue, 1))
        assert "request/" in record.what
        assert "owes its record" in record.what
        await (await doctor(trunk)).fix()
        await trunk.recorded("A")
        (events,) = await _ended_for_good(trunk, ids.hooks(trunk.queue, 1))
        assert "has events to deliver" in events.what
        trunk.sink.out = None
        await (await doctor(trunk)).fix()
        await trunk.until(lambda: _heard(trunk, EventType.RECORDED, 1))
        await trunk.until(lambda: _agrees(trunk))
        await _the_watch_ended(trunk)


async def _ended_for_good(trunk: Trunk, workflow: str) -> list[Finding]:
    """What the doctor finds of it, while no queue can start it again."""
    await _the_queue_ended(trunk)
    await trunk.terminate(workflow)
    return [found for found in await findings(trunk) if "its workflow" not in found.what]


async def _nothing_pends(trunk: Trunk) -> bool:
    return not await trunk.store.pending(trunk.queue, 1)


async def _is_out(*_: Any, **__: Any) -> Any:
    raise StoreOut("nobody can write")


async def _heard(trunk: Trunk, kind: EventType, number: int) -> bool:
    return (kind, number) in trunk.events()


async def test_a_request_past_its_deadline_and_grace_is_named(
    client: Client, tmp_path: Path
) -> None:
    async with running_trunk(client, tmp_path, validation_timeout=60) as trunk:
        await started(trunk)
        (found,) = await findings(trunk, later=60 + 15 * 60 + 1)
        assert f"request/{trunk.queue}/1 is past its deadline" in found.what
        await _the_watch_ended(trunk)


@pytest.mark.spec("V390")
async def test_a_queue_that_another_installation_runs_is_named_with_both(
    client: Client, tmp_path: Path
) -> None:
    async with running_trunk(client, tmp_path / "one") as trunk:
        await started(trunk)
        other = await make_trunk(client, tmp_path / "two")
        other.config.put(trunk.config.get(trunk.queue))
        found = [f.what for f in await findings(other) if f.queue == trunk.queue]
        (told,) = [what for what in found if "belongs to installation" in what]
        assert trunk.fence.installation in told
        assert other.fence.installation in told
        await other.parts.engine.dispose()
        await _the_watch_ended(trunk)


async def test_a_workflow_of_an_older_epoch_is_named(client: Client, tmp_path: Path) -> None:
    async with running_trunk(client, tmp_path) as trunk:
        trunk.runner.pushes = False
        trunk.runner.hang("status")
        await started(trunk)
        await trunk.until(lambda: _asked(trunk))
        await trunk.until(lambda: _queue_rests(trunk))
        act = Act("1", Verb.RECOVER, "ada", "why not")
        now = int(time.time() * 1000)
        await raise_epoch(trunk.parts.engine, act, now)
        found = await (await doctor(trunk)).findings()
        assert any("runs in epoch" in f.what for f in found)
        await recover(client, trunk.parts, act, now + 1)
        await trunk.until(lambda: _agrees(trunk))
        await _the_watch_ended(trunk)


async def _asked(trunk: Trunk) -> bool:
    return bool(trunk.runner.asked)


async def _queue_rests(trunk: Trunk) -> bool:
    about = (await trunk.handle.describe()).raw_description
    return not about.pending_activities and not about.HasField("pending_workflow_task")


async def test_a_ref_that_is_not_at_last_green_is_named(client: Client, tmp_path: Path) -> None:
    async with running_trunk(client, tmp_path) as trunk:
        await started(trunk)
        await trunk.succeeds("A")
        assert await findings(trunk) == []
        trunk.source.promotion = "elsewhere"
        (found,) = await findings(trunk)
        assert found.what == "verified-main is at elsewhere, last green is A"
        trunk.source.out = True
        (found,) = await findings(trunk)
        assert "verified-main cannot be read" in found.what
        await _the_watch_ended(trunk)


async def test_a_build_workflow_that_outlives_what_was_owed_is_named(
    client: Client, tmp_path: Path
) -> None:
    async with running_trunk(client, tmp_path) as trunk:
        trunk.runner.hang("status")
        await started(trunk)
        await trunk.fail_closed(1)  # by another hand: its workflow still waits for the verdict
        await trunk.until(lambda: _nothing_pends(trunk))
        (found,) = await findings(trunk)
        assert found.what.startswith(f"request/{trunk.queue}/1 runs, although nothing is owed")
        await _the_watch_ended(trunk)


async def test_what_a_person_should_know_is_a_note_and_no_disagreement(
    client: Client, tmp_path: Path
) -> None:
    async with running_trunk(client, tmp_path) as trunk:
        await started(trunk)
        await trunk.succeeds("A")
        trunk.runner.fail("find", Refused("401"), 1)
        await trunk.report("B")
        await trunk.is_in("B", State.FAILED)
        await trunk.act(Verb.PAUSE)
        found = await (await doctor(trunk)).findings()
        assert all(finding.is_note for finding in found)
        told = " ".join(finding.what for finding in found)
        assert "paused by ada since" in told
        assert "1 dead letters wait for a person" in told
        trunk.config.remove(trunk.queue)
        await asyncio.sleep(0)
        told = " ".join(f.what for f in await (await doctor(trunk)).findings() if f.is_note)
        assert "it is not configured" in told
