"""Validation facts, and what they answer about a commit. No fact is not green."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import Final

from domain.errors import Malformed
from domain.request import Cause

GREEN: Final = 0.0
PARTLY: Final = 0.5
BROKEN: Final = 1.0


def degree(value: float) -> float:
    """0 is green, 1 broken, between: partly. NaN is refused like anything else outside."""
    if not 0.0 <= value <= 1.0:
        raise Malformed(f"degree {value}: must be from 0 (green) to 1 (broken)")
    return float(value)


class Verdict(StrEnum):
    GREEN = "green"
    PARTLY = "partly"
    BROKEN = "broken"


def verdict(of_degree: float) -> Verdict:
    if of_degree == GREEN:
        return Verdict.GREEN
    return Verdict.BROKEN if of_degree == BROKEN else Verdict.PARTLY


@dataclass(frozen=True, slots=True)
class Fact:
    """How broken a commit is, by which attempt (its number). ``project`` "" is the repository."""

    uri: str
    project: str
    request: int
    degree: float
    cause: Cause
    created_at: int

    def __post_init__(self) -> None:
        degree(self.degree)
        if self.cause not in (Cause.BUILD_SUCCEEDED, Cause.BUILD_FAILED):
            raise Malformed(f"fact: {self.cause} is no verdict of a build")

    @property
    def is_green(self) -> bool:
        return self.degree == GREEN

    @property
    def verdict(self) -> Verdict:
        return verdict(self.degree)


def authoritative(facts: Sequence[Fact]) -> Fact | None:
    """Of the attempts at one (URI, project): the newest green one, else the newest."""
    return max(facts, key=lambda fact: (fact.is_green, fact.request), default=None)


class Exit(IntEnum):
    """Exit codes are a promise."""

    GREEN = 0
    BROKEN = 1
    USAGE = 2
    UNKNOWN = 3
    NOT_ALLOWED = 4
    PENDING = 8
    UNREACHABLE = 69
    INTERNAL = 70


class Require(StrEnum):
    """What counts as an answer: the commit's own fact, or else the verdict that covers it."""

    EXACT = "exact"
    COVERED = "covered"


def answer(
    fact: Fact | None,
    *,
    under_way: bool,
    covered: float | None = None,
    require: Require = Require.EXACT,
) -> Exit:
    """What is known about one commit. Its own fact decides; a cover (its degree) is never one, and
    answers only where that is asked for.
    """
    if fact is not None:
        return Exit.GREEN if fact.is_green else Exit.BROKEN
    if under_way:
        return Exit.PENDING
    if covered is None or require is Require.EXACT:
        return Exit.UNKNOWN
    return Exit.GREEN if covered == GREEN else Exit.BROKEN
