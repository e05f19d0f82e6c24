"""A build's status, and the one judge of what follows from an answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from domain.request import Cause, State, Why


class Status(StrEnum):
    ACCEPTED = "accepted"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def is_terminal(self) -> bool:
        return RANK[self] == RANK[Status.SUCCEEDED]


RANK: Final[Mapping[Status, int]] = {
    Status.ACCEPTED: 0,
    Status.RUNNING: 1,
    Status.SUCCEEDED: 2,
    Status.FAILED: 2,
    Status.CANCELLED: 2,
}


@dataclass(frozen=True, slots=True)
class Build:
    runner: str
    id: str
    request: int
    attempt: int
    status: Status
    triggered_at: int
    url: str | None = None


LOST: Final = "lost"
"""An answer, no status: the build is gone together with what ran it."""


def parse_status(text: str) -> Status | None:
    """None is *unknown*: never stored."""
    return Status(text) if text in set(Status) else None


def forward(stored: Status, answer: Status | None) -> Status:
    """Statuses only move forward, and a terminal one is final."""
    return answer if answer is not None and RANK[answer] > RANK[stored] else stored


@dataclass(frozen=True, slots=True)
class Watched:
    """What is known of an attempt when its build is judged. Times in ms since 1970."""

    stored: Status
    deadline: int
    start_by: int
    ending: Why | None = None
    give_up_at: int = 0
    """When the cancel that ``ending`` asked for is no longer waited for."""
    cancel_grace: int = 0
    starts_left: int = 1
    confirmations: int = 0
    failed_before: str | None = None
    """An earlier attempt's build that failed and awaits confirmation."""


@dataclass(frozen=True, slots=True)
class Wait:
    until: int


@dataclass(frozen=True, slots=True)
class Cancel:
    why: Why


@dataclass(frozen=True, slots=True)
class Again:
    reason: str


@dataclass(frozen=True, slots=True)
class Settle:
    state: State
    cause: Cause


Judgement = Wait | Cancel | Again | Settle

ENDED_BY_US: Final[Mapping[Why | None, Settle]] = {
    None: Settle(State.CANCELLED, Cause.BUILD_CANCELLED),
    Why.PERSON: Settle(State.CANCELLED, Cause.CANCELLED_BY_PERSON),
    Why.VALIDATION_TIMEOUT: Settle(State.FAILED, Cause.VALIDATION_TIMEOUT),
}
RED: Final = Settle(State.FAILED, Cause.BUILD_FAILED)
NEVER_STARTED: Final = Settle(State.FAILED, Cause.NEVER_STARTED)


def judge(build: Watched, answer: Status | None, now: int) -> Judgement:
    """What follows from the runner's answer; None when it gave none. No timer ends anything."""
    status = forward(build.stored, answer)
    over = status is Status.CANCELLED or (build.ending is not None and now >= build.give_up_at)
    if build.ending is Why.START_TIMEOUT:
        return _given_up(build, over=over or status.is_terminal)
    if status is Status.SUCCEEDED:
        return Settle(State.SUCCEEDED, Cause.BUILD_SUCCEEDED)
    if status is Status.FAILED:
        again = build.confirmations > 0 and build.ending is None
        return Again("confirm") if again else RED
    if over:
        return _ended(build)
    if build.ending is not None:
        return Wait(build.give_up_at)
    return _on_time(build, status, now)


def _given_up(build: Watched, *, over: bool) -> Judgement:
    """An attempt that never started never settles, whatever it answers afterwards."""
    if not over:
        return Wait(build.give_up_at)
    if build.starts_left:
        return Again("never_started")
    return RED if build.failed_before else NEVER_STARTED


def _ended(build: Watched) -> Judgement:
    if build.failed_before and build.ending is not Why.PERSON:
        return RED
    return ENDED_BY_US[build.ending]


def _on_time(build: Watched, status: Status, now: int) -> Judgement:
    if now >= build.deadline:
        return Cancel(Why.VALIDATION_TIMEOUT)
    if status is not Status.ACCEPTED:
        return Wait(build.deadline)
    if now >= build.start_by:
        return Cancel(Why.START_TIMEOUT)
    return Wait(min(build.deadline, build.start_by))
