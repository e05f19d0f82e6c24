"""Who is admitted next, and why not. Pure: what only the outside knows is asked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import StrEnum
from typing import Final

from domain.request import Origin, Strategy


class Ancestry(StrEnum):
    YES = "yes"
    NO = "no"
    UNKNOWN = "unknown"


AGAIN_FIRST_MS: Final = 10 * 60_000
AGAIN_MOST_MS: Final = 60 * 60_000
Pair = tuple[str, str]
"""(older URI, newer URI)"""


@dataclass(frozen=True, slots=True)
class Known:
    older: str
    newer: str
    ancestry: Ancestry


@dataclass(frozen=True, slots=True)
class Waiting:
    number: int
    uri: str
    origin: Origin = Origin.HEAD
    has_fact: bool = False
    rival: int | None = None
    """Another attempt at its URI that is in flight or owes its record."""
    base: str | None = None
    """Of a probe: the green end of its range, which it is built on."""


@dataclass(frozen=True, slots=True)
class Flying:
    number: int
    uri: str
    admitted_at: int
    origin: Origin = Origin.HEAD


@dataclass(frozen=True, slots=True)
class View:
    waiting: Sequence[Waiting]
    in_flight: Sequence[Flying]
    last_green: str | None
    cap: int
    paused: str | None = None


class Reason(StrEnum):
    NOTHING_WAITS = "nothing waits"
    PAUSED = "paused"
    NO_FREE_SLOT = "no free slot"
    SAME_COMMIT = "same commit under way"
    NOT_ON_TOP = "not on top of what is in flight"
    NOT_CONFIGURED = "not configured"
    SOURCE_CONTROL = "waits for source control"
    NEXT = "admitted next"


@dataclass(frozen=True, slots=True)
class Hold:
    """Nothing is admitted, because; ``who`` are the requests that stand in the way."""

    reason: Reason
    waiting: int | None = None
    who: tuple[int, ...] = ()
    since: int | None = None
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Ask:
    """Ancestry that must be known first, of pairs (older, newer)."""

    request: int
    pairs: tuple[Pair, ...]


@dataclass(frozen=True, slots=True)
class Adopt:
    request: int


@dataclass(frozen=True, slots=True)
class Admit:
    request: int
    strategy: Strategy
    base: str | None
    fallback: str = ""
    """Why it is full although a last green exists: ``rewritten`` or ``unknown_ancestry``."""


def next_step(view: View, known: Mapping[Pair, Ancestry]) -> Ask | Hold | Adopt | Admit:
    """The first waiting request in ingest order decides; nothing overtakes it."""
    if not view.waiting:
        who = tuple(flying.number for flying in view.in_flight)
        return Hold(Reason.NOTHING_WAITS, who=who, detail=view.paused or "")
    first = view.waiting[0]
    if held := _held(view, first):
        return held
    if first.has_fact and first.origin in (Origin.HEAD, Origin.AUTO_RETRY):
        return Adopt(first.number)
    if first.rival is not None:
        return Hold(Reason.SAME_COMMIT, first.number, (first.rival,))
    if len(view.in_flight) >= view.cap:
        return _no_slot(view, first)
    return _probe(view, first) if first.origin is Origin.PROBE else _head(view, first, known)


def _head(view: View, first: Waiting, known: Mapping[Pair, Ancestry]) -> Ask | Hold | Admit:
    heads = [flying for flying in view.in_flight if flying.origin is not Origin.PROBE]
    bases = {flying.uri for flying in heads} | {view.last_green} - {None}
    pairs = [(base, first.uri) for base in sorted(b for b in bases if b is not None)]
    if missing := tuple(pair for pair in pairs if pair not in known):
        return Ask(first.number, missing)
    strangers = [f for f in heads if known[f.uri, first.uri] is not Ancestry.YES]
    if strangers:
        said = " ".join(known[f.uri, first.uri] for f in strangers)
        return Hold(
            Reason.NOT_ON_TOP, first.number, tuple(f.number for f in strangers), detail=said
        )
    return _plan(first, view.last_green, known)


def _probe(view: View, first: Waiting) -> Hold | Admit:
    """After all others, one at a time, on the green end of its range."""
    probes = [flying for flying in view.in_flight if flying.origin is Origin.PROBE]
    if probes:
        return _no_slot(replace(view, in_flight=probes), first)
    return Admit(first.number, Strategy.INCREMENTAL, first.base)


def _held(view: View, first: Waiting) -> Hold | None:
    if view.paused is None:
        return None
    return Hold(Reason.PAUSED, first.number, detail=view.paused)


def _no_slot(view: View, first: Waiting) -> Hold:
    who = tuple(flying.number for flying in view.in_flight)
    since = min(flying.admitted_at for flying in view.in_flight)
    return Hold(Reason.NO_FREE_SLOT, first.number, who, since)


def _plan(first: Waiting, base: str | None, known: Mapping[Pair, Ancestry]) -> Admit:
    """A full build is a superset of every incremental one, so any doubt means full."""
    if base is None:
        return Admit(first.number, Strategy.FULL, None)
    match known[base, first.uri]:
        case Ancestry.YES:
            return Admit(first.number, Strategy.INCREMENTAL, base)
        case Ancestry.NO:
            return Admit(first.number, Strategy.FULL, None, "rewritten")
        case Ancestry.UNKNOWN:
            return Admit(first.number, Strategy.FULL, None, "unknown_ancestry")


def due_again(ended_at: int, endings: int) -> int:
    """When the queue tries its latest head again by itself, after so many attempts in vain."""
    return ended_at + min(AGAIN_FIRST_MS << (endings - 1), AGAIN_MOST_MS)


def is_kept(newer_heads: int, cap: int, *, rewritten: bool) -> bool:
    """Whether a waiting head (or automatic retry) stays, given how many heads are newer."""
    return newer_heads == 0 or (newer_heads < cap and not rewritten)


@dataclass(frozen=True, slots=True)
class Seen:
    """One look at the ref, against what the queue knew."""

    uri: str
    committed_at: int | None
    head: str | None
    descends: Ancestry
    named_before: bool
    confirm: float = 0
    """Seconds until the second look, where one is needed."""
    known: tuple[Known, ...] = ()
    """What the gate would ask next."""

    @property
    def is_same(self) -> bool:
        return self.uri == self.head

    @property
    def is_doubtful(self) -> bool:
        """Believed only when a second look agrees: replicas lag, and nothing may go back."""
        return self.head is not None and (self.descends is not Ancestry.YES or self.named_before)

    @property
    def is_rewrite(self) -> bool:
        return self.head is not None and self.descends is not Ancestry.YES


def plausible_time(seconds: float | None, now_ms: int) -> int | None:
    """A commit's own time in ms, or None where it cannot be meant: no age is better than a lie."""
    if seconds is None or not 0 < seconds * 1000 <= now_ms + 86_400_000:
        return None
    return int(seconds * 1000)


def clock(at_ms: int) -> str:
    return f"{datetime.fromtimestamp(at_ms / 1000, UTC):%F %T} UTC"


def asked(ask: Ask) -> Hold:
    return Hold(Reason.SOURCE_CONTROL, ask.request)
