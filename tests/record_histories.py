"""Records histories of every workflow, for later code to be replayed against.

``make histories`` writes those of this version; ``ARGS=--force`` writes them anew. What a release
was published with stays as it is, for as long as its workflows may still run somewhere.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

from temporalio.client import Client, WorkflowFailureError
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.service import RPCError
from temporalio.testing import WorkflowEnvironment

from benchmarks.real import QUEUE, real_trunk
from domain.act import Verb
from domain.build import LOST
from domain.errors import (
    Fenced,
    Invariant,
    Misconfigured,
    NotFound,
    Refused,
    RunnerOut,
    SourceControlOut,
    StoreOut,
)
from domain.request import State
from domain.settings import Route
from extensions.hooks.fake import FakeSink
from stores.ranges import Searching
from tests.conftest import TEMPORAL
from tests.extensions.commandbench import a_bench
from tests.trunk import Trunk, running_trunk
from wiring.temporal import check_search_attributes
from workflows import ids
from workflows.queue import QueueWorkflow

HISTORIES: Final = Path(__file__).parent / "histories"
MARKER: Final = "said-by-the-command"
NAMED: Final = "LASTGREEN_RECORDED_SECRET"
SECRET: Final = "handed-on-by-name"  # noqa: S105 - is looked for
"""What the recorded command prints, and what its environment holds: neither may be in a history."""
FEW: Final = 40
"""Events after which a server suggests to continue as new, so that such a history stays small."""

Kept = Mapping[str, str]
"""Workflow type, as it is named in a file → id, with ``@run`` for a run that has closed."""


@dataclass(frozen=True)
class Story:
    tell: Callable[[Trunk], Awaitable[Kept]]
    settings: Mapping[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True)
class Recorded:
    kind: str
    story: str
    events: list[Any]


def workflows_of(trunk: Trunk, *kinds: str, number: int = 1, attempt: int = 1) -> Kept:
    known = {
        "queue": ids.queue(trunk.queue),
        "build": ids.build(trunk.queue, number),
        "buildsignal": ids.buildsignal(trunk.queue, number, attempt),
        "record": ids.record(trunk.queue, number),
        "hook": ids.hooks(trunk.queue, number),
    }
    return {kind: known[kind] for kind in kinds}


async def green(trunk: Trunk) -> Kept:
    await trunk.report("A", "B", "C")
    await trunk.succeeds("A")
    await trunk.succeeds("C")
    await trunk.until(lambda: heard(trunk, 1))
    return workflows_of(trunk, "queue", "build", "buildsignal", "record", "hook")


async def heard(trunk: Trunk, number: int) -> bool:
    """Its deliveries are over, one way or the other."""
    return not await trunk.store.pending(trunk.queue, number)


async def running(trunk: Trunk) -> Kept:
    await trunk.report("A", "B")
    await trunk.until(lambda: asked(trunk))
    return workflows_of(trunk, "queue", "build", "buildsignal")


async def has_build(trunk: Trunk, uri: str) -> bool:
    return bool(await trunk.store.builds(trunk.queue, (await trunk.request(uri)).number))


async def red(trunk: Trunk) -> Kept:
    await trunk.report("A")
    await trunk.fails("A")
    await trunk.report("B")
    return workflows_of(trunk, "queue", "build", "buildsignal", "record")


async def cancelled(trunk: Trunk) -> Kept:
    await trunk.report("A")
    await trunk.build_ends("A", "cancelled")
    await trunk.is_in("A", State.CANCELLED)
    return workflows_of(trunk, "build", "buildsignal")


async def cancelled_by_a_person(trunk: Trunk) -> Kept:
    await trunk.act(Verb.PAUSE)
    await trunk.report("A")
    await trunk.act(Verb.RESUME)
    await trunk.triggered()
    await trunk.act(Verb.CANCEL, 1)
    await trunk.is_in("A", State.CANCELLED)
    await trunk.act(Verb.RETRY, 1)
    await trunk.succeeds("A")
    return workflows_of(trunk, "queue", "build", "buildsignal")


async def cancelled_without_a_build(trunk: Trunk) -> Kept:
    trunk.runner.fail("find", RunnerOut("502"), 1_000)
    await trunk.report("A")
    await trunk.is_in("A", State.PROCESSING)
    await trunk.act(Verb.CANCEL, 1)
    await trunk.is_in("A", State.CANCELLED)
    return workflows_of(trunk, "build")


async def refused(trunk: Trunk) -> Kept:
    """The runner will never take it."""
    trunk.runner.fail("trigger", Misconfigured("no such pipeline"))
    await trunk.report("A")
    await trunk.is_in("A", State.FAILED)
    return workflows_of(trunk, "queue", "build")


async def runner_out(trunk: Trunk) -> Kept:
    """It gives no answer to what is asked at hand: the regular activities take over."""
    trunk.runner.fail("find", RunnerOut("no answer"), 2)
    await trunk.report("A")
    await trunk.until(lambda: asked(trunk))
    trunk.runner.fail("status", RunnerOut("no answer"), 1)
    await trunk.succeeds("A")
    return workflows_of(trunk, "build", "buildsignal")


async def asked(trunk: Trunk) -> bool:
    """So its watcher waits."""
    return bool(trunk.runner.asked)


async def searched(trunk: Trunk) -> Kept:
    """A red range of four, whose third broke it: two probes, each built and recorded."""
    await trunk.report("base")
    await trunk.succeeds("base")
    for uri in "ABCD":
        trunk.source.land(uri)
        trunk.runner.verdicts[uri] = "failed" if uri in "CD" else "succeeded"
    await trunk.report("D")

    async def is_over() -> bool:
        found = await trunk.store.bisection(trunk.queue, 2)
        return found is not None and found.state is Searching.FOUND

    await trunk.until(is_over)
    probe = workflows_of(trunk, "build", "record", number=3)
    return {**probe, "queue": ids.queue(trunk.queue), "bisect": ids.bisect(trunk.queue, 2)}


async def polled(trunk: Trunk) -> Kept:
    trunk.runner.pushes = False
    trunk.runner.wake = None
    trunk.runner.first_status = "accepted"
    await trunk.report("A")
    await trunk.until(lambda: has_build(trunk, "A"))
    trunk.runner.build_of("A").status = "running"
    await asyncio.sleep(3)
    await trunk.succeeds("A")
    return workflows_of(trunk, "buildsignal")


async def timed_out(trunk: Trunk) -> Kept:
    """Past its deadline it is cancelled; a runner that goes on all the same is left behind."""
    trunk.runner.is_deaf = True
    await trunk.report("A")
    await trunk.is_in("A", State.FAILED)
    return workflows_of(trunk, "build", "buildsignal")


async def lost(trunk: Trunk) -> Kept:
    await trunk.report("A")
    await trunk.until(lambda: has_build(trunk, "A"))
    await trunk.runner.finish("A", LOST)
    await trunk.until(lambda: triggered(trunk, 2))
    await trunk.succeeds("A")
    return workflows_of(trunk, "build", "buildsignal", attempt=1)


async def triggered(trunk: Trunk, times: int) -> bool:
    return len(trunk.runner.triggers) >= times


async def confirmed(trunk: Trunk) -> Kept:
    """A failure counts when a second build fails too."""
    await trunk.report("A")
    await trunk.build_ends("A", "failed")
    await trunk.until(lambda: triggered(trunk, 2))
    await trunk.fails("A")
    return workflows_of(trunk, "build", "buildsignal", attempt=2)


async def driven_again(trunk: Trunk) -> Kept:
    await trunk.report("A")
    await trunk.until(lambda: has_build(trunk, "A"))
    await trunk.terminate(ids.build(trunk.queue, 1))
    await trunk.terminate(ids.queue(trunk.queue))
    await trunk.start()
    await trunk.succeeds("A")
    return workflows_of(trunk, "queue", "build")


async def rewritten(trunk: Trunk) -> Kept:
    """What an older head says is believed at the second look."""
    await trunk.report("A", "B")
    trunk.source.rewrite("A", "X")
    await trunk.look()
    await trunk.succeeds("A")
    await trunk.succeeds("X")
    return workflows_of(trunk, "queue", "record")


async def ancestry(trunk: Trunk) -> Kept:
    """Source control is out when the gate asks it."""
    await trunk.report("A")
    await trunk.succeeds("A")
    await trunk.report("B", "C")
    await trunk.terminate(ids.queue(trunk.queue))  # and with it what the look told
    await trunk.start()
    await asyncio.sleep(0.5)
    trunk.source.out = True
    await trunk.build_ends("B", "succeeded")
    await trunk.is_in("B", State.SUCCEEDED)
    await asyncio.sleep(1)
    trunk.source.out = False
    await trunk.is_in("C", State.PROCESSING)
    return workflows_of(trunk, "queue")


async def no_ref(trunk: Trunk) -> Kept:
    await trunk.look()
    await trunk.poke()
    await trunk.report("A")
    return workflows_of(trunk, "queue")


async def unpromoted(trunk: Trunk) -> Kept:
    trunk.source.protected = "a protected branch"
    await trunk.report("A")
    await trunk.succeeds("A")
    return workflows_of(trunk, "record")


async def without_target(trunk: Trunk) -> Kept:
    await trunk.report("A")
    await trunk.succeeds("A")
    return workflows_of(trunk, "record")


async def remote_out(trunk: Trunk) -> Kept:
    """Promotion is tried again until the remote answers."""
    await trunk.report("A")
    trunk.source.errors.extend([SourceControlOut("no answer")])
    await trunk.succeeds("A")
    return workflows_of(trunk, "record")


async def store_out(trunk: Trunk) -> Kept:
    """The steps leave their fast lane, and come back to it."""
    await trunk.report("A")
    await trunk.until(lambda: has_build(trunk, "A"))
    well = trunk.store.facts
    answers = iter([StoreOut("busy")] * 4)

    async def facts(*arguments: Any, **bisects: Any) -> Any:
        for error in answers:
            raise error
        return await well(*arguments, **bisects)

    setattr(trunk.store, "facts", facts)  # noqa: B010 - as a fake would
    await trunk.succeeds("A")
    return workflows_of(trunk, "record")


async def unrecordable(trunk: Trunk) -> Kept:
    async def facts(*_: Any, **__: Any) -> Any:
        raise Invariant("the row is not as it must be")

    setattr(trunk.store, "facts", facts)  # noqa: B010 - as a fake would
    await trunk.report("A")
    await trunk.build_ends("A", "succeeded")
    await trunk.is_in("A", State.SUCCEEDED)
    return workflows_of(trunk, "build", "record")


async def gate_refused(trunk: Trunk) -> Kept:
    """Source control can never answer what the gate asks."""
    await trunk.report("A")
    await trunk.succeeds("A")
    await trunk.report("B", "C")
    await trunk.terminate(ids.queue(trunk.queue))  # and with it what the look told
    await trunk.start()
    await asyncio.sleep(0.5)
    trunk.source.hang()
    await trunk.build_ends("B", "succeeded")
    await trunk.is_in("B", State.SUCCEEDED)
    await asyncio.sleep(1)
    trunk.source.errors.extend([Misconfigured("credentials named but absent")] * 2)
    trunk.source.answering.set()
    await trunk.is_in("C", State.FAILED)
    return workflows_of(trunk, "queue")


async def unanswered(trunk: Trunk) -> Kept:
    """The deadline passes before the runner says a word."""
    trunk.runner.fail("find", RunnerOut("no answer"), 99)
    await trunk.report("A")
    await trunk.is_in("A", State.FAILED)
    return workflows_of(trunk, "queue", "build")


async def overdue(trunk: Trunk) -> Kept:
    """What should have ended by itself long ago is ended by the queue."""
    trunk.runner.hang("find")
    await trunk.report("A")
    await asyncio.sleep(6)
    build = trunk.client.get_workflow_handle(ids.build(trunk.queue, 1))
    first = (await build.describe()).run_id

    async def is_another() -> bool:
        return (await build.describe()).run_id != first

    await trunk.handle.signal(QueueWorkflow.slot_freed)
    await trunk.until(is_another)
    trunk.runner.released.set()
    await trunk.is_in("A", State.FAILED)
    return workflows_of(trunk, "queue", "build")


async def hooks_owed(trunk: Trunk) -> Kept:
    """The wake was lost, and the next run of the queue finds out."""

    async def lost(_: object) -> None:
        """Nobody hears it."""

    trunk.parts.waker._hooks = lost  # type: ignore[method-assign, assignment] # as a worker that dies
    await trunk.report("A")
    await trunk.succeeds("A")
    await trunk.terminate(ids.queue(trunk.queue))
    await trunk.start()
    await trunk.until(lambda: heard(trunk, 1))
    return workflows_of(trunk, "queue", "hook")


async def dead_sink(trunk: Trunk) -> Kept:
    trunk.sink.errors.append(Refused("gone for good"))
    await trunk.report("A")
    await trunk.succeeds("A")
    await trunk.until(lambda: heard(trunk, 1))
    return workflows_of(trunk, "hook")


async def deaf_sink(trunk: Trunk) -> Kept:
    """One sink holds its own line; the other has everything meanwhile."""
    trunk.sinks["other"] = other = FakeSink()
    trunk.sink.out = ConnectionError("no answer")
    await trunk.report("A")
    await trunk.succeeds("A")

    async def all_heard() -> bool:
        return len(other.ids) == 2

    await trunk.until(all_heard)
    trunk.sink.out = None
    await trunk.until(lambda: heard(trunk, 1))
    return workflows_of(trunk, "hook")


async def slow_sink(trunk: Trunk) -> Kept:
    """It is woken while it delivers, and what came meanwhile goes out in the same run."""
    trunk.sink.errors.append(TimeoutError("no answer"))
    await trunk.report("A")
    await trunk.succeeds("A")
    await trunk.until(lambda: heard(trunk, 1))
    return workflows_of(trunk, "hook")


async def continued(trunk: Trunk) -> Kept:
    """Its server suggests to continue as new early on."""
    await trunk.start()
    first = (await trunk.handle.describe()).run_id
    for uri in "ABCDEFGHIJ":
        await trunk.report(uri)
    assert (await trunk.handle.describe()).run_id != first
    return {"queue": f"{ids.queue(trunk.queue)}@{first}"}


async def continuation(trunk: Trunk) -> Kept:
    await continued(trunk)
    await asyncio.sleep(1.5)  # a run that was short is followed only after a second
    await trunk.succeeds("A")
    return workflows_of(trunk, "queue")


async def watching(trunk: Trunk) -> Kept:
    async with trunk.watched() as handle:
        await trunk.report("A")
        trunk.source.land("B")
        await trunk.is_in("B", State.ACCEPTED)
        return {"watch": f"{handle.id}@{(await handle.describe()).run_id}"}


async def unwatched(trunk: Trunk) -> Kept:
    """Nobody is configured on its remote any more."""
    with suppress(RPCError):  # it has ended by itself
        async with trunk.watched() as handle:
            await asyncio.sleep(0.5)
            trunk.config.remove(trunk.queue)
            await handle.result()
    return {"watch": handle.id}


async def vanished(trunk: Trunk) -> Kept:
    """The remote is there no more: it is looked for again in a minute."""
    trunk.source.errors.append(NotFound("gone"))
    async with trunk.watched() as handle:
        await asyncio.sleep(1)
        return {"watch": f"{handle.id}@{(await handle.describe()).run_id}"}


async def fenced(trunk: Trunk) -> Kept:
    """A newer epoch has the store: whoever acts under the old one ends."""
    await trunk.report("A")
    await trunk.until(lambda: asked(trunk))

    async def refuse(*_: Any, **__: Any) -> Any:
        raise Fenced("the store has a newer epoch")

    for name in ("check", "stage", "turn", "observe"):
        setattr(trunk.store, name, refuse)
    await trunk.runner.finish("A", "succeeded")
    await trunk.handle.signal(QueueWorkflow.slot_freed)
    with suppress(RPCError):  # it has ended by itself
        async with trunk.watched() as watch:
            await watch.result()
    for workflow_id in (ids.build(trunk.queue, 1), ids.queue(trunk.queue)):
        with suppress(WorkflowFailureError):
            await trunk.client.get_workflow_handle(workflow_id).result()
    return {**workflows_of(trunk, "queue", "build", "buildsignal"), "watch": watch.id}


OVERDUE: Final = {"validation_timeout": 2, "cancel_grace": 1, "slot_grace": 2}
STORIES: Final[Mapping[str, Story]] = {
    "green": Story(green),
    "running": Story(running),
    "red": Story(red),
    "cancelled": Story(cancelled),
    "cancelled-by-a-person": Story(cancelled_by_a_person),
    "cancelled-without-a-build": Story(cancelled_without_a_build, {"cancel_grace": 1}),
    "refused": Story(refused),
    "runner-out": Story(runner_out),
    "polled": Story(polled),
    "timed-out": Story(timed_out, OVERDUE),
    "lost": Story(lost),
    "confirmed": Story(confirmed, {"confirm_failures": 1}),
    "searched": Story(searched, {"bisect": "auto"}),
    "driven-again": Story(driven_again),
    "rewritten": Story(rewritten),
    "ancestry": Story(ancestry),
    "no-ref": Story(no_ref),
    "unpromoted": Story(unpromoted),
    "without-target": Story(without_target, {"promote": None}),
    "remote-out": Story(remote_out),
    "store-out": Story(store_out),
    "unrecordable": Story(unrecordable),
    "gate-refused": Story(gate_refused),
    "unanswered": Story(unanswered, {"validation_timeout": 2}),
    "overdue": Story(overdue, OVERDUE),
    "hooks-owed": Story(hooks_owed),
    "dead-sink": Story(dead_sink),
    "slow-sink": Story(slow_sink),
    "deaf-sink": Story(deaf_sink, {"hooks": (Route("one"), Route("other"))}),
    "watching": Story(watching, {"watch_interval": 1}),
    "vanished": Story(vanished, {"watch_interval": 1}),
    "fenced": Story(fenced, {"watch_interval": 1}),
    "unwatched": Story(unwatched, {"watch_interval": 1}),
}
SHORT_STORIES: Final[Mapping[str, Story]] = {
    "continued": Story(continued),
    "continuation": Story(continuation),
}
"""Where the server suggests to continue as new after a few events."""

OUTCOMES: Final[Mapping[str, str]] = {
    "red": "exit 1",
    "cancelled": "sleep 60",
    "misconfigured": "/nowhere/program",
}


async def command_alone(client: Client, folder: Path, outcome: str) -> Kept:
    """A build that nobody waits for any more when it ends."""
    bench = a_bench(client, folder)
    bench.runs(OUTCOMES[outcome], in_shell=outcome != "misconfigured")
    order = replace(bench.order(bench.commit(file=outcome)), wake="request/gone")
    async with bench.working():
        build = await bench.runner().trigger(order)
        if outcome == "cancelled":
            await bench.status_is(build, "running")
            await bench.runner().cancel(build.build_id)
        with suppress(WorkflowFailureError):
            await client.get_workflow_handle(build.build_id).result()
    return {"command": build.build_id}


async def command_awaited(folder: Path) -> list[Recorded]:
    """Through everything that runs on a person's machine: its watcher hears of it."""
    script = f"echo {MARKER} ${{{NAMED}:?}}"
    async with real_trunk(folder, script, environment=(NAMED,)) as real:
        await real.recorded(await real.land())
        (build,) = await real.parts.store.builds(QUEUE, 1)
        kept = {
            "queue": ids.queue(QUEUE),
            "build": ids.build(QUEUE, 1),
            "buildsignal": ids.buildsignal(QUEUE, 1, 1),
            "record": ids.record(QUEUE, 1),
            "command": build.id,
        }
        return await fetched(real.client, "real", kept)


