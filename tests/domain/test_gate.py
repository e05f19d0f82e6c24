"""The gate and the look: pure decisions over what is known."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import product
from typing import Final

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
    Pair,
    Reason,
    Seen,
    View,
    Waiting,
    is_kept,
    next_step,
)
from domain.request import Origin, Strategy

X: Final = "x"
GREEN_END: Final = "base"
"""The URI of the first that waits; A, B fly, G is another green one."""
FLIGHTS: Final[tuple[list[Flying], ...]] = (
    [],
    [Flying(1, "a", 70)],
    [Flying(1, "a", 70), Flying(2, "b", 60)],
    [Flying(1, "a", 70), Flying(2, "b", 60, Origin.PROBE)],
)
ANSWERS: Final = [None, *Ancestry]


@dataclass(frozen=True)
class Case:
    view: View
    known: Mapping[Pair, Ancestry]
    step: Ask | Hold | Adopt | Admit

    @property
    def first(self) -> Waiting:
        return self.view.waiting[0]

    @property
    def adopts(self) -> bool:
        return self.first.has_fact and self.first.origin in (Origin.HEAD, Origin.AUTO_RETRY)

    @property
    def is_probe(self) -> bool:
        return self.first.origin is Origin.PROBE

    @property
    def is_kept(self) -> bool:
        """Whatever the slots are."""
        return self.view.paused is not None or self.adopts or self.first.rival is not None

    @property
    def holders(self) -> list[Flying]:
        """Who holds the slot that it waits for: probes never run beside each other."""
        if len(self.view.in_flight) >= self.view.cap:
            return list(self.view.in_flight)
        probes = [f for f in self.view.in_flight if f.origin is Origin.PROBE]
        return probes if self.is_probe else []

    @property
    def is_free(self) -> bool:
        """Only what it descends from is still to be asked."""
        return not (self.is_kept or self.holders or self.is_probe)

    @property
    def heads(self) -> list[Flying]:
        return [f for f in self.view.in_flight if f.origin is not Origin.PROBE]

    def descends_from(self, uri: str) -> Ancestry | None:
        return self.known.get((uri, X))

    @property
    def bases(self) -> set[str]:
        green = self.view.last_green
        return {flying.uri for flying in self.heads} | ({green} if green else set())


def every_case() -> Iterator[Case]:
    firsts = [
        Waiting(5, X, origin, has_fact, rival, GREEN_END if origin is Origin.PROBE else None)
        for origin, has_fact, rival in product(Origin, (False, True), (None, 3))
    ]
    answers = list(product(ANSWERS, repeat=3))
    for first, flying, green, cap, paused in product(
        firsts, FLIGHTS, (None, "a", "g"), (1, 2, 3), (None, "release")
    ):
        view = View([first], flying, green, cap, paused)
        for said in answers:
            pairs = zip(("a", "b", "g"), said, strict=True)
            known = {(uri, X): answer for uri, answer in pairs if answer is not None}
            yield Case(view, known, next_step(view, known))


@pytest.fixture(scope="module")
def cases() -> list[Case]:
    return list(every_case())


def a_pause_holds_everything(case: Case) -> bool:
    held = Hold(Reason.PAUSED, 5, detail="release")
    return (case.step == held) is (case.view.paused is not None)


def a_fact_is_adopted_and_only_by_who_did_not_ask_for_a_build(case: Case) -> bool:
    return (case.step == Adopt(5)) is (case.adopts and case.view.paused is None)


def nobody_is_built_beside_an_attempt_at_the_same_commit(case: Case) -> bool:
    waits = case.first.rival is not None and case.view.paused is None and not case.adopts
    return (case.step == Hold(Reason.SAME_COMMIT, 5, (3,))) is waits


def without_a_free_slot_it_waits_for_who_holds_them_since_the_oldest(case: Case) -> bool:
    held = isinstance(case.step, Hold) and case.step.reason is Reason.NO_FREE_SLOT
    if case.is_kept or not case.holders:
        return not held
    since = 60 if any(holder.number == 2 for holder in case.holders) else 70
    who = tuple(holder.number for holder in case.holders)
    return case.step == Hold(Reason.NO_FREE_SLOT, 5, who, since)


def a_probe_is_built_on_the_green_end_of_its_range_and_asks_nothing(case: Case) -> bool:
    if not case.is_probe or case.is_kept or case.holders:
        return True
    return case.step == Admit(5, Strategy.INCREMENTAL, GREEN_END)


def what_is_not_known_is_asked_and_nothing_else(case: Case) -> bool:
    missing = {(uri, X) for uri in case.bases if case.descends_from(uri) is None}
    if not case.is_free or not missing:
        return not isinstance(case.step, Ask)
    return (
        isinstance(case.step, Ask)
        and case.step.request == 5
        and set(case.step.pairs) == missing
        and len(case.step.pairs) == len(missing)
    )


def who_is_not_on_top_of_all_in_flight_waits_for_those(case: Case) -> bool:
    strangers = tuple(
        flying.number for flying in case.heads if case.descends_from(flying.uri) is not Ancestry.YES
    )
    asks = any(case.descends_from(uri) is None for uri in case.bases)
    if not case.is_free or asks or not strangers:
        return not (isinstance(case.step, Hold) and case.step.reason is Reason.NOT_ON_TOP)
    said = [case.descends_from(flying.uri) for flying in case.heads]
    detail = " ".join(answer for answer in said if answer not in (None, Ancestry.YES))
    return case.step == Hold(Reason.NOT_ON_TOP, 5, strangers, detail=detail)


def who_may_be_admitted_is_built_on_a_green_ancestor_or_in_full(case: Case) -> bool:
    asks = any(case.descends_from(uri) is None for uri in case.bases)
    on_top = all(case.descends_from(f.uri) is Ancestry.YES for f in case.heads)
    if case.is_probe:
        return True
    if not (case.is_free and on_top and not asks):
        return not isinstance(case.step, Admit)
    green = case.view.last_green
    plans = {
        Ancestry.YES: Admit(5, Strategy.INCREMENTAL, green),
        Ancestry.NO: Admit(5, Strategy.FULL, None, "rewritten"),
        Ancestry.UNKNOWN: Admit(5, Strategy.FULL, None, "unknown_ancestry"),
        None: Admit(5, Strategy.FULL, None),
    }
    return case.step == plans[case.descends_from(green) if green else None]


STATEMENTS: Final = (
    a_pause_holds_everything,
    a_fact_is_adopted_and_only_by_who_did_not_ask_for_a_build,
    nobody_is_built_beside_an_attempt_at_the_same_commit,
    without_a_free_slot_it_waits_for_who_holds_them_since_the_oldest,
    a_probe_is_built_on_the_green_end_of_its_range_and_asks_nothing,
    what_is_not_known_is_asked_and_nothing_else,
    who_is_not_on_top_of_all_in_flight_waits_for_those,
    who_may_be_admitted_is_built_on_a_green_ancestor_or_in_full,
)


@pytest.mark.parametrize("holds", STATEMENTS, ids=lambda holds: holds.__name__)
def test_of_every_view(holds: Callable[[Case], bool], cases: list[Case]) -> None:
    for case in cases:
        assert holds(case), (case.view, case.known, case.step)


URIS: Final = list("abcdefgh")
VIEWS = st.builds(
    View,
    waiting=st.lists(
        st.builds(
            Waiting,
            number=st.integers(10, 40),
            uri=st.sampled_from(URIS),
            origin=st.sampled_from(Origin),
            has_fact=st.booleans(),
            rival=st.none() | st.integers(1, 9),
        ),
        max_size=4,
    ),
    in_flight=st.lists(
        st.builds(
            Flying,
            number=st.integers(1, 9),
            uri=st.sampled_from(URIS),
            admitted_at=st.integers(1, 9),
            origin=st.sampled_from([Origin.HEAD, Origin.PROBE]),
        ),
        max_size=4,
    ),
    last_green=st.none() | st.sampled_from(URIS),
    cap=st.integers(1, 5),
    paused=st.sampled_from([None, None, "release"]),
)
KNOWN = st.dictionaries(
    st.tuples(st.sampled_from(URIS), st.sampled_from(URIS)), st.sampled_from(Ancestry)
)
Answers = dict[Pair, Ancestry]


@given(view=VIEWS, known=KNOWN)
def test_nothing_overtakes_the_first_that_waits(view: View, known: Answers) -> None:
    alone = replace(view, waiting=view.waiting[:1])
    step = next_step(view, known)
    assert step == next_step(alone, known)
    if view.waiting:
        number = step.waiting if isinstance(step, Hold) else step.request
        assert number == view.waiting[0].number
    else:
        who = tuple(flying.number for flying in view.in_flight)
        assert step == Hold(Reason.NOTHING_WAITS, who=who, detail=view.paused or "")


@given(view=VIEWS, known=KNOWN, answer=st.sampled_from(Ancestry))
def test_one_answer_to_a_question_is_enough(view: View, known: Answers, answer: Ancestry) -> None:
    step = next_step(view, known)
    if isinstance(step, Ask):
        assert step.pairs
        assert not set(step.pairs) & known.keys()
        answered = known | dict.fromkeys(step.pairs, answer)
        assert not isinstance(next_step(view, answered), Ask)


def renamed(view: View, names: Mapping[str, str]) -> View:
    return replace(
        view,
        waiting=[replace(one, uri=names[one.uri]) for one in view.waiting],
        in_flight=[replace(one, uri=names[one.uri]) for one in view.in_flight],
        last_green=names[view.last_green] if view.last_green is not None else None,
    )


def pairs_renamed(step: Ask | Hold | Adopt | Admit, names: Mapping[str, str]) -> object:
    """The step with its URIs renamed; the order of questions means nothing."""
    if isinstance(step, Ask):
        return step.request, {(names[older], names[newer]) for older, newer in step.pairs}
    if isinstance(step, Admit) and step.base is not None:
        return replace(step, base=names[step.base])
    return step


ANY_URI = st.text(st.characters(exclude_categories=["Cc", "Cs"]), min_size=1, max_size=12)


@pytest.mark.spec("V80")
@given(view=VIEWS, known=KNOWN, uris=st.lists(ANY_URI, min_size=8, max_size=8, unique=True))
def test_whatever_uris_look_like_the_decision_is_the_same(
    view: View, known: Answers, uris: list[str]
) -> None:
    names = dict(zip(URIS, uris, strict=True))
    same = {uri: uri for uri in uris}
    known_by = {(names[older], names[newer]): said for (older, newer), said in known.items()}
    step = next_step(renamed(view, names), known_by)
    assert pairs_renamed(step, same) == pairs_renamed(next_step(view, known), names)
    for uri, head in product(URIS[:2], [*URIS[:2], None]):
        was = Seen(uri, None, head, Ancestry.YES, named_before=False)
        now = replace(was, uri=names[uri], head=names[head] if head else None)
        assert (was.is_same, was.is_doubtful) == (now.is_same, now.is_doubtful)


@pytest.mark.spec("V42")
@given(count=st.integers(1, 12), cap=st.integers(1, 4), rewritten=st.booleans())
def test_the_newest_head_is_kept_and_older_ones_only_within_the_cap(
    count: int, cap: int, *, rewritten: bool
) -> None:
    kept = [is_kept(newer, cap, rewritten=rewritten) for newer in range(count)]
    assert kept == [newer == 0 or (newer < cap and not rewritten) for newer in range(count)]


@pytest.mark.spec("V195")
def test_as_many_heads_are_kept_as_there_are_slots() -> None:
    def kept(heads: str, cap: int) -> str:
        newer = range(len(heads) - 1, -1, -1)
        pairs = zip(heads, newer, strict=True)
        return "".join(head for head, n in pairs if is_kept(n, cap, rewritten=False))

    assert kept("CD", 2) == "CD"
    assert kept("CDE", 2) == "DE"
    assert kept("CDE", 3) == "CDE"
    assert kept("CDEF", 3) == "DEF"
