"""What is handed to the store, and what it answers with."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from domain.build import Build as Build  # noqa: PLC0414 - passed on, as is Request
from domain.build import Status
from domain.event import HookEvent
from domain.explain import Line
from domain.gate import Ask, Hold
from domain.identity import Fence
from domain.request import Cause, State, Why
from domain.request import Request as Request  # noqa: PLC0414

REFUSED: Final = "refused"
COVERED: Final = ("coverage_recorded", "coverage_missing")


@dataclass(frozen=True, slots=True)
class Stamp:
    """Under which store, in which queue, and when (ms; the workflow's clock)."""

    fence: Fence
    queue: str
    at: int


@dataclass(frozen=True, slots=True)
class Happening:
    """A row of the history; with an actor it is the audit."""

    queue: str
    subject: str
    kind: str
    occurrence: str
    at: int
    detail: str = ""
    actor: str | None = None

    @property
    def is_refused(self) -> bool:
        return self.kind == REFUSED


@dataclass(frozen=True, slots=True)
class Ingested:
    request: int
    is_new: bool
    adopted: bool = False


class Work(StrEnum):
    """Which workflow of a request does what is owed."""

    BUILD = "build"
    HOOKS = "hooks"
    BISECT = "bisect"


@dataclass(frozen=True, slots=True)
class Owed:
    """What must run: a request's build or record, its deliveries, or its bisection.

    ``again``: it was started before; ``overdue``: past its deadline and grace, so whatever runs is
    ended first.
    """

    request: int
    uri: str
    state: State
    deadline: int = 0
    kind: Work = Work.BUILD
    again: bool = False
    overdue: bool = False


@dataclass(frozen=True, slots=True)
class Turned:
    step: Ask | Hold
    owed: tuple[Owed, ...]
    wake_at: int | None
    lines: tuple[Line, ...] = ()
    """What the gate waits for, in words."""


class Next(StrEnum):
    """What a request's own workflow has to do."""

    BUILD = "build"
    RECORD = "record"
    NOTHING = "nothing"


@dataclass(frozen=True, slots=True)
class Stage:
    """Where a request stands; ``build`` is the stored one of its current attempt."""

    next: Next
    request: Request
    attempt: int
    build: Build | None = None
    until: int = 0
    """When the build is judged at the latest (ms)."""
    pushes: bool = False
    """Its runner wakes who waits for it."""

    @property
    def is_ending(self) -> bool:
        """A cancel was asked for that no further attempt may outlive."""
        given_up = self.request.ending is Why.START_TIMEOUT
        return self.request.ending is not None and not (
            given_up and self.request.ending_attempt != self.attempt
        )


class Follows(StrEnum):
    WAIT = "wait"
    CANCEL = "cancel"
    AGAIN = "again"
    SETTLED = "settled"


@dataclass(frozen=True, slots=True)
class Judged:
    """What follows from one answer. ``until`` (ms): when to ask once more at the latest."""

    follows: Follows
    status: Status
    until: int = 0
    reason: str = ""
    state: State | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """``said`` is the runner's word, or None when it gave none."""

    request: int
    attempt: int
    said: str | None


@dataclass(frozen=True, slots=True)
class Failure:
    request: int
    cause: Cause
    detail: str


@dataclass(frozen=True, slots=True)
class Recorded:
    """The authoritative fact decides what follows, not the request. ``base`` is where the range
    of the verdict begins, None: nothing but ``head``, which has its cover already.
    """

    is_green: bool
    has_target: bool = False
    head: str = ""
    base: str | None = None


class Delivering(StrEnum):
    PENDING = "pending"
    DELIVERED = "delivered"
    DEAD = "dead"


@dataclass(frozen=True, slots=True)
class Delivery:
    event: HookEvent
    sink: str
    sequence: int
    state: Delivering = Delivering.PENDING
    last_error: str = ""
    attempts: int = 0


@dataclass(frozen=True, slots=True)
class DeadLetter:
    id: str
    kind: str
    subject: str
    cause: str
    detail: str
    created_at: int
    resolved_at: int | None = None
    resolved_by: str | None = None

    @property
    def is_of_a_request(self) -> bool:
        return self.subject.isdigit()


@dataclass(frozen=True, slots=True)
class QueueState:
    """The seeds' fields of a queue, as answers."""

    name: str
    version: int
    paused_reason: str | None
    latest: Request | None
    last_green: Request | None
    holder: Request | None
    waiting: tuple[Request, ...] = ()
    in_flight: tuple[Request, ...] = ()
    paused: Happening | None = None
    """Who paused it, when and why; None when it is not."""


@dataclass(slots=True)
class Committed:
    """What a transaction leaves for after its commit: rows really added, and who to wake."""

    happenings: list[Happening] = field(default_factory=list[Happening])
    wake_queue: bool = False
    wake_hooks: set[int] = field(default_factory=set[int])
    wake_builds: set[tuple[int, int]] = field(default_factory=set[tuple[int, int]])
    """(request, attempt) of which there is something new to judge."""
    wake_bisections: set[int] = field(default_factory=set[int])
