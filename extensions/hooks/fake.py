"""A sink that keeps what it heard, and fails as told."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable

from domain.event import HookEvent


class FakeSink:
    def __init__(self) -> None:
        self.heard: list[HookEvent] = []
        self.calls = 0
        self.errors: deque[Exception] = deque()
        self.out: Exception | None = None
        self.hangs = False
        self.loses_answer = False
        self.reads: Callable[[HookEvent], Awaitable[None]] | None = None

    @property
    def ids(self) -> list[str]:
        """Each event once, in the order in which it was first heard."""
        return list(dict.fromkeys(event.id for event in self.heard))

    async def deliver(self, event: HookEvent) -> None:
        self.calls += 1
        if self.hangs:
            await asyncio.sleep(3600)
        if self.errors:
            raise self.errors.popleft()
        if self.out is not None:
            raise self.out
        if self.reads is not None:
            await self.reads(event)
        self.heard.append(event)
        if self.loses_answer:
            self.loses_answer = False
            raise TimeoutError("the answer was lost")
