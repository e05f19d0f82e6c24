from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from domain.gate import (
    Admit,
    Adopt,
    Ancestry,
    Ask,
    Flying,
    Hold,
    Reason,
    View,
    Waiting,
    is_kept,
    next_step,
    sentence,
)
from domain.request import Origin, Strategy

URIS = [chr(ord("a") + n) for n in range(8)]
WAITING = st.lists(
    st.builds(
        Waiting,
        number=st.integers(10, 40),
        uri=st.sampled_from(URIS),
        origin=st.sampled_from([Origin.HEAD, Origin.RETRY, Origin.AUTO_RETRY]),
        has_fact=st.booleans(),
        rival=st.none() | st.integers(1, 9),
    ),
    max_size=4,
)
FLYING = st.lists(
    st.builds(
        Flying,
        number=st.integers(1, 9),
        uri=st.sampled_from(URIS),
        admitted_at=st.integers(1, 9),
    ),
    max_size=4,
)
VIEWS = st.builds(
    View,
    waiting=WAITING,
    in_flight=FLYING,
    last_green=st.none() | st.sampled_from(URIS),
    cap=st.integers(1, 4),
    paused=st.sampled_from([None, None, "release"]),
)
KNOWN = st.dictionaries(
    st.tuples(st.sampled_from(URIS), st.sampled_from(URIS)), st.sampled_from(Ancestry)
)


@given(view=VIEWS, known=KNOWN)
def test_only_the_first_that_waits_is_ever_admitted_adopted_or_asked_about(
    view: View, known: dict[tuple[str, str], Ancestry]
) -> None:
    step = next_step(view, known)
    if isinstance(step, Admit | Adopt | Ask):
        assert step.request == view.waiting[0].number
        assert view.paused is None
    elif step.reason is not Reason.NOTHING_WAITS:
        assert step.waiting == view.waiting[0].number


@given(view=VIEWS, known=KNOWN)
def test_nobody_is_admitted_without_a_free_slot_or_beside_a_stranger(
    view: View, known: dict[tuple[str, str], Ancestry]
) -> None:
    step = next_step(view, known)
    if not isinstance(step, Admit):
        return
    first = view.waiting[0]
    assert len(view.in_flight) < view.cap
    assert first.rival is None
    assert all(known[f.uri, first.uri] is Ancestry.YES for f in view.in_flight)
    assert not (first.has_fact and first.origin is not Origin.RETRY)


@given(view=VIEWS, known=KNOWN)
def test_an_incremental_build_starts_from_a_green_ancestor_and_doubt_means_full(
    view: View, known: dict[tuple[str, str], Ancestry]
) -> None:
    step = next_step(view, known)
    if not isinstance(step, Admit):
        return
    base, uri = view.last_green, view.waiting[0].uri
    on_top = base is not None and known[base, uri] is Ancestry.YES
    assert step.base == (base if on_top else None)
    assert step.strategy is (Strategy.INCREMENTAL if on_top else Strategy.FULL)
    assert bool(step.fallback) is (base is not None and not on_top)


@given(view=VIEWS, known=KNOWN)
def test_a_question_names_only_pairs_that_are_not_known_and_its_answer_ends_it(
    view: View, known: dict[tuple[str, str], Ancestry]
) -> None:
    step = next_step(view, known)
    if isinstance(step, Ask):
        assert step.pairs
        assert not set(step.pairs) & known.keys()
        answered = known | dict.fromkeys(step.pairs, Ancestry.YES)
        assert not isinstance(next_step(view, answered), Ask)


@given(view=VIEWS)
def test_what_may_be_admitted_is(view: View) -> None:
    """With every answer yes, only these reasons may hold the first one back."""
    known = dict.fromkeys(product(URIS, URIS), Ancestry.YES)
    step = next_step(view, known)
    first = view.waiting[0] if view.waiting else None
    if first is None:
        assert isinstance(step, Hold)
        assert step.reason is Reason.NOTHING_WAITS
    elif view.paused:
        assert isinstance(step, Hold)
        assert (step.reason, step.detail) == (Reason.PAUSED, "release")
    elif first.has_fact and first.origin is not Origin.RETRY:
        assert isinstance(step, Adopt)
    elif first.rival is not None:
        assert step == Hold(Reason.SAME_COMMIT, first.number, (first.rival,))
    elif len(view.in_flight) >= view.cap:
        assert isinstance(step, Hold)
        assert step.reason is Reason.NO_FREE_SLOT
        assert step.since == min(f.admitted_at for f in view.in_flight)
        assert step.who == tuple(f.number for f in view.in_flight)
    else:
        assert isinstance(step, Admit)


def test_a_head_waits_for_those_it_is_not_on_top_of() -> None:
    view = View([Waiting(5, "x")], [Flying(1, "a", 1), Flying(2, "b", 1)], None, 3)
    known = {("a", "x"): Ancestry.YES, ("b", "x"): Ancestry.UNKNOWN}
    assert next_step(view, known) == Hold(Reason.NOT_ON_TOP, 5, (2,))


@pytest.mark.spec("V42")
@given(count=st.integers(1, 12), cap=st.integers(1, 4), rewritten=st.booleans())
def test_the_newest_head_is_kept_and_older_ones_only_within_the_cap(
    count: int, cap: int, *, rewritten: bool
) -> None:
    kept = [is_kept(newer, cap, rewritten=rewritten) for newer in range(count)]
    assert kept[0]
    if rewritten:
        assert not any(kept[1:])
    else:
        assert kept == [newer < cap for newer in range(count)]


@pytest.mark.parametrize("reason", Reason)
def test_every_reason_is_a_sentence_that_names_who_waits_and_for_whom(reason: Reason) -> None:
    said = sentence("main", Hold(reason, 5, (3,), 12, "release"))
    assert "request/main/5" in said or reason in (Reason.NOTHING_WAITS, Reason.NOT_CONFIGURED)
    assert said == said.strip()
    assert "None" not in said
