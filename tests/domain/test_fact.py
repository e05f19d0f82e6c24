"""What a fact is, and which one of several decides."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from domain.errors import Malformed
from domain.fact import Exit, Fact, Verdict, answer, authoritative, degree
from domain.request import Cause


def fact(request: int, value: float) -> Fact:
    cause = Cause.BUILD_FAILED if value else Cause.BUILD_SUCCEEDED
    return Fact("a", "", request, value, cause, 100 - request)


@pytest.mark.spec("V12")
@pytest.mark.parametrize(
    ("value", "verdict"),
    [
        (0.0, Verdict.GREEN),
        (0.000001, Verdict.PARTLY),
        (0.5, Verdict.PARTLY),
        (0.999999, Verdict.PARTLY),
        (1.0, Verdict.BROKEN),
    ],
)
def test_only_a_degree_of_zero_is_green(value: float, verdict: Verdict) -> None:
    assert degree(value) == value
    assert fact(1, value).is_green is (value == 0)
    assert fact(1, value).verdict is verdict


@pytest.mark.spec("V12")
def test_nothing_is_green_by_omission() -> None:
    for bad in (-0.1, 1.1, float("nan"), float("inf"), float("-inf")):
        with pytest.raises(Malformed):
            fact(1, bad)
    with pytest.raises(TypeError):
        Fact("a", "", 1, cause=Cause.BUILD_FAILED, created_at=1)  # type: ignore[call-arg] # the point


@pytest.mark.parametrize("cause", Cause)
def test_only_a_verdict_of_a_build_makes_a_fact(cause: Cause) -> None:
    if cause in (Cause.BUILD_SUCCEEDED, Cause.BUILD_FAILED):
        assert Fact("a", "", 1, 0.5, cause, 1).cause is cause
    else:
        with pytest.raises(Malformed):
            Fact("a", "", 1, 0.0, cause, 1)


FACTS = st.lists(
    st.builds(fact, st.integers(1, 50), st.sampled_from([0.0, 0.000001, 0.5, 1.0])),
    unique_by=lambda one: one.request,
)


@given(facts=FACTS)
def test_the_newest_green_fact_else_the_newest_decides(facts: list[Fact]) -> None:
    decides = authoritative(facts)
    greens = [one.request for one in facts if one.degree == 0]
    expected = max(greens or [one.request for one in facts], default=None)
    assert (decides and decides.request) == expected


@given(facts=FACTS, data=st.data())
def test_the_order_in_which_facts_are_read_decides_nothing(
    facts: list[Fact], data: st.DataObject
) -> None:
    shuffled = data.draw(st.permutations(facts))
    assert authoritative(shuffled) == authoritative(facts)


@given(facts=FACTS, late=st.integers(51, 60), value=st.sampled_from([0.000001, 0.5, 1.0]))
def test_what_is_green_stays_green(facts: list[Fact], late: int, value: float) -> None:
    before = authoritative(facts)
    after = authoritative([*facts, fact(late, value)])
    if before is not None and before.is_green:
        assert after == before
    else:
        assert after == fact(late, value)


def test_no_fact_is_not_green() -> None:
    for under_way in (True, False):
        assert answer(fact(1, 0.0), under_way=under_way) is Exit.GREEN
        assert answer(fact(1, 0.000001), under_way=under_way) is Exit.BROKEN
        assert answer(fact(1, 1.0), under_way=under_way) is Exit.BROKEN
    assert answer(None, under_way=True) is Exit.PENDING
    assert answer(None, under_way=False) is Exit.UNKNOWN


def test_exit_codes_are_a_promise() -> None:
    assert {code.name.lower(): int(code) for code in Exit} == {
        "green": 0,
        "broken": 1,
        "usage": 2,
        "unknown": 3,
        "not_allowed": 4,
        "pending": 8,
        "unreachable": 69,
        "internal": 70,
    }
