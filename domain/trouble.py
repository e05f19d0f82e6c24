"""What only a running workflow knows of what it waits for, in words."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from domain.explain import Line, named
from domain.gate import Ancestry, Seen, clock
from domain.request import Request

SOURCE_CONTROL: Final = {
    "look": "what the head is",
    "ancestry": "what the head at the gate descends from",
    "publish": "to cover the commits of a verdict and to move the promotion ref",
}
RUNNER: Final = {
    "trigger": "for a build",
    "watch_build": "for the verdict of a build",
    "cancel": "to cancel a build",
    "facts": "for the results of a build's projects",
}


ASKED: Final = SOURCE_CONTROL | RUNNER


def asks(activity: str, since: int, about: str = "", until: int | None = None) -> Line:
    """A question to the outside without an answer yet."""
    who = "source control" if activity in SOURCE_CONTROL else "the build runner"
    sentence = f"asks {who} since {clock(since)} {ASKED[activity]}{about and ': '}{about}"
    sentence += f"; it is judged by news, or at {clock(until)}" if until else ""
    return Line(f"asks_{activity}", sentence, since=since, until=until)


def second_look(seen: Seen, at: int) -> Line:
    doubts = {
        Ancestry.YES: [],
        Ancestry.NO: [f"it does not descend from {seen.head}"],
        Ancestry.UNKNOWN: [f"nobody knows whether it descends from {seen.head}"],
    }[seen.descends]
    if seen.named_before:
        doubts = [*doubts, "the queue has named it before"]
    sentence = f"sees {seen.uri}, which may be stale: {' and '.join(doubts)}; looks again at "
    sentence += f"{clock(at)}, and what waits is admitted meanwhile"
    return Line("second_look", sentence, uri=seen.uri, until=at)


@dataclass(frozen=True, slots=True)
class Trouble:
    """A call that is asked again and again; ``error`` is its last answer."""

    activity: str
    attempts: int
    error: str
    spent: str
    """Of its budget, where it has one."""
    since: int | None
    next_at: int | None
    request: Request | None

    @property
    def line(self) -> Line:
        is_source = self.activity in SOURCE_CONTROL
        who = "source control" if is_source else "the build runner"
        since = f" since {clock(self.since)}" if self.since else ""
        again = f"asked again at {clock(self.next_at)}" if self.next_at else "asked again now"
        sentence = f"{who} is asked {ASKED[self.activity]}{since}, {self.attempts} times in vain; "
        sentence += f"its last answer: {self.error}; {again}"
        sentence += f"; {self.spent} are spent" if self.spent else ""
        if is_source:
            sentence += "; nothing fails for it at the gate"
        elif self.request and not self.request.state.is_terminal:
            until = clock(self.request.deadline_at or 0)
            sentence += f"; `validation_timeout` acts at {until}"
        kind = "source_control_out" if is_source else "runner_out"
        own = named(self.request) if self.request else None
        return Line(kind, sentence, own, since=self.since, until=self.next_at)
