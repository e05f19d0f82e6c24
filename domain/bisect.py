"""Which commit of a red range broke it. Pure: everything is decided from what was observed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

TWICE: Final = 2
"""So often a culprit must have been red, and a commit without an answer is tried."""


class Said(StrEnum):
    """What one attempt at a commit said."""

    GREEN = "green"
    RED = "red"
    NOTHING = "nothing"


@dataclass(frozen=True, slots=True)
class Observed:
    """``is_probe``: it was built for this search; others were known before or came by the way."""

    uri: str
    said: Said
    is_probe: bool


@dataclass(frozen=True, slots=True)
class Probe:
    """Build this commit, on ``good``; the culprit is in (good, bad]."""

    uri: str
    good: str
    bad: str


@dataclass(frozen=True, slots=True)
class Found:
    culprit: str
    good: str


@dataclass(frozen=True, slots=True)
class Inconclusive:
    why: str
    good: str
    bad: str


@dataclass(slots=True)
class _Knowledge:
    """What counts since the search began, or began anew."""

    green: set[str] = field(default_factory=set[str])
    red: Counter[str] = field(default_factory=Counter[str])
    silent: Counter[str] = field(default_factory=Counter[str])
    probes: int = 0
    contradictions: int = 0

    def add(self, seen: Observed) -> None:
        self.probes += seen.is_probe
        match seen.said:
            case Said.NOTHING:
                self.silent[seen.uri] += seen.is_probe
            case Said.GREEN:
                if self.red[seen.uri]:
                    self._start_over()
                self.green.add(seen.uri)
            case Said.RED:
                if seen.uri in self.green:
                    self._start_over()
                else:
                    self.red[seen.uri] += 1

    def _start_over(self) -> None:
        """A commit that was green once can be: what was only red may have been chance."""
        self.contradictions += 1
        self.red.clear()


def search(
    base: str, line: Sequence[str], observed: Sequence[Observed]
) -> Probe | Found | Inconclusive:
    """``line`` are the commits of the range, first parents only, oldest first, to the red head;
    ``base`` is the green commit below; ``observed`` is in the order in which it was learned.
    """
    known = _Knowledge()
    for seen in observed:
        known.add(seen)
    places = {uri: at for at, uri in enumerate(line)}
    good = max((places[uri] for uri in known.green if uri in places), default=-1)
    head = len(line) - 1
    bad = min((places[uri] for uri in known.red if places.get(uri, -1) > good), default=head)
    ends = (line[good] if good >= 0 else base, line[max(bad, 0)])
    if known.contradictions >= TWICE:
        return Inconclusive("two commits were both red and green", *ends)
    if good == head:
        return Inconclusive("the red head turned out green", *ends)
    if bad - good > 1:
        return _inside(line, range(good + 1, bad), known.silent, ends)
    return _neighbours(known, ends)


def _neighbours(known: _Knowledge, ends: tuple[str, str]) -> Probe | Found | Inconclusive:
    """Named only once it was red twice, unless nothing had to be built to know."""
    good, bad = ends
    if not known.probes or known.red[bad] >= TWICE:
        return Found(bad, good)
    if known.silent[bad] >= TWICE:
        return Inconclusive("its builds gave no verdict", *ends)
    return Probe(bad, good, bad)


def _inside(
    line: Sequence[str], places: range, silent: Mapping[str, int], ends: tuple[str, str]
) -> Probe | Inconclusive:
    """The place that halves the range, or the nearest to it that can give an answer."""
    middle = (places.start + places.stop - 1) // 2
    usable = [at for at in places if silent.get(line[at], 0) < TWICE]
    if not usable:
        return Inconclusive("no commit that is left gave a verdict", *ends)
    return Probe(line[min(usable, key=lambda at: (abs(at - middle), at))], *ends)
