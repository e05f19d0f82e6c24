"""States of a request, and the one table of how it may end."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from domain.act import Act


class State(StrEnum):
    ACCEPTED = "accepted"
    PROCESSING = "processing"
    SUPERSEDED = "superseded"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def is_terminal(self) -> bool:
        return not any(self in ending.leaves for ending in ENDINGS.values())

    @property
    def has_outcome(self) -> bool:
        return self.is_terminal and self is not State.SUPERSEDED


class Origin(StrEnum):
    HEAD = "head"
    RETRY = "retry"
    AUTO_RETRY = "auto_retry"
    PROBE = "probe"


class Strategy(StrEnum):
    FULL = "full"
    INCREMENTAL = "incremental_since_green"


class Why(StrEnum):
    """Whose durable intent it was that a build be cancelled."""

    PERSON = "person"
    VALIDATION_TIMEOUT = "validation_timeout"
    START_TIMEOUT = "start_timeout"


class Cause(StrEnum):
    SUPERSEDED_BY_NEWER_HEAD = "superseded_by_newer_head"
    ADOPTED_FACT = "adopted_fact"
    BUILD_SUCCEEDED = "build_succeeded"
    BUILD_FAILED = "build_failed"
    BUILD_CANCELLED = "build_cancelled"
    CANCELLED_BY_PERSON = "cancelled_by_person"
    TRIGGER_FAILED = "trigger_failed"
    NEVER_STARTED = "never_started"
    POLLING_EXHAUSTED = "polling_exhausted"
    VALIDATION_TIMEOUT = "validation_timeout"
    PROCESSING_FAILED = "processing_failed"

    @property
    def has_verdict(self) -> bool:
        """Only these have a fact, and owe its record."""
        return self in VERDICTS


@dataclass(frozen=True, slots=True)
class Ending:
    leaves: frozenset[State]
    enters: frozenset[State]
    says: str | None = None
    """The end event written with the ending; None: record says it, or nobody."""
    dead_letter: bool = False
    tried_again: bool = False
    """By the queue itself, while the request is the latest."""


A, P, U, S, F, C = State
CANCELLED: Final = "validation.repository.cancelled"
ABANDONED: Final = "validation.repository.abandoned"


def _row(
    leaves: set[State], enters: set[State], says: str | None = None, *, again: bool = False
) -> Ending:
    dead = says == ABANDONED
    return Ending(frozenset(leaves), frozenset(enters), says, dead, again)


ENDINGS: Final[Mapping[Cause, Ending]] = {
    Cause.SUPERSEDED_BY_NEWER_HEAD: _row({A}, {U}),
    Cause.ADOPTED_FACT: _row({A}, {S, F}),
    Cause.BUILD_SUCCEEDED: _row({P}, {S}),
    Cause.BUILD_FAILED: _row({P}, {F}),
    Cause.BUILD_CANCELLED: _row({P}, {C}, CANCELLED),
    Cause.CANCELLED_BY_PERSON: _row({A, P}, {C}, CANCELLED),
    Cause.TRIGGER_FAILED: _row({P}, {F}, ABANDONED, again=True),
    Cause.NEVER_STARTED: _row({P}, {F}, ABANDONED, again=True),
    Cause.POLLING_EXHAUSTED: _row({P}, {F}, ABANDONED, again=True),
    Cause.VALIDATION_TIMEOUT: _row({P}, {F}, ABANDONED),
    Cause.PROCESSING_FAILED: _row({A, P}, {F}, ABANDONED),
}

VERDICTS: Final = frozenset({Cause.ADOPTED_FACT, Cause.BUILD_SUCCEEDED, Cause.BUILD_FAILED})
NOT_OF_A_PROBE: Final = frozenset({Cause.ADOPTED_FACT, Cause.SUPERSEDED_BY_NEWER_HEAD})


def is_arrow(source: State, target: State, cause: Cause | None) -> bool:
    if cause is None:
        return (source, target) == (A, P)
    return source in ENDINGS[cause].leaves and target in ENDINGS[cause].enters


def may_hold(origin: Origin, state: State, cause: Cause | None) -> bool:
    """Whether a row of that origin can stand in that state with that cause."""
    if cause is None:
        return not state.is_terminal
    return state in ENDINGS[cause].enters and not (
        origin is Origin.PROBE and cause in NOT_OF_A_PROBE
    )


@dataclass(frozen=True, slots=True)
class Transition:
    """One arrow about to be taken, with what is written beside it."""

    request: int
    to: State
    at: int
    cause: Cause | None = None
    detail: str = ""
    strategy: Strategy | None = None
    base_uri: str | None = None
    deadline_at: int | None = None
    terminal_build_id: str | None = None
    green_at: int | None = None
    by: Act | None = None
    """The person who asked for it."""


@dataclass(frozen=True, slots=True)
class Request:
    """One row; times in ms since 1970."""

    queue: str
    number: int
    order: int
    line: int
    uri: str
    origin: Origin
    state: State
    accepted_at: int
    cause: Cause | None = None
    committed_at: int | None = None
    retry_of: int | None = None
    probe_of: int | None = None
    strategy: Strategy | None = None
    base_uri: str | None = None
    deadline_at: int | None = None
    ending: Why | None = None
    ending_attempt: int | None = None
    ending_at: int | None = None
    terminal_build_id: str | None = None
    admitted_at: int | None = None
    ended_at: int | None = None
    green_at: int | None = None
    recorded_at: int | None = None

    @property
    def owes_record(self) -> bool:
        return self.cause is not None and self.cause.has_verdict and self.recorded_at is None
