"""States and the one table of endings, against the table of the specification."""

from __future__ import annotations

from itertools import product

import pytest

from domain.build import Status
from domain.request import ENDINGS, VERDICTS, Cause, Origin, State, is_arrow, may_hold

TABLE = {
    "superseded_by_newer_head": ("A", "U"),
    "adopted_fact": ("A", "SF"),
    "build_succeeded": ("P", "S"),
    "build_failed": ("P", "F"),
    "build_cancelled": ("P", "C"),
    "cancelled_by_person": ("AP", "C"),
    "trigger_failed": ("P", "F"),
    "never_started": ("P", "F"),
    "polling_exhausted": ("P", "F"),
    "validation_timeout": ("P", "F"),
    "processing_failed": ("AP", "F"),
}
LETTERS = {
    "A": State.ACCEPTED,
    "P": State.PROCESSING,
    "U": State.SUPERSEDED,
    "S": State.SUCCEEDED,
    "F": State.FAILED,
    "C": State.CANCELLED,
}
SAYS = {
    "validation.repository.cancelled": {"build_cancelled", "cancelled_by_person"},
    "validation.repository.abandoned": {
        "trigger_failed",
        "never_started",
        "polling_exhausted",
        "validation_timeout",
        "processing_failed",
    },
}


def states(letters: str) -> list[State]:
    return [LETTERS[letter] for letter in letters]


def test_the_lists_are_closed() -> None:
    assert sorted(Cause) == sorted(TABLE)
    assert sorted(State) == sorted(LETTERS.values())
    assert sorted(Origin) == ["auto_retry", "head", "probe", "retry"]
    assert set(ENDINGS) == set(Cause)


@pytest.mark.spec("V11")
def test_terminal_and_outcome() -> None:
    terminal = {State.SUPERSEDED, State.SUCCEEDED, State.FAILED, State.CANCELLED}
    assert {state for state in State if state.is_terminal} == terminal
    assert {state for state in State if state.has_outcome} == terminal - {State.SUPERSEDED}
    ended = {Status.SUCCEEDED, Status.FAILED, Status.CANCELLED}
    assert {status for status in Status if status.is_terminal} == ended


@pytest.mark.spec("V13")
@pytest.mark.parametrize("origin", Origin)
def test_exactly_the_pairs_of_the_table_of_endings_stand(origin: Origin) -> None:
    for cause, state in product([None, *Cause], State):
        if cause is None:
            expected = state in (State.ACCEPTED, State.PROCESSING)
        else:
            expected = state in states(TABLE[cause][1])
            probe = origin is Origin.PROBE
            expected &= not (probe and cause in ("superseded_by_newer_head", "adopted_fact"))
        assert may_hold(origin, state, cause) is expected


@pytest.mark.spec("V14")
def test_exactly_the_arrows_of_the_table_of_endings_exist() -> None:
    for source, target, cause in product(State, State, [None, *Cause]):
        if cause is None:
            expected = (source, target) == (State.ACCEPTED, State.PROCESSING)
        else:
            leaves, enters = TABLE[cause]
            expected = source in states(leaves) and target in states(enters)
        assert is_arrow(source, target, cause) is expected
        assert not (source.is_terminal and is_arrow(source, target, cause))


@pytest.mark.parametrize("cause", Cause)
def test_what_an_ending_says_and_leaves_behind(cause: Cause) -> None:
    ending = ENDINGS[cause]
    said = [kind for kind, causes in SAYS.items() if cause in causes]
    assert ending.says == (said[0] if said else None)
    assert ending.dead_letter is (ending.says == "validation.repository.abandoned")
    retried = ("trigger_failed", "never_started", "polling_exhausted")
    assert ending.tried_again is (cause in retried)
    verdict = cause in ("adopted_fact", "build_succeeded", "build_failed")
    assert cause.has_verdict is verdict
    assert (cause in VERDICTS) is verdict
