"""The seam to those who want to hear."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from domain.event import HookEvent


@dataclass(frozen=True, slots=True)
class Commit:
    uri: str
    author: str
    title: str


@dataclass(frozen=True, slots=True)
class About:
    """What is true of an event's request when it is asked; text from outside is cleaned."""

    state: str
    cause: str
    uri: str
    verdict: str | None = None
    """Of the commit's own fact, else None."""
    url: str | None = None
    covered: tuple[str, ...] = ()
    """Commits below it that the verdict speaks for too, newest first."""
    commits: tuple[Commit, ...] = ()
    """The newest of those, with the commit itself, in words."""
    log: tuple[str, ...] = ()
    """Where its build began to fail, as far as it is known here."""
    command: str = ""
    culprit: Commit | None = None


class Desk(Protocol):
    """Where a sink asks what an event is about."""

    async def about(self, event: HookEvent) -> About:
        """``NotFound`` when there is no such request."""


class Sink(Protocol):
    async def deliver(self, event: HookEvent) -> None:
        """Idempotent on ``event.id``. An error means that the effect did not happen; ``Permanent``
        ones are not tried again.
        """
