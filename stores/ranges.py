"""What verdicts say of ranges of commits: covers, and the searches inside red ones."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from domain.fact import Exit, Fact, Require, answer
from stores.rows import Request


@dataclass(frozen=True, slots=True)
class Cover:
    """The verdict that covers a commit: of ``request``, at position (``order``, ``offset``)."""

    uri: str
    order: int
    offset: int
    request: int
    degree: float


@dataclass(frozen=True, slots=True)
class RangePage:
    """Commits of a verdict's range, newest first, from offset ``first`` (≤ 0) down."""

    uris: tuple[str, ...]
    first: int
    is_last: bool = False
    is_cut: bool = False


@dataclass(frozen=True, slots=True)
class Covers:
    """All that is known about a commit: its own fact, else what covers it, and its neighbours."""

    uri: str
    fact: Fact | None
    attempts: tuple[Request, ...]
    cover: Cover | None = None
    by: Request | None = None
    """The request whose verdict covers it."""
    prior_green: Request | None = None
    next_green: Request | None = None

    def answer(self, require: Require = Require.EXACT) -> Exit:
        under_way = any(not attempt.state.is_terminal for attempt in self.attempts)
        covered = self.cover.degree if self.cover else None
        return answer(self.fact, under_way=under_way, covered=covered, require=require)


class Searching(StrEnum):
    """State of a bisection."""

    RUNNING = "running"
    FOUND = "found"
    INCONCLUSIVE = "inconclusive"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True)
class Bisection:
    """The search for what broke a red request; ``base`` is the green commit below its range."""

    request: Request
    state: Searching
    good_uri: str
    bad_uri: str
    culprit_uri: str | None
    detail: str
    started_at: int
    ended_at: int | None
    base: str
    probes: tuple[Request, ...] = ()

    @property
    def active(self) -> Request | None:
        """The probe that waits, is built, or whose verdict is not written yet."""
        at_work = (p for p in self.probes if not p.state.is_terminal or p.owes_record)
        return next(at_work, None)
