"""What one look at the ref means, and how a wait is put into words."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from domain.gate import Ancestry, Hold, Reason, Seen, clock, plausible_time, sentence

NOW = 1_700_000_000_000
DAY = 86_400_000


def test_a_first_look_is_believed() -> None:
    for descends, named in product(Ancestry, (True, False)):
        seen = Seen("b", None, None, descends, named)
        assert not (seen.is_doubtful or seen.is_rewrite or seen.is_same)
        assert seen.confirm == 0


def test_a_look_is_believed_that_names_a_new_descendant_of_the_head() -> None:
    for descends, named in product(Ancestry, (True, False)):
        seen = Seen("b", None, "a", descends, named)
        assert seen.is_rewrite is (descends is not Ancestry.YES)
        assert seen.is_doubtful is (descends is not Ancestry.YES or named)
        assert not seen.is_same
    assert Seen("a", None, "a", Ancestry.YES, named_before=True).is_same


@given(seconds=st.none() | st.floats(allow_nan=True, allow_infinity=True))
def test_a_time_that_is_not_plausible_is_unknown(seconds: float | None) -> None:
    at = plausible_time(seconds, NOW)
    plausible = seconds is not None and 0 < seconds <= (NOW + DAY) / 1000
    assert at == (int(seconds * 1000) if plausible and seconds is not None else None)


@pytest.mark.parametrize(
    ("seconds", "at"),
    [
        (None, None),
        (0, None),
        (-1, None),
        (1.5, 1500),
        (NOW / 1000, NOW),
        ((NOW + DAY) / 1000, NOW + DAY),
        ((NOW + DAY + 1) / 1000, None),
        (float("nan"), None),
    ],
)
def test_a_commit_may_be_dated_until_a_day_from_now(seconds: float | None, at: int | None) -> None:
    assert plausible_time(seconds, NOW) == at


A = "request/main/5"
SENTENCES = {
    Reason.NOTHING_WAITS: "nothing waits; in flight: request/main/3 and request/main/4",
    Reason.PAUSED: f"{A} waits: the queue is paused (release); `lastgreen resume` admits it",
    Reason.NO_FREE_SLOT: f"{A} waits for a slot held by request/main/3 and request/main/4 "
    "since 2023-11-14 22:13:20 UTC",
    Reason.SAME_COMMIT: f"{A} waits for request/main/3 and request/main/4, an attempt at the "
    "same commit: its fact is adopted",
    Reason.NOT_ON_TOP: f"{A} waits until request/main/3 and request/main/4 is done: it is not "
    "on top of it",
    Reason.NOT_CONFIGURED: "the queue is not configured: heads wait until it is again",
    Reason.SOURCE_CONTROL: f"{A} waits for source control to say what it descends from",
    Reason.NEXT: f"{A} is admitted with the queue's next turn",
}


@pytest.mark.parametrize("reason", Reason)
def test_every_reason_is_a_sentence_that_names_who_waits_and_for_whom(reason: Reason) -> None:
    assert sentence("main", Hold(reason, 5, (3, 4), NOW, "release")) == SENTENCES[reason]


def test_an_idle_queue_says_so() -> None:
    assert sentence("main", Hold(Reason.NOTHING_WAITS)) == "idle: the newest head is done"
    assert clock(0) == "1970-01-01 00:00:00 UTC"
