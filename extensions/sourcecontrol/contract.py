"""The seam to a version control system, bound to one queue's remote and ref."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from domain.gate import Ancestry


@dataclass(frozen=True, slots=True)
class Head:
    """A ref's commit and when it was made (seconds since 1970; None when it does not say)."""

    uri: str
    committed_at: float | None


@dataclass(frozen=True, slots=True)
class Change:
    """Who made a commit, and what it says; cleaned text."""

    uri: str
    created_at: float
    author: str
    title: str


@dataclass(frozen=True, slots=True)
class Page:
    """Commits newest first; ``cursor`` is None on the last page."""

    uris: tuple[str, ...]
    cursor: str | None


class Promoted(StrEnum):
    MOVED = "moved"
    SAME = "same"
    NO_TARGET = "no_target"
    MOVED_MEANWHILE = "moved_meanwhile"


class SourceControl(Protocol):
    """Raises ``SourceControlOut`` when the remote gives no answer, ``Refused`` when it refuses
    for good, ``Misconfigured`` when it can never work; never a guess.
    """

    async def latest(self) -> Head:
        """``NotFound`` when the ref does not exist or the repository is empty."""

    async def is_ancestor(self, older: str, newer: str) -> Ancestry:
        """UNKNOWN when either side is not known here; a remote that is out is an error."""

    async def promoted(self) -> str | None:
        """Where the promotion ref points now; None when it does not exist or none is set."""

    async def promote(self, uri: str, expected: str | None) -> Promoted:
        """Point the promotion ref at ``uri`` if it still is at ``expected`` (None: does not exist).

        ``NotFound`` when ``uri`` is no longer on the validated ref, ``Refused`` when protected.
        """

    async def commits_between(
        self,
        base: str | None,
        head: str,
        *,
        cursor: str | None = None,
        limit: int = 500,
        first_parent: bool = False,
    ) -> Page:
        """What ``head`` has and ``base`` has not, newest first, each once; ``NotFound`` when a
        side or the cursor is not known. ``first_parent``: without what was merged.
        """

    async def change_info(self, uri: str) -> Change:
        """``NotFound`` when unknown."""


class Remotes(Protocol):
    """All the refs of one remote, in one call: what the watch asks."""

    async def refs(self) -> dict[str, str]:
        """Full ref name → commit, of the refs that queues validate and that exist."""
