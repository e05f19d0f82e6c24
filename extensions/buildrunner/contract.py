"""The seam to a build system."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from domain.build import LOST

__all__ = ["LOST", "BuildRunner", "Order", "Triggered"]


@dataclass(frozen=True, slots=True)
class Order:
    """What to build. ``base_uri`` is None for a full build.

    ``key`` is the idempotency key; ``wake`` the workflow id to signal when the build is news,
    for runners that can; ``until`` (ms since 1970) is when nobody waits for it any more.
    """

    key: str
    queue: str
    request: int
    attempt: int
    base_uri: str | None
    head_uri: str
    strategy: str
    wake: str
    until: int


@dataclass(frozen=True, slots=True)
class Triggered:
    """``url`` is where a person can look: a page, or the path of a log."""

    build_id: str
    url: str | None


class BuildRunner(Protocol):
    """Raises ``RunnerOut`` when there is no answer, ``RefusedForNow`` for a refusal that may pass,
    ``Refused`` for one that will not, ``Misconfigured`` when this build can never end.
    """

    has_own_key: bool
    """The build system itself keeps one build a key."""
    pushes: bool
    """It wakes the watcher, so polling is only the fallback."""

    async def trigger(self, order: Order) -> Triggered:
        """The same key and head twice is one build."""

    async def find(self, key: str, head_uri: str) -> Triggered | None:
        """The build under that key, for that head; None when there is none, or it was lost."""

    async def status(self, build_id: str) -> str:
        """``accepted``, ``running``, ``succeeded``, ``failed``, ``cancelled`` or ``lost``; anything
        else is unknown to the caller. ``NoSuchBuild`` when the id is not known.
        """

    async def cancel(self, build_id: str) -> None:
        """Asked to stop; a build that is terminal already is success."""