async def fetched(client: Client, story: str, kept: Kept) -> list[Recorded]:
    found = []
    for kind, workflow_id in kept.items():
        name, _, run = workflow_id.partition("@")
        handle = client.get_workflow_handle(name, run_id=run or None)
        if kind in {"queue", "watch"} or story == "running":
            await asyncio.sleep(0.5)
        else:
            with suppress(WorkflowFailureError):
                await handle.result()
        history = await handle.fetch_history()
        events = history.to_json_dict()["events"]
        found.append(Recorded(kind, story, [without_names(event) for event in events]))
    return found


def without_names(event: Any) -> Any:
    """Of machines, that is; a replay looks at everything else."""
    if isinstance(event, dict):
        return {key: without_names(value) for key, value in event.items() if key != "identity"}
    return [without_names(value) for value in event] if isinstance(event, list) else event


def write(folder: Path, recorded: Recorded) -> None:
    """An event a line."""
    lines = ",\n".join(json.dumps(event, separators=(",", ":")) for event in recorded.events)
    path = folder / f"{recorded.kind}-{recorded.story}.json"
    path.write_text(f'{{"events":[\n{lines}\n]}}\n', encoding="utf-8")


@asynccontextmanager
async def temporal(*more: str) -> AsyncIterator[Client]:
    arguments = ['history.timerProcessorMaxTimeShift="50ms"', *more]
    async with await WorkflowEnvironment.start_local(
        dev_server_existing_path=TEMPORAL,
        dev_server_log_level="error",
        data_converter=pydantic_data_converter,
        dev_server_extra_args=[
            part for value in arguments for part in ("--dynamic-config-value", value)
        ],
    ) as environment:
        await check_search_attributes(environment.client)
        yield environment.client


