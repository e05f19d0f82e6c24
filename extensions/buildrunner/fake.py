"""A build system in memory, which can be told to misbehave."""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from domain.errors import NoSuchBuild, RunnerOut
from extensions.buildrunner.contract import LOST, Order, Triggered

HANGING: Final = float("inf")
TERMINAL: Final = frozenset({"succeeded", "failed", "cancelled"})


@dataclass
class FakeBuild:
    id: str
    order: Order
    status: str


class FakeBuildRunner:
    def __init__(
        self,
        builds: dict[str, FakeBuild] | None = None,
        *,
        own_key: bool = True,
        pushes: bool = False,
    ) -> None:
        self.has_own_key = own_key
        self.pushes = pushes
        self.wake: Callable[[str], Awaitable[None]] | None = None
        # The build system itself: several runners may share it.
        self.builds = {} if builds is None else builds
        self.first_status = "running"
        self.verdicts: dict[str, str] = {}
        """Head to what its builds answer from the start; ``running`` until ``finish`` if unset."""
        self.is_deaf = False
        """A cancel is accepted, and the build runs on."""
        self.triggers: list[Order] = []
        self.cancelled: list[str] = []
        self.asked: list[str] = []
        self.released = asyncio.Event()
        self._delays: dict[str, float] = {}
        self._errors: defaultdict[str, deque[Exception]] = defaultdict(deque)
        self._lost_answers: defaultdict[str, int] = defaultdict(int)
        self._answers: defaultdict[str, deque[str]] = defaultdict(deque)

    async def trigger(self, order: Order) -> Triggered:
        self.triggers.append(order)
        await self._before("trigger")
        build = self._known(order.key, order.head_uri) if self.has_own_key else None
        if build is None:
            status = self.verdicts.get(order.head_uri, self.first_status)
            build = FakeBuild(f"fake/{len(self.builds) + 1}", order, status)
            self.builds[build.id] = build
        self._after("trigger")
        return _triggered(build)

    async def find(self, key: str, head_uri: str) -> Triggered | None:
        await self._before("find")
        build = self._known(key, head_uri)
        self._after("find")
        return _triggered(build) if build else None

    async def status(self, build_id: str) -> str:
        self.asked.append(build_id)
        await self._before("status")
        build = self.builds.get(build_id)
        if build is None:
            raise NoSuchBuild(build_id)
        self._after("status")
        answers = self._answers[build_id]
        return answers.popleft() if answers else build.status

    async def cancel(self, build_id: str) -> None:
        await self._before("cancel")
        self.cancelled.append(build_id)
        build = self.builds.get(build_id)
        if build and not self.is_deaf and build.status not in TERMINAL | {LOST}:
            build.status = "cancelled"
        self._after("cancel")

    def build_of(self, head_uri: str) -> FakeBuild:
        """The newest one of that head."""
        return [b for b in self.builds.values() if b.order.head_uri == head_uri][-1]

    async def finish(self, head_uri: str, status: str) -> None:
        """All that still run for that head, and wakes whoever watches them."""
        for build in [b for b in self.builds.values() if b.order.head_uri == head_uri]:
            if build.status not in TERMINAL | {LOST}:
                build.status = status
            if self.wake:
                await self.wake(build.order.wake)

    def lose(self, build_id: str) -> None:
        self.builds[build_id].status = LOST

    def answer(self, build_id: str, *statuses: str) -> None:
        """What ``status`` says next, before it says the truth again."""
        self._answers[build_id].extend(statuses)

    def fail(self, method: str, error: Exception, times: int = 1) -> None:
        self._errors[method].extend([error] * times)

    def lose_answer(self, method: str, times: int = 1) -> None:
        """It does what it is asked, and its answer does not arrive."""
        self._lost_answers[method] += times

    def hang(self, method: str) -> None:
        """No answer until ``released`` is set."""
        self._delays[method] = HANGING

    def delay(self, method: str, seconds: float) -> None:
        self._delays[method] = seconds

    def _known(self, key: str, head_uri: str) -> FakeBuild | None:
        for build in self.builds.values():
            if (build.order.key, build.order.head_uri) == (key, head_uri) and build.status != LOST:
                return build
        return None

    async def _before(self, method: str) -> None:
        delay = self._delays.get(method, 0)
        await (self.released.wait() if delay == HANGING else asyncio.sleep(delay))
        if self._errors[method]:
            raise self._errors[method].popleft()

    def _after(self, method: str) -> None:
        if self._lost_answers[method]:
            self._lost_answers[method] -= 1
            raise RunnerOut(f"the answer of {method} was lost")


def _triggered(build: FakeBuild) -> Triggered:
    return Triggered(build.id, f"memory:{build.id}")
