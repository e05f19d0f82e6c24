"""The seam to where queues are configured."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from domain.settings import QueueSettings
from domain.sinks import SinkSettings


class QueueConfig(Protocol):
    """Read when asked, so that a change counts at the next check without a restart."""

    def get(self, queue: str) -> QueueSettings:
        """``NotFound`` when no such queue is configured; ``Malformed`` with file, line and key when
        the configuration cannot be read.
        """

    def list(self) -> list[QueueSettings]:
        """All queues, by name; a copy."""

    def sinks(self) -> Mapping[str, SinkSettings]:
        """By name; ``log`` needs no settings and is not among them."""

    def source(self) -> str:
        """What events name as their source."""
