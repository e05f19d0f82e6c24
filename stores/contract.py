"""What the store promises: one transaction a call, one writer a queue."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from domain.act import Act
from domain.bisect import Observed, Probe
from domain.explain import Line
from domain.fact import Fact
from domain.gate import Ancestry, Pair, Seen
from domain.identity import Fence
from domain.request import State
from domain.results import ProjectResult
from domain.settings import QueueSettings
from stores.ranges import Bisection, Covers, RangePage
from stores.rows import (
    Answer,
    Build,
    Committed,
    DeadLetter,
    Delivery,
    Failure,
    Happening,
    Ingested,
    Judged,
    Owed,
    QueueState,
    Recorded,
    Request,
    Stage,
    Stamp,
    Turned,
)


class AfterCommit(Protocol):
    """Told once for each transaction; may lose it (what is owed is found by the next turn)."""

    def __call__(self, fence: Fence, queue: str, committed: Committed, /) -> None: ...


class Reader(Protocol):
    """Missing rows are ``NotFound``; a queue that has no row yet is empty, not missing."""

    async def fence(self) -> Fence: ...
    async def check(self, fence: Fence) -> None:
        """``Fenced`` or ``WrongInstallation`` unless it is this store's."""

    async def queue(self, queue: str) -> QueueState: ...
    async def holder(self, fence: Fence, queue: str) -> Request | None:
        """Whose commit the promotion ref belongs at; fenced, as it is read before a push."""

    async def queues(self) -> Sequence[str]: ...
    async def request(self, queue: str, number: int) -> Request: ...
    async def requests(
        self, queue: str, *, state: State | None = None, limit: int = 50
    ) -> Sequence[Request]:
        """Newest first."""

    async def attempts(self, queue: str, uri: str) -> Sequence[Request]:
        """All requests for one commit, newest first."""

    async def fact(self, queue: str, uri: str, project: str = "") -> Fact | None:
        """The authoritative one."""

    async def last_green_of(self, queue: str, project: str) -> Request | None:
        """The newest by ingest order among those with a green fact of that project."""

    async def covers(self, queue: str, uri: str) -> Covers: ...
    async def builds(self, queue: str, number: int) -> Sequence[Build]: ...
    async def history(self, queue: str, number: int) -> Sequence[Happening]: ...
    async def is_told(self, queue: str, number: int, kinds: Sequence[str]) -> bool:
        """Whether the history of the request has one of these."""

    async def deliveries(self, queue: str, number: int) -> Sequence[Delivery]:
        """Of all events of the request, in order."""

    async def pending(self, queue: str, number: int) -> Sequence[Delivery]: ...
    async def audit(self, queue: str) -> Sequence[Happening]:
        """What concerns no single request: pause, resume, recover."""

    async def dead_letters(self, queue: str) -> Sequence[DeadLetter]:
        """The open ones, newest first."""

    async def dead_letter_of(self, queue: str, letter: str) -> DeadLetter: ...
    async def owed(self, queue: str, at: int, settings: QueueSettings | None) -> Sequence[Owed]:
        """What must run now."""

    async def explain(
        self, queue: str, settings: QueueSettings | None, uri: str | None = None
    ) -> Sequence[Line]:
        """Why the queue stands as it does, or what is known of a commit; what the gate has not
        asked yet, it is said to wait for. ``settings`` None: it is not configured.
        """

    async def bisection(self, queue: str, number: int) -> Bisection | None: ...
    async def observed(self, queue: str, number: int, uris: Sequence[str]) -> Sequence[Observed]:
        """What attempts at these commits said, oldest first; ``number`` is bisected."""

    async def stage(self, fence: Fence, queue: str, number: int) -> Stage:
        """The read before a call to the outside: fenced like a transaction."""


class Writer(Protocol):
    """Each call is one transaction: all or nothing, ``Fenced`` under an older epoch."""

    async def ingest(self, stamp: Stamp, seen: Seen, settings: QueueSettings) -> Ingested: ...
    async def turn(
        self, stamp: Stamp, settings: QueueSettings | None, known: Mapping[Pair, Ancestry]
    ) -> Turned:
        """``settings`` None: the queue is not configured; nothing is admitted, what is owed is."""

    async def build_row(self, stamp: Stamp, build: Build, *, found: bool) -> None: ...
    async def observe(self, stamp: Stamp, answer: Answer, settings: QueueSettings) -> Judged: ...
    async def fail(
        self, stamp: Stamp, failure: Failure, settings: QueueSettings | None
    ) -> Request | None:
        """What stands: a terminal request stays as it is; None, and a dead letter, if none is."""

    async def facts(
        self,
        stamp: Stamp,
        number: int,
        results: Sequence[ProjectResult] | None = (),
        *,
        bisects: bool = False,
    ) -> Recorded | None:
        """None: there is no verdict to record. ``results`` None: they were left out. ``bisects``:
        a red one starts the search for what broke it.
        """

    async def cover(self, stamp: Stamp, number: int, page: RangePage) -> bool:
        """Whether to go on: a verdict that is not green stops at what another one covers."""

    async def announce(
        self, stamp: Stamp, number: int, settings: QueueSettings | None, told: Happening | None
    ) -> None:
        """``recorded``, last of all; of a request that is recorded nothing."""

    async def act(self, stamp: Stamp, ask: Act, settings: QueueSettings | None) -> Happening:
        """The audit's line, of kind ``refused`` where it is; ``NotFound`` without its target."""

    async def probe(
        self, stamp: Stamp, number: int, probe: Probe, committed_at: int | None
    ) -> None:
        """A request at that commit, unless a probe of the queue is active."""

    async def end_bisection(
        self,
        stamp: Stamp,
        number: int,
        culprit: str | None,
        detail: str,
        settings: QueueSettings | None,
    ) -> None:
        """``culprit`` None: nobody is named, a person is told."""

    async def note(self, stamp: Stamp, happening: Happening) -> None: ...
    async def dead_letter(self, stamp: Stamp, kind: str, failure: Failure) -> None: ...
    async def delivered(self, stamp: Stamp, delivery: Delivery, letter: str = "") -> None:
        """Its state and last error as in ``delivery`` now; ``letter`` is what a dead one leaves."""


class Store(Reader, Writer, Protocol):
    pass
