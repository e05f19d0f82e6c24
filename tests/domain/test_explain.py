"""How a wait is put into words."""

from __future__ import annotations

import pytest

from domain.build import Build, Status
from domain.explain import Flight, Gate, Pause
from domain.gate import Ancestry, Hold, Reason, Seen, clock
from domain.request import Origin, Request, State
from domain.trouble import second_look

NOW = 1_700_000_000_000
AT = "2023-11-14 22:13:20 UTC"


def a_request(number: int, uri: str, origin: Origin = Origin.HEAD) -> Request:
    return Request("main", number, number, 1, uri, origin, State.ACCEPTED, NOW, deadline_at=NOW)


BUILD = Build("fake", "b/3", 3, 1, Status.RUNNING, NOW)
FLIGHTS = (Flight(a_request(3, "c")), Flight(a_request(4, "d", Origin.PROBE), 1, BUILD))
A = f"request/main/5 (e) waits since {AT}"
SENTENCES = {
    Reason.NOTHING_WAITS: "nothing waits; in flight: request/main/3 and request/main/4",
    Reason.PAUSED: f"{A}: the queue is paused by ada since {AT} (release); "
    "`lastgreen resume` admits it",
    Reason.NO_FREE_SLOT: f"{A} for a slot held by request/main/3 and request/main/4",
    Reason.SAME_COMMIT: f"{A} for request/main/3 and request/main/4, an attempt at the same commit "
    "that is in flight: its fact is adopted",
    Reason.NOT_ON_TOP: f"{A} until nothing is in flight that it is not on top of: request/main/3 "
    "(c) is no ancestor of it and request/main/4 (d) may be no ancestor of it",
    Reason.NOT_CONFIGURED: "the queue is not configured: heads wait until it is again",
    Reason.SOURCE_CONTROL: f"{A} for source control to say what it descends from",
    Reason.NEXT: f"{A} for the queue's next turn, which admits it",
}


@pytest.mark.parametrize("reason", Reason)
def test_every_reason_is_a_sentence_that_names_who_waits_and_for_whom(reason: Reason) -> None:
    waiting = None if reason is Reason.NOT_CONFIGURED else 5
    hold = Hold(reason, waiting, (3, 4), NOW, "no unknown")
    gate = Gate("main", hold, [a_request(5, "e")], FLIGHTS, Pause("release", "ada", NOW))
    held, *others = gate.lines()
    assert held.sentence == SENTENCES[reason]
    assert ("paused" in {line.kind for line in others}) is (reason is not Reason.PAUSED)
    assert [line.request for line in others if line.kind == "in_flight"] == [
        "request/main/3",
        "request/main/4",
    ]


def test_an_idle_queue_says_so() -> None:
    (line,) = Gate("main", Hold(Reason.NOTHING_WAITS)).lines()
    assert line.sentence == "idle: the newest head is done"
    assert clock(0) == "1970-01-01 00:00:00 UTC"


def test_of_many_requests_the_first_are_named_and_the_rest_are_counted() -> None:
    hold = Hold(Reason.NO_FREE_SLOT, 30, tuple(range(1, 13)))
    held, *_, last = Gate("main", hold, [a_request(30, "e")], more=7).lines()
    assert held.sentence.endswith("request/main/10 and 2 more")
    assert last.sentence == "and 7 more: `lastgreen explain main`"


def test_a_queue_that_moves_on_while_it_is_read_says_so() -> None:
    (line,) = Gate("main", Hold(Reason.NEXT, 5)).lines()
    assert line.sentence == "the queue moves on just now: ask again"


def test_who_asked_for_a_build_of_its_own_adopts_no_fact() -> None:
    retry = a_request(5, "e", Origin.RETRY)
    hold = Hold(Reason.SAME_COMMIT, 5, (9,))
    (line,) = Gate("main", hold, [retry]).lines()
    assert line.sentence == (
        f"{A} for request/main/9, an attempt at the same commit that owes its record: "
        "it is built after that"
    )


def test_a_second_look_names_every_doubt() -> None:
    seen = Seen("b", None, "a", Ancestry.UNKNOWN, named_before=True)
    assert second_look(seen, NOW).sentence == (
        "sees b, which may be stale: nobody knows whether it descends from a and the queue has "
        f"named it before; looks again at {AT}, and what waits is admitted meanwhile"
    )
