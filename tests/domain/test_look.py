"""What one look at the ref means, and how a wait is put into words."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from domain.gate import Ancestry, Seen, plausible_time

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
