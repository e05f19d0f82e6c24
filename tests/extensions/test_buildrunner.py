"""What every build runner promises."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Protocol

import pytest
import pytest_asyncio
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.workflowservice.v1 import DeleteWorkflowExecutionRequest
from temporalio.testing import WorkflowEnvironment

from domain.errors import NoSuchBuild, RefusedForNow, RunnerOut
from extensions.buildrunner.contract import LOST, BuildRunner, Order, Triggered
from extensions.buildrunner.fake import FakeBuild, FakeBuildRunner
from tests.extensions.commandbench import HOUR, Bench, a_bench


class Backend(Protocol):
    """A build system that a test can look into, and break."""

    name: str
    head: str
    other_head: str

    def runner(self) -> BuildRunner: ...
    async def count(self) -> int: ...
    async def finish(self, build: Triggered) -> None: ...
    async def lose(self, build: Triggered) -> None: ...


class FakeBackend:
    head, other_head = "a" * 40, "b" * 40

    def __init__(self) -> None:
        self.name = "0" * 32
        self.builds: dict[str, FakeBuild] = {}

    def runner(self) -> FakeBuildRunner:
        return FakeBuildRunner(self.builds)

    async def count(self) -> int:
        return len(self.builds)

    async def finish(self, build: Triggered) -> None:
        await self.runner().finish(self.builds[build.build_id].order.head_uri, "succeeded")

    async def lose(self, build: Triggered) -> None:
        self.runner().lose(build.build_id)


class CommandBackend:
    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.name = bench.name
        self.go = bench.folder / "go"
        self.head, self.other_head = bench.commit(a="1"), bench.commit(a="2")
        bench.runs(f"until [ -e {self.go} ]; do sleep 0.05; done", in_shell=True)

    def runner(self) -> BuildRunner:
        return self.bench.runner()

    async def count(self) -> int:
        """Of those that have begun; what is listed is a little behind what is."""
        query = f"WorkflowType = 'CommandWorkflow' AND TaskQueue = '{self.bench.name}-workflows'"
        return (await self.bench.client.count_workflows(query)).count

    async def finish(self, build: Triggered) -> None:
        self.go.touch()
        assert await self.bench.ends(build) == "succeeded"

    async def lose(self, build: Triggered) -> None:
        execution = WorkflowExecution(workflow_id=build.build_id)
        await self.bench.client.workflow_service.delete_workflow_execution(
            DeleteWorkflowExecutionRequest(
                namespace=self.bench.client.namespace, workflow_execution=execution
            )
        )
        await self.bench.status_is(build, LOST)


@pytest_asyncio.fixture(params=["fake", "command"])
async def backend(
    request: pytest.FixtureRequest, temporal: WorkflowEnvironment, tmp_path: Path
) -> AsyncIterator[Backend]:
    if request.param == "fake":
        yield FakeBackend()
        return
    bench = a_bench(temporal.client, tmp_path)
    async with bench.working():
        yield CommandBackend(bench)


def order(backend: Backend, installation: str = "", head: str = "") -> Order:
    name = installation or backend.name
    return Order(
        key=f"{name}/request/trunk/main/1", queue="trunk/main", request=1, attempt=1,
        base_uri=None, head_uri=head or backend.head, strategy="full", wake="",
        until=2_000_000_000_000 + HOUR,
    )  # fmt: skip


async def status_becomes(runner: BuildRunner, build: Triggered, status: str) -> None:
    async with asyncio.timeout(20):
        while await runner.status(build.build_id) != status:  # noqa: ASYNC110
            await asyncio.sleep(0.05)


@pytest.mark.spec("V314")
async def test_the_same_key_and_head_twice_is_one_build_also_when_it_has_ended(
    backend: Backend,
) -> None:
    first = await backend.runner().trigger(order(backend))
    assert await backend.runner().trigger(order(backend)) == first
    await backend.finish(first)
    assert await backend.runner().trigger(order(backend)) == first
    assert await backend.runner().status(first.build_id) == "succeeded"
    assert await backend.count() == 1


@pytest.mark.spec("V400")
async def test_it_says_that_it_has_a_key_and_twenty_triggers_at_once_make_one_build(
    backend: Backend,
) -> None:
    runner = backend.runner()
    assert runner.has_own_key
    answers = await asyncio.gather(*(runner.trigger(order(backend)) for _ in range(20)))
    assert len(set(answers)) == 1
    await backend.finish(answers[0])
    assert await backend.count() == 1


@pytest.mark.spec("V98", "V314")
async def test_a_trigger_whose_answer_was_lost_is_found_by_another_instance(
    backend: Backend,
) -> None:
    wanted = order(backend)
    triggered = await backend.runner().trigger(wanted)
    assert await backend.runner().find(wanted.key, wanted.head_uri) == triggered
    await backend.finish(triggered)
    assert await backend.runner().find(wanted.key, wanted.head_uri) == triggered
    assert await backend.count() == 1


@pytest.mark.spec("V100", "V314")
async def test_neither_another_installations_build_nor_one_of_another_head_is_found(
    backend: Backend,
) -> None:
    runner = backend.runner()
    ours = order(backend)
    assert await runner.find(ours.key, ours.head_uri) is None
    theirs = await runner.trigger(order(backend, installation=backend.name[::-1] + "f"))
    older = await runner.trigger(order(backend, head=backend.other_head))
    assert await runner.find(ours.key, ours.head_uri) is None
    new = await runner.trigger(ours)
    assert len({theirs.build_id, older.build_id, new.build_id}) == 3


@pytest.mark.spec("V314")
@pytest.mark.parametrize("unknown", ["", "nobody's/7", "command/xyz", "command/" + "a" * 33])
async def test_an_unknown_id_is_an_error_and_never_a_status(backend: Backend, unknown: str) -> None:
    with pytest.raises(NoSuchBuild):
        await backend.runner().status(unknown)


@pytest.mark.spec("V314", "V366")
async def test_a_build_that_died_with_what_ran_it_is_lost_and_made_anew_under_its_key(
    backend: Backend,
) -> None:
    runner = backend.runner()
    wanted = order(backend)
    build = await runner.trigger(wanted)
    await status_becomes(runner, build, "running")
    await backend.lose(build)
    assert await runner.status(build.build_id) == LOST
    assert await runner.find(wanted.key, wanted.head_uri) is None
    again = await runner.trigger(wanted)
    await status_becomes(runner, again, "running")
    await backend.finish(again)
    assert await runner.status(again.build_id) == "succeeded"


@pytest.mark.spec("V314")
async def test_cancelling_a_build_that_has_ended_is_success_and_changes_nothing(
    backend: Backend,
) -> None:
    runner = backend.runner()
    build = await runner.trigger(order(backend))
    await backend.finish(build)
    await runner.cancel(build.build_id)
    assert await runner.status(build.build_id) == "succeeded"


async def test_cancelling_a_running_build_ends_it_as_cancelled(backend: Backend) -> None:
    runner = backend.runner()
    build = await runner.trigger(order(backend))
    await status_becomes(runner, build, "running")
    await runner.cancel(build.build_id)
    await status_becomes(runner, build, "cancelled")
    await runner.cancel(build.build_id)
    assert await runner.find(order(backend).key, backend.head) == build


@pytest.mark.spec("V321")
async def test_the_fake_can_be_told_to_fail_to_lose_an_answer_to_be_late_and_to_hang() -> None:
    fake = FakeBuildRunner()
    wanted = order(FakeBackend())
    fake.fail("trigger", RefusedForNow("later"), times=2)
    for _ in range(2):
        with pytest.raises(RefusedForNow):
            await fake.trigger(wanted)
    fake.lose_answer("trigger")
    with pytest.raises(RunnerOut):
        await fake.trigger(wanted)
    found = await fake.find(wanted.key, wanted.head_uri)
    assert found
    assert len(fake.builds) == 1

    fake.answer(found.build_id, "queued in space", "accepted")
    answers = [await fake.status(found.build_id) for _ in range(3)]
    assert answers == ["queued in space", "accepted", "running"]

    fake.delay("status", 0.01)
    assert await fake.status(found.build_id) == "running"
    fake.hang("cancel")
    hanging = asyncio.ensure_future(fake.cancel(found.build_id))
    await asyncio.sleep(0.01)
    assert not hanging.done()
    fake.released.set()
    await hanging
    assert fake.cancelled == [found.build_id]
    assert await fake.status(found.build_id) == "cancelled"


async def test_the_fake_without_a_key_of_its_own_builds_twice() -> None:
    fake = FakeBuildRunner(own_key=False)
    wanted = order(FakeBackend())
    assert await fake.trigger(wanted) != await fake.trigger(wanted)


async def test_the_fake_wakes_who_watches_when_a_build_ends() -> None:
    fake = FakeBuildRunner(pushes=True)
    woken: list[str] = []

    async def wake(watcher: str) -> None:
        woken.append(watcher)

    fake.wake = wake
    build = await fake.trigger(replace(order(FakeBackend()), wake="watcher"))
    await fake.finish(FakeBackend.head, "failed")
    assert await fake.status(build.build_id) == "failed"
    assert woken == ["watcher"]
