"""The seam to where queues are configured."""

from __future__ import annotations

from typing import Protocol

from domain.settings import QueueSettings


class QueueConfig(Protocol):
    """Read when asked, so that a change counts at the next check without a restart."""

    def get(self, queue: str) -> QueueSettings:
        """``NotFound`` when no such queue is configured; ``Malformed`` with file, line and key when
        the configuration cannot be read.
        """

    def list(self) -> list[QueueSettings]:
        """All queues, by name; a copy."""
