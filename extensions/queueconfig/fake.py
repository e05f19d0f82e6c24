"""Queues that a test, or a command line without a file, makes up."""

from __future__ import annotations

from domain.errors import NotFound
from domain.settings import QueueSettings, check_together
from domain.sinks import SOURCE, SinkSettings


class FakeConfig:
    def __init__(self, *queues: QueueSettings) -> None:
        self._queues = {queue.name: queue for queue in queues}
        self.own_sinks: dict[str, SinkSettings] = {}
        check_together(self._queues)

    def put(self, queue: QueueSettings) -> None:
        self._queues[queue.name] = queue

    def remove(self, queue: str) -> None:
        del self._queues[queue]

    def get(self, queue: str) -> QueueSettings:
        if queue not in self._queues:
            raise NotFound(f"queue {queue!r} is not configured")
        return self._queues[queue]

    def list(self) -> list[QueueSettings]:
        return [self._queues[name] for name in sorted(self._queues)]

    def sinks(self) -> dict[str, SinkSettings]:
        return dict(self.own_sinks)

    def source(self) -> str:
        return SOURCE
