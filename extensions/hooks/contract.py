"""The seam to those who want to hear."""

from __future__ import annotations

from typing import Protocol

from domain.event import HookEvent


class Sink(Protocol):
    async def deliver(self, event: HookEvent) -> None:
        """Idempotent on ``event.id``. An error means that the effect did not happen; ``Permanent``
        ones are not tried again.
        """
