"""Why things stand as they do, in words: the same for `explain`, a page and Temporal's UI."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from domain.build import Build
from domain.fact import Fact, verdict
from domain.gate import Ancestry, Hold, Reason, clock, due_again
from domain.identity import RequestId
from domain.request import ENDINGS, Origin, Request

MOST: Final = 10
"""Requests that are named where all of them would be too long."""
ADOPTS: Final = (Origin.HEAD, Origin.AUTO_RETRY)


@dataclass(frozen=True, slots=True)
class Line:
    """One condition: a sentence for a person, its parts for a program. Times in ms since 1970."""

    kind: str
    sentence: str
    request: str | None = None
    uri: str | None = None
    who: tuple[str, ...] = ()
    since: int | None = None
    until: int | None = None


def named(request: Request) -> str:
    return str(RequestId(request.queue, request.number))


def shown(build: Build) -> str:
    return f"{build.url or build.id} of {build.runner}, {build.status}"


def about(request: Request, kind: str, text: str, since: int, until: int | None = None) -> Line:
    return Line(kind, f"{named(request)} {text}", named(request), request.uri, (), since, until)


def _all(names: Sequence[str]) -> str:
    more = [f"{len(names) - MOST} more"] if len(names) > MOST else []
    return " and ".join([*names[:MOST], *more])


@dataclass(frozen=True, slots=True)
class Pause:
    reason: str
    by: str
    since: int

    def __str__(self) -> str:
        return f"the queue is paused by {self.by} since {clock(self.since)} ({self.reason})"


@dataclass(frozen=True, slots=True)
class Flight:
    """A request in flight; ``build`` is the one of its current attempt."""

    request: Request
    attempt: int = 1
    build: Build | None = None
    is_ending: bool = False
    lost_at: int | None = None

    @property
    def waits(self) -> str:
        request, build = self.request, self.build
        if self.is_ending:
            asked = clock(request.ending_at or 0)
            return f"its build to end, which is cancelled since {asked} ({request.ending})"
        if build is None:
            return f"the build runner to start build {self.attempt} of it"
        if self.lost_at is not None:
            return f"its build to be started anew: {shown(build)}, lost at {clock(self.lost_at)}"
        return f"the verdict of build {shown(build)}, triggered at {clock(build.triggered_at)}"

    @property
    def line(self) -> Line:
        request, until = self.request, self.request.deadline_at or 0
        since = request.admitted_at or request.accepted_at
        text = f"({request.origin} {request.uri}) is in flight since {clock(since)}, waits for "
        text += f"{self.waits}, and ends by `validation_timeout` at {clock(until)} at the latest"
        return about(request, "in_flight", text, since, until)


HELD: Final[Mapping[Reason, str]] = {
    Reason.PAUSED: ": {pause}; `lastgreen resume` admits it",
    Reason.NO_FREE_SLOT: " for a slot held by {who}",
    Reason.SAME_COMMIT: " for {who}, an attempt at the same commit that {rival}: {then}",
    Reason.NOT_ON_TOP: " until nothing is in flight that it is not on top of: {strangers}",
    Reason.SOURCE_CONTROL: " for source control to say what it descends from",
    Reason.NEXT: " for the queue's next turn, which admits it",
}


@dataclass(frozen=True, slots=True)
class Gate:
    """All requests of a queue that have not ended, and what the gate decided."""

    queue: str
    hold: Hold
    waiting: Sequence[Request] = ()
    flights: Sequence[Flight] = ()
    pause: Pause | None = None
    more: int = 0
    """How many are left out."""

    def lines(self) -> Iterator[Line]:
        yield self._hold()
        if self.pause and self.hold.reason is not Reason.PAUSED:
            yield Line("paused", str(self.pause), who=(self.pause.by,), since=self.pause.since)
        yield from (flight.line for flight in self.flights)
        yield from (self._behind(r) for r in self.waiting if r.number != self.hold.waiting)
        if self.more:
            yield Line("more", f"and {self.more} more: `lastgreen explain {self.queue}`")

    def _hold(self) -> Line:
        hold, kind = self.hold, self.hold.reason.name.lower()
        who = tuple(str(RequestId(self.queue, number)) for number in hold.who)
        if hold.reason is Reason.NOTHING_WAITS:
            busy = f"nothing waits; in flight: {_all(who)}"
            return Line(kind, busy if who else "idle: the newest head is done", who=who)
        if hold.reason is Reason.NOT_CONFIGURED:
            return Line(kind, "the queue is not configured: heads wait until it is again")
        first = next((r for r in self.waiting if r.number == hold.waiting), None)
        if first is None:
            return Line("moves", "the queue moves on just now: ask again")
        if self.pause and hold.reason is Reason.PAUSED:
            who = (self.pause.by,)
        since = clock(first.accepted_at)
        text = HELD[hold.reason].format(
            who=_all(who),
            pause=self.pause,
            rival="is in flight" if {*hold.who} & {*self._flying()} else "owes its record",
            then="its fact is adopted" if first.origin in ADOPTS else "it is built after that",
            strangers=_all([*self._strangers()]),
        )
        sentence = f"{named(first)} ({first.uri}) waits since {since}{text}"
        return Line(kind, sentence, named(first), first.uri, who, first.accepted_at)

    def _flying(self) -> Mapping[int, Request]:
        return {flight.request.number: flight.request for flight in self.flights}

    def _strangers(self) -> Iterator[str]:
        said = {Ancestry.NO: "is no ancestor of it", Ancestry.UNKNOWN: "may be no ancestor of it"}
        for number, answer in zip(self.hold.who, self.hold.detail.split(), strict=False):
            if (flying := self._flying().get(number)) and answer in said:
                yield f"{named(flying)} ({flying.uri}) {said[Ancestry(answer)]}"

    def _behind(self, request: Request) -> Line:
        first = self.hold.waiting and str(RequestId(self.queue, self.hold.waiting))
        text = f"({request.uri}) waits since {clock(request.accepted_at)} "
        text += f"behind {first}" if first else "until the queue is configured"
        told = about(request, "waits", text, request.accepted_at)
        return replace(told, who=(first,) if first else ())


def owes_record(request: Request, refused: str) -> Line:
    """``refused``: why its fact could not be written."""
    since = request.ended_at or 0
    what = f"cannot be written: {refused}" if refused else "is under way"
    text = f"({request.uri}) {request.state} at {clock(since)}; its record {what}"
    return about(request, "owes_record", text, since)


@dataclass(frozen=True, slots=True)
class Tries:
    """A request that ended without a verdict, and ``attempts`` in the place of the latest."""

    ended: Request
    latest: Request
    attempts: Sequence[Request]
    against: str = ""
    """What keeps the queue from trying anything by itself."""

    @property
    def _against(self) -> str:
        if self.ended.number != self.latest.number:
            return f"{named(self.latest)} is the latest"
        if self.ended.cause is None or not ENDINGS[self.ended.cause].tried_again:
            return f"after {self.ended.cause} a person decides"
        return self.against

    @property
    def due(self) -> int | None:
        if self._against:
            return None
        causes = [attempt.cause for attempt in self.attempts if attempt.cause]
        endings = sum(ENDINGS[cause].tried_again for cause in causes)
        return due_again(self.ended.ended_at or 0, endings)

    @property
    def line(self) -> Line:
        ended, due, since = self.ended, self.due, self.ended.ended_at or 0
        autos = sum(attempt.origin is Origin.AUTO_RETRY for attempt in self.attempts)
        text = f"({ended.uri}) ended without a verdict at {clock(since)}: {ended.cause}; the queue "
        if due is not None:
            text += f"tries it again by itself at {clock(due)}, after {autos} such retries"
        else:
            text += f"does not try it again by itself, as {self._against}; "
            text += f"`lastgreen retry {named(ended)}` would make an attempt"
        return about(ended, "no_verdict", text, since, due)


@dataclass(frozen=True, slots=True)
class Promotion:
    """Where the promotion ref belongs, and where it is as far as the store knows."""

    target: str | None
    green: Request
    """Last green."""
    holder: Request | None
    at: str | None
    left_out: str = ""

    def lines(self) -> Iterator[Line]:
        holder = self.holder
        if self.target is None:
            why = "the queue has no `promote`"
        elif holder is None or holder.number != self.green.number:
            why = f"the fact of last green, {named(self.green)} ({self.green.uri}), is not written"
        elif self.at == holder.uri:
            return
        elif holder.recorded_at is None:
            why = f"the record of {named(holder)} is under way since {clock(holder.green_at or 0)}"
        else:
            why = self.left_out or "nobody has moved it"
        newest = f"{holder.uri} by {named(holder)}" if holder else "none"
        sentence = f"{self.target or 'no ref'} is at {self.at or 'no commit that is known'}, "
        sentence += f"the newest green commit is {newest}: {why}"
        yield Line("promotion", sentence, named(holder) if holder else None, self.at)


@dataclass(frozen=True, slots=True)
class Commit:
    """All that is known of a commit but what its attempts wait for."""

    queue: str
    uri: str
    fact: Fact | None
    attempts: Sequence[Request] = ()
    by: Request | None = None
    """Whose verdict covers it."""
    degree: float = 0
    greens: Mapping[str, Request | None] = field(default_factory=dict[str, Request | None])
    superseded: str = ""
    """By whom its newest attempt was."""

    def lines(self) -> Iterator[Line]:
        yield self._known()
        for where, green in self.greens.items():
            text = f"{green.uri} by {named(green)}" if green else "none"
            yield Line(f"{where}_green", f"{where} green: {text}", uri=green.uri if green else None)
        if self.superseded:
            old, at = self.attempts[0], self.attempts[0].ended_at or 0
            told = about(old, "superseded", f"was superseded at {clock(at)} {self.superseded}", at)
            yield replace(told, who=(self.superseded.removeprefix("by "),))

    def _known(self) -> Line:
        uri, by = self.uri, self.by
        if fact := self.fact:
            own, at = str(RequestId(self.queue, fact.request)), fact.created_at
            text = f"{uri} is {fact.verdict} (degree {fact.degree:g}) by its own fact, "
            return Line("fact", f"{text}of {own} at {clock(at)}", own, uri, since=at)
        if by:
            built = "yes" if any(attempt.admitted_at for attempt in self.attempts) else "no"
            text = f"{uri} has no fact; {named(by)} at {by.uri} covers it: {verdict(self.degree)} "
            return Line("cover", f"{text}(degree {self.degree:g}), built: {built}", named(by), uri)
        if self.attempts:
            text = f"{uri} has no fact, and no verdict covers it; {named(self.attempts[0])} is "
            return Line("attempted", f"{text}{self.attempts[0].state}", uri=uri)
        text = f"nothing is known of {uri}: no request named it and no verdict covers it; it would "
        cure = f"have to be reported as head (`lastgreen report {self.queue}`), or lie below one"
        return Line("unknown", text + cure, uri=uri)


@dataclass(frozen=True, slots=True)
class Explanation:
    queue: str
    uri: str | None
    lines: Sequence[Line]
