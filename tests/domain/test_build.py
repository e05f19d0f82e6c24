"""The judge of a build, over every combination of what it looks at."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise, product
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from domain.build import (
    RANK,
    Again,
    Cancel,
    Judgement,
    Settle,
    Status,
    Wait,
    Watched,
    forward,
    judge,
    parse_status,
)
from domain.request import Cause, State, Why, is_arrow

NOW: Final = 100
TIMES: Final = (NOW - 1, NOW, NOW + 1)
LIMITS: Final = (NOW - 1, NOW, NOW + 1, NOW + 2)
FINAL: Final = (Status.SUCCEEDED, Status.FAILED, Status.CANCELLED)
STEPS: Final = {
    Status.ACCEPTED: [Status.RUNNING, *FINAL],
    Status.RUNNING: [*FINAL],
    Status.SUCCEEDED: [],
    Status.FAILED: [],
    Status.CANCELLED: [],
}


def test_a_status_goes_forward_only() -> None:
    for stored, answer in product(Status, [None, *Status]):
        stands = answer if answer in STEPS[stored] else stored
        assert forward(stored, answer) is stands


@pytest.mark.spec("V15")
@given(answers=st.lists(st.sampled_from([*map(str, Status), "lost", "queued", "", "RUNNING"])))
def test_a_status_never_goes_back_nor_becomes_unknown(answers: list[str]) -> None:
    stored = [Status.ACCEPTED]
    for text in answers:
        stored.append(forward(stored[-1], parse_status(text)))
    assert set(stored) <= set(Status)
    for before, after in pairwise(stored):
        assert RANK[after] >= RANK[before]
        assert after is before or before not in FINAL


def test_only_the_five_words_are_statuses() -> None:
    assert [parse_status(word) for word in map(str, Status)] == list(Status)
    for word in ("lost", "unknown", "", "Running", "success"):
        assert parse_status(word) is None


class Case:
    """One combination; ``status`` is what is known of the build now, by the rule of V15."""

    def __init__(self, build: Watched, said: Status | None) -> None:
        self.build = build
        self.status = said if said in STEPS[build.stored] else build.stored
        self.is_final = self.status in FINAL
        self.gives_up = build.ending is not None and build.give_up_at <= NOW
        self.given_up = build.ending is Why.START_TIMEOUT
        self.failed_before = build.failed_before is not None
        self.follows = judge(build, said, NOW)


def every_case() -> list[Case]:
    endings: list[Why | None] = [None, *Why]
    return [
        Case(
            Watched(stored, deadline, start_by, ending, give_up, 3, starts, confirmations, failed),
            said,
        )
        for stored, said, deadline, start_by, ending, give_up, starts, confirmations, failed in (
            product(
                Status,
                [None, *Status],
                LIMITS,
                LIMITS,
                endings,
                TIMES,
                (0, 1),
                (-1, 0, 1),
                (None, "build/1"),
            )
        )
    ]


@pytest.fixture(scope="module")
def cases() -> list[Case]:
    return every_case()


GREEN: Final = Settle(State.SUCCEEDED, Cause.BUILD_SUCCEEDED)
RED: Final = Settle(State.FAILED, Cause.BUILD_FAILED)
HEARD: Final[dict[Why | None, Judgement]] = {
    None: Settle(State.CANCELLED, Cause.BUILD_CANCELLED),
    Why.PERSON: Settle(State.CANCELLED, Cause.CANCELLED_BY_PERSON),
    Why.VALIDATION_TIMEOUT: Settle(State.FAILED, Cause.VALIDATION_TIMEOUT),
}
"""What the answer *cancelled* means, by who had asked for it."""


def green_is_what_succeeded(case: Case) -> bool:
    succeeded = case.status is Status.SUCCEEDED and not case.given_up
    return (case.follows == GREEN) is succeeded


def a_failure_is_red_or_confirmed(case: Case) -> bool:
    if case.status is not Status.FAILED or case.given_up:
        return case.follows != Again("confirm")
    confirmed = case.build.confirmations > 0 and case.build.ending is None
    return case.follows == (Again("confirm") if confirmed else RED)


def red_needs_a_build_that_failed(case: Case) -> bool:
    return case.follows != RED or case.status is Status.FAILED or case.failed_before


def cancelled_means_what_was_asked(case: Case) -> bool:
    if case.status is not Status.CANCELLED or case.given_up:
        return True
    stands = case.failed_before and case.build.ending is not Why.PERSON
    return case.follows == (RED if stands else HEARD[case.build.ending])


def nobody_is_said_to_have_asked_who_did_not(case: Case) -> bool:
    if not isinstance(case.follows, Settle):
        return True
    asked = {
        Cause.BUILD_CANCELLED: None,
        Cause.CANCELLED_BY_PERSON: Why.PERSON,
        Cause.VALIDATION_TIMEOUT: Why.VALIDATION_TIMEOUT,
        Cause.NEVER_STARTED: Why.START_TIMEOUT,
    }
    cause = case.follows.cause
    return cause not in asked or case.build.ending is asked[cause]


def what_was_given_up_never_settles_by_its_own_answer(case: Case) -> bool:
    if not case.given_up:
        return case.follows != Again("never_started")
    if not (case.is_final or case.gives_up):
        return isinstance(case.follows, Wait)
    if case.build.starts_left > 0:
        return case.follows == Again("never_started")
    never = Settle(State.FAILED, Cause.NEVER_STARTED)
    return case.follows == (RED if case.failed_before else never)


def a_cancel_without_an_answer_is_waited_for_and_then_believed(case: Case) -> bool:
    ending = case.build.ending
    if ending is None or case.given_up or case.is_final:
        return True
    if not case.gives_up:
        return case.follows == Wait(case.build.give_up_at)
    stands = case.failed_before and ending is not Why.PERSON
    return case.follows == (RED if stands else HEARD[ending])


def the_first_limit_that_passed_cancels_once(case: Case) -> bool:
    late = case.build.deadline <= NOW
    unstarted = case.status is Status.ACCEPTED and case.build.start_by <= NOW
    if case.build.ending is not None or case.is_final or not (late or unstarted):
        return not isinstance(case.follows, Cancel)
    return case.follows == Cancel(Why.VALIDATION_TIMEOUT if late else Why.START_TIMEOUT)


def who_is_on_time_is_asked_again_before_any_limit_passes(case: Case) -> bool:
    if not isinstance(case.follows, Wait):
        return True
    limits = [case.build.deadline]
    limits += [case.build.start_by] if case.status is Status.ACCEPTED else []
    limits = limits if case.build.ending is None else [case.build.give_up_at]
    return case.follows == Wait(min(limits)) and case.follows.until > NOW


def every_settling_is_an_arrow(case: Case) -> bool:
    end = case.follows
    return not isinstance(end, Settle) or is_arrow(State.PROCESSING, end.state, end.cause)


def a_final_answer_is_never_waited_on(case: Case) -> bool:
    return not case.is_final or isinstance(case.follows, Settle | Again)


STATEMENTS: Final = (
    green_is_what_succeeded,
    a_failure_is_red_or_confirmed,
    red_needs_a_build_that_failed,
    cancelled_means_what_was_asked,
    nobody_is_said_to_have_asked_who_did_not,
    what_was_given_up_never_settles_by_its_own_answer,
    a_cancel_without_an_answer_is_waited_for_and_then_believed,
    the_first_limit_that_passed_cancels_once,
    who_is_on_time_is_asked_again_before_any_limit_passes,
    every_settling_is_an_arrow,
    a_final_answer_is_never_waited_on,
)


@pytest.mark.parametrize("holds", STATEMENTS, ids=lambda holds: holds.__name__)
def test_of_every_build(holds: Callable[[Case], bool], cases: list[Case]) -> None:
    for case in cases:
        assert holds(case), (case.build, case.status, case.follows)


@pytest.mark.spec("V372")
@pytest.mark.parametrize("verdict", [Status.SUCCEEDED, Status.FAILED])
@pytest.mark.parametrize("why", [None, Why.PERSON, Why.VALIDATION_TIMEOUT, Why.START_TIMEOUT])
def test_a_cancel_is_told_by_its_intent_and_a_verdict_after_it_stands(
    why: Why | None, verdict: Status
) -> None:
    for now, stored in product((0, NOW, 10**9), (Status.ACCEPTED, Status.RUNNING)):
        for starts_left in (0, 1):
            build = Watched(stored, NOW, NOW, why, NOW, starts_left=starts_left)
            cancelled = judge(build, Status.CANCELLED, now)
            said = judge(build, verdict, now)
            if why is Why.START_TIMEOUT:
                never = Settle(State.FAILED, Cause.NEVER_STARTED)
                assert cancelled == said == (Again("never_started") if starts_left else never)
            else:
                assert cancelled == HEARD[why]
                assert said == (GREEN if verdict is Status.SUCCEEDED else RED)
