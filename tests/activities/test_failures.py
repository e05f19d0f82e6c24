from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from activities.failures import BUDGETS, Series

DUE = 90.0
"""The wait before an attempt and the limit of the call: what a gap may count for."""


@pytest.mark.spec("V370")
def test_time_in_which_no_worker_tried_is_not_spent() -> None:
    """That no schedule-to-close timeout ends a stage is told by the stories of a runner out."""
    minute = 60.0
    series = Series(0, 0)
    for at in range(0, 121, 30):  # two minutes of failed answers
        series = series.after(at, 30)
    assert series.spent == 2 * minute
    series = series.after(6 * 3600.0, 30)  # six hours later, the next failed answer
    for at in range(30, 7 * 60 + 1, 30):
        series = series.after(6 * 3600.0 + at, 30)
    assert series.spent <= 2 * minute + 30 + 7 * minute
    assert all(budget >= 600 for _, budget in BUDGETS.values())
    assert series.spent < 600
    for at in range(30, 60 * 6, 30):
        series = series.after(6 * 3600.0 + 7 * minute + at, 30)
    assert series.spent > 600


@given(gaps=st.lists(st.floats(0, 1e6), max_size=50))
def test_a_series_spends_no_more_than_was_due_and_no_more_than_passed(gaps: list[float]) -> None:
    series, now = Series(0, 0), 0.0
    for gap in gaps:
        now += gap
        series = series.after(now, DUE)
    assert 0 <= series.spent <= min(now, DUE * len(gaps)) + 1e-6
    assert series.last == now


def test_a_clock_that_goes_back_spends_nothing() -> None:
    assert Series(5, 100).after(50, DUE) == Series(5, 50)
