"""Five minutes in which git, the build system or the store gives no answer fail nothing.

A minute lasts a fifth of a second here: budgets, waits and outages are all shorter by the same.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Final

import pytest
from temporalio.common import RetryPolicy

from activities import failures
from domain.errors import RunnerOut, StoreOut
from domain.request import State
from tests.trunk import Trunk
from workflows import policies

MINUTE: Final = 0.2
OUTAGE: Final = 5 * MINUTE
CALLS: Final = (
    "ingest", "turn", "stage", "build_row", "observe", "facts", "announce", "pending", "delivered",
)  # fmt: skip


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    quick = RetryPolicy(
        initial_interval=MINUTE / 60 * policies.SECOND,
        maximum_interval=MINUTE / 2 * policies.SECOND,
    )
    names = ("RUNNER", "POLL", "POLL_PUSHED", "FOR_EVER", "SOURCE_CONTROL", "ANCESTRY", "SINK")
    for name in names:
        monkeypatch.setitem(getattr(policies, name), "retry_policy", quick)
    for activity, (error, seconds) in failures.BUDGETS.items():
        monkeypatch.setitem(failures.BUDGETS, activity, (error, seconds / 60 * MINUTE))


@contextmanager
def without_git(trunk: Trunk) -> Iterator[None]:
    trunk.source.out = True
    yield
    trunk.source.out = False


@contextmanager
def without_runner(trunk: Trunk) -> Iterator[None]:
    for method in ("find", "trigger", "status", "cancel"):
        trunk.runner.fail(method, RunnerOut("502"), 10_000)
    yield
    trunk.runner._errors.clear()


@contextmanager
def without_store(trunk: Trunk) -> Iterator[None]:
    async def out(*_: Any, **__: Any) -> Any:
        raise StoreOut("connection refused")

    with pytest.MonkeyPatch.context() as patch:
        for name in CALLS:
            patch.setattr(trunk.store, name, out)
        yield


async def _is_known(trunk: Trunk) -> bool:
    return bool(await trunk.store.attempts(trunk.queue, "A"))


Outage = Callable[[Trunk], AbstractContextManager[None]]


@pytest.mark.parametrize("out", [without_git, without_runner, without_store])
@pytest.mark.parametrize("when", ["before the look", "while it waits", "during the build"])
async def test_five_minutes_of_an_outage_fail_nothing(trunk: Trunk, out: Outage, when: str) -> None:
    if when == "before the look":
        with out(trunk):
            trunk.source.land("A")
            await trunk.start()
            await trunk.poke()
            await asyncio.sleep(OUTAGE)
        await trunk.until(lambda: _is_known(trunk))
    else:
        await trunk.report("A")
        await trunk.triggered()
        if when == "while it waits":
            await trunk.report("B")
        with out(trunk):
            (build,) = trunk.runner.builds.values()
            build.status = "succeeded"
            await trunk.runner.finish("A", "succeeded")
            await asyncio.sleep(OUTAGE)
    await trunk.succeeds("A")
    if when == "while it waits":
        await trunk.succeeds("B")
    assert {r.state for r in await trunk.store.requests(trunk.queue)} == {State.SUCCEEDED}
    assert trunk.source.promotion == ("B" if when == "while it waits" else "A")
    assert await trunk.store.dead_letters(trunk.queue) == []