async def tell_all(client: Client, stories: Mapping[str, Story], folder: Path) -> list[Recorded]:
    found = []
    for name, story in stories.items():
        print(name, flush=True)  # noqa: T201 - to the person who records
        async with running_trunk(client, folder / name, **story.settings) as trunk:
            found += await fetched(client, name, await story.tell(trunk))
    return found


async def record_all(folder: Path) -> list[Recorded]:
    os.environ[NAMED] = SECRET
    async with temporal() as client:
        found = await tell_all(client, STORIES, folder)
        for outcome in OUTCOMES:
            (folder / outcome).mkdir(exist_ok=True)
            kept = await command_alone(client, folder / outcome, outcome)
            found += await fetched(client, outcome, kept)
    async with temporal(f"limit.historyCount.suggestContinueAsNew={FEW}") as client:
        found += await tell_all(client, SHORT_STORIES, folder)
    return found + await command_awaited(folder / "real")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--force", action="store_true", help="also where there are some already")
    folder = HISTORIES / version("lastgreen")
    if folder.exists():
        if not parser.parse_args().force:
            print(  # noqa: T201 - to a person
                f"{folder} exists: histories of a release stay as they are. If {folder.name} was "
                "never released, record them anew with --force.",
                file=sys.stderr,
            )
            return 1
        print(  # noqa: T201
            f"Replaces {folder}. Right only as long as {folder.name} is not released: released "
            "histories are never deleted.",
            file=sys.stderr,
        )
    with tempfile.TemporaryDirectory() as scratch:
        found = asyncio.run(record_all(Path(scratch)))
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for recorded in found:
        write(folder, recorded)
    print(f"{len(found)} histories in {folder}")  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main())
