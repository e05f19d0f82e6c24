"""Project results in memory, which can be told to misbehave."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence

from domain.results import ProjectResult


class FakeProjects:
    def __init__(self) -> None:
        self.results: dict[str, Sequence[ProjectResult]] = {}
        """By build id; none is an empty set."""
        self.errors: deque[Exception] = deque()
        self.out: Exception | None = None
        self.delay = 0.0
        self.asked: list[str] = []

    async def resolve(self, queue: str, build_id: str) -> Sequence[ProjectResult]:
        _ = queue
        self.asked.append(build_id)
        await asyncio.sleep(self.delay)
        if self.errors:
            raise self.errors.popleft()
        if self.out is not None:
            raise self.out
        return self.results.get(build_id, ())
