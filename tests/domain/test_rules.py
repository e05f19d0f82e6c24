"""Rules of names, states, builds, facts and events; all pure."""

from __future__ import annotations

from itertools import pairwise, product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from domain.build import (
    ENDED_BY_US,
    RANK,
    Again,
    Cancel,
    Settle,
    Status,
    Wait,
    Watched,
    forward,
    judge,
    parse_status,
)
from domain.errors import Malformed
from domain.event import EventType, HookEvent
from domain.fact import Exit, Fact, answer, authoritative
from domain.gate import Ancestry, Seen, plausible_time
from domain.identity import (
    MAX_NUMBER,
    Fence,
    RequestId,
    build_id,
    commit_uri,
    idempotency_key,
    project_id,
    queue_name,
)
from domain.request import ENDINGS, Cause, Origin, State, Why, is_arrow, may_hold
from workflows import ids

QUEUES = st.lists(
    st.from_regex(r"[A-Za-z0-9._-]{1,12}", fullmatch=True).filter(lambda s: s not in (".", "..")),
    min_size=1,
    max_size=4,
).map("/".join)
NUMBERS = st.integers(1, MAX_NUMBER)


@pytest.mark.spec("V1", "V2")
@pytest.mark.parametrize(("older", "newer"), [(7, 10), (9, 10)])
def test_the_order_of_requests_is_numeric(older: int, newer: int) -> None:
    one, other = RequestId("main", older), RequestId("main", newer)
    assert one.is_older_than(other)
    assert not other.is_older_than(one)
    assert not one.is_older_than(one)
    assert one == RequestId("main", older)


@pytest.mark.spec("V3")
def test_ids_of_two_queues_have_no_order() -> None:
    with pytest.raises(Malformed):
        RequestId("a", 1).is_older_than(RequestId("b", 2))
    with pytest.raises(Malformed):
        RequestId.parse("request/a/b/3", queue="a")
    assert RequestId.parse("request/a/b/3", queue="a/b").number == 3


@pytest.mark.spec("V4")
@pytest.mark.parametrize(
    "number", ["", "0", "-3", "+3", "007", "1.0", "1_000", " 7", "\uff17", "abc", "7/x", str(2**63)]
)
def test_a_number_that_is_not_canonical_is_refused(number: str) -> None:
    with pytest.raises(Malformed):
        RequestId.parse(f"request/main/{number}")


@pytest.mark.spec("V4")
@pytest.mark.parametrize("number", [1, MAX_NUMBER])
def test_the_smallest_and_the_greatest_number_are_accepted(number: int) -> None:
    assert RequestId.parse(f"request/main/{number}").number == number


@pytest.mark.spec("V5")
@given(queue=QUEUES | st.just("a/3"), number=NUMBERS)
def test_an_id_that_is_written_and_parsed_is_the_same(queue: str, number: int) -> None:
    assert RequestId.parse(str(RequestId(queue, number))) == RequestId(queue, number)


@pytest.mark.spec("V6")
@pytest.mark.parametrize("name", ["main", "monorepo/main", "a.b/c-d_e", "a" * 200])
def test_good_queue_names(name: str) -> None:
    assert queue_name(name) == name


@pytest.mark.spec("V6")
@pytest.mark.parametrize(
    "name", ["", "/a", "a/", "a//b", "a/../b", "a/./b", "a b", "ä", "a" * 201, "a\n"]
)
def test_bad_queue_names_are_refused_with_the_reason(name: str) -> None:
    with pytest.raises(Malformed, match="queue name"):
        queue_name(name)


@pytest.mark.spec("V7")
@given(one=QUEUES, other=QUEUES, n=st.integers(1, 30), m=st.integers(1, 30))
def test_workflow_ids_of_different_kinds_differ(one: str, other: str, n: int, m: int) -> None:
    def kinds(queue: str, number: int) -> list[str]:
        return [
            ids.queue(queue),
            ids.build(queue, number),
            ids.buildsignal(queue, number, 1),
            ids.buildsignal(queue, number, 2),
            ids.record(queue, number),
            ids.hooks(queue, number),
            ids.watch(queue),
        ]

    for (i, a), (j, b) in product(enumerate(kinds(one, n)), enumerate(kinds(other, m))):
        assert i == j or a != b


@pytest.mark.spec("V10")
@pytest.mark.parametrize("uri", ["", "x" * 1025, "a\nb", "a\x00", "a\x7f", "\x85"])
def test_a_uri_is_refused_when_it_is_none(uri: str) -> None:
    with pytest.raises(Malformed):
        commit_uri(uri)


@pytest.mark.spec("V9", "V80")
@given(uri=st.text(st.characters(categories=["L", "N", "P", "S"]), min_size=1, max_size=200))
def test_a_uri_is_never_normalised(uri: str) -> None:
    assert commit_uri(uri) == uri
    assert commit_uri(uri + "/") != uri


def test_ids_of_builds_and_projects_have_limits() -> None:
    for parse in (build_id, project_id):
        assert parse("x" * 255) == "x" * 255
        for bad in ("", "x" * 256, "a\n"):
            with pytest.raises(Malformed):
                parse(bad)
    with pytest.raises(Malformed):
        Fence("xyz", 1)


@pytest.mark.spec("V11")
def test_terminal_and_outcome() -> None:
    terminal = {State.SUPERSEDED, State.SUCCEEDED, State.FAILED, State.CANCELLED}
    assert {state for state in State if state.is_terminal} == terminal
    assert {state for state in State if state.has_outcome} == terminal - {State.SUPERSEDED}
    ended = {Status.SUCCEEDED, Status.FAILED, Status.CANCELLED}
    assert {status for status in Status if status.is_terminal} == ended


@pytest.mark.spec("V12")
def test_only_a_degree_of_zero_is_green() -> None:
    for degree in (0.0, 0.000001, 0.5, 1.0):
        cause = Cause.BUILD_FAILED if degree else Cause.BUILD_SUCCEEDED
        assert Fact("a", "", 1, degree, cause, 1).is_green is (degree == 0)
    for bad in (-0.1, 1.1, float("nan")):
        with pytest.raises(Malformed):
            Fact("a", "", 1, bad, Cause.BUILD_FAILED, 1)
    with pytest.raises(TypeError):
        Fact("a", "", 1, cause=Cause.BUILD_FAILED, created_at=1)  # type: ignore[call-arg] # the point
    with pytest.raises(Malformed):
        Fact("a", "", 1, 0.0, Cause.VALIDATION_TIMEOUT, 1)


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
LETTERS = dict(zip("APUSFC", State, strict=True))
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


@pytest.mark.spec("V13")
def test_exactly_the_pairs_of_the_table_of_endings_stand() -> None:
    for cause, state, origin in product([None, *Cause], State, Origin):
        if cause is None:
            expected = state in (State.ACCEPTED, State.PROCESSING)
        else:
            expected = state in [LETTERS[letter] for letter in TABLE[cause][1]]
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
            expected = source in [LETTERS[x] for x in leaves] and target in [
                LETTERS[x] for x in enters
            ]
        assert is_arrow(source, target, cause) is expected
        assert not (source.is_terminal and is_arrow(source, target, cause))


def test_what_an_ending_says_and_leaves_behind() -> None:
    for cause, ending in ENDINGS.items():
        said = [kind for kind, causes in SAYS.items() if cause in causes]
        assert ending.says == (said[0] if said else None)
        assert ending.dead_letter is (ending.says == "validation.repository.abandoned")
        assert ending.tried_again is (
            cause in ("trigger_failed", "never_started", "polling_exhausted")
        )


@pytest.mark.spec("V15")
@given(answers=st.lists(st.sampled_from([*map(str, Status), "lost?", "queued", ""])))
def test_a_status_never_goes_back(answers: list[str]) -> None:
    stored = [Status.ACCEPTED]
    for text in answers:
        stored.append(forward(stored[-1], parse_status(text)))
    for before, after in pairwise(stored):
        assert RANK[after] >= RANK[before]
        assert after is before or not before.is_terminal


@pytest.mark.spec("V99")
def test_keys_of_attempts() -> None:
    request, own = RequestId("monorepo/main", 7), "0" * 32
    keys = [idempotency_key(own, request, attempt) for attempt in (1, 2, 3)]
    base = f"{own}/request/monorepo/main/7"
    assert keys == [base, f"{base}#2", f"{base}#3"]


WATCHED = st.builds(
    Watched,
    stored=st.sampled_from(Status),
    deadline=st.integers(0, 20),
    start_by=st.integers(0, 20),
    ending=st.sampled_from([None, *Why]),
    give_up_at=st.integers(0, 20),
    cancel_grace=st.just(3),
    starts_left=st.integers(0, 1),
    confirmations=st.integers(-1, 2),
    failed_before=st.sampled_from([None, "build/1"]),
)
ANSWERS = st.sampled_from([None, *Status])


@pytest.mark.spec("V372")
@given(build=WATCHED, said=ANSWERS, now=st.integers(0, 25))
def test_what_follows_from_an_answer(build: Watched, said: Status | None, now: int) -> None:
    status = forward(build.stored, said)
    follows = judge(build, said, now)
    if build.ending is Why.START_TIMEOUT:
        assert follows not in [s for s in ENDED_BY_US.values() if s is not None]
        assert not (isinstance(follows, Settle) and follows.state is State.SUCCEEDED)
        if isinstance(follows, Settle) and follows.cause is Cause.BUILD_FAILED:
            assert build.failed_before
        return
    if status is Status.SUCCEEDED:
        assert follows == Settle(State.SUCCEEDED, Cause.BUILD_SUCCEEDED)
    elif status is Status.FAILED:
        confirmed = Again("confirm") if build.confirmations > 0 and not build.ending else None
        assert follows == (confirmed or Settle(State.FAILED, Cause.BUILD_FAILED))
    elif status is Status.CANCELLED:
        red = build.failed_before and build.ending is not Why.PERSON
        assert follows == (
            Settle(State.FAILED, Cause.BUILD_FAILED) if red else ENDED_BY_US[build.ending]
        )
    else:
        _not_terminal(build, status, now)


def _not_terminal(build: Watched, status: Status, now: int) -> None:
    follows = judge(build, None if status is build.stored else status, now)
    if build.ending is not None and now < build.give_up_at:
        assert follows == Wait(build.give_up_at)
    elif build.ending is not None:
        assert isinstance(follows, Settle)
    elif now >= build.deadline:
        assert follows == Cancel(Why.VALIDATION_TIMEOUT)
    elif status is Status.ACCEPTED and now >= build.start_by:
        assert follows == Cancel(Why.START_TIMEOUT)
    else:
        assert isinstance(follows, Wait)
        assert now < follows.until <= build.deadline
        assert status is not Status.ACCEPTED or follows.until <= build.start_by


def fact(request: int, degree: float) -> Fact:
    cause = Cause.BUILD_FAILED if degree else Cause.BUILD_SUCCEEDED
    return Fact("a", "", request, degree, cause, request)


@given(
    facts=st.lists(
        st.builds(fact, st.integers(1, 50), st.sampled_from([0.0, 0.5, 1.0])),
        unique_by=lambda f: f.request,
    )
)
def test_the_newest_green_fact_else_the_newest_decides(facts: list[Fact]) -> None:
    decides = authoritative(facts)
    greens = [f.request for f in facts if f.degree == 0]
    expected = max(greens or [f.request for f in facts], default=None)
    assert (decides and decides.request) == expected


def test_no_fact_is_not_green() -> None:
    assert answer(fact(1, 0.0), under_way=True) is Exit.GREEN
    assert answer(fact(1, 0.5), under_way=True) is Exit.BROKEN
    assert answer(fact(1, 1.0), under_way=False) is Exit.BROKEN
    assert answer(None, under_way=True) is Exit.PENDING
    assert answer(None, under_way=False) is Exit.UNKNOWN
    assert [int(code) for code in Exit] == [0, 1, 2, 3, 4, 8, 69, 70]


EVENTS = st.tuples(
    st.sampled_from(["0" * 32, "1" * 32]),
    st.sampled_from(EventType),
    QUEUES,
    st.integers(1, 99),
    st.text(st.sampled_from("ab/#% "), min_size=1, max_size=4),
)


def event(parts: tuple[str, EventType, str, int, str], at: int = 1) -> HookEvent:
    own, kind, queue, number, project = parts
    project = project if kind is EventType.PROJECT_RECORDED else ""
    return HookEvent(own, kind, queue, number, at, project)


@pytest.mark.spec("V261")
@given(one=EVENTS, other=EVENTS, at=st.integers(1, 2**40))
def test_event_ids_come_from_the_transition(
    one: tuple[str, EventType, str, int, str], other: tuple[str, EventType, str, int, str], at: int
) -> None:
    assert event(one).id == event(one, at).id
    same = event(one) == event(other)
    assert (event(one).id == event(other).id) is same


@pytest.mark.spec("V262")
@given(parts=EVENTS)
def test_the_payload_is_identity_alone(parts: tuple[str, EventType, str, int, str]) -> None:
    made = event(parts)
    keys = {"queue", "request_id"} | ({"project"} if made.project else set())
    assert set(made.payload) == keys
    assert (made.version, made.source) == (0, "lastgreen")
    assert made.timestamp_ms > 0


@pytest.mark.spec("V262")
def test_an_event_without_id_source_or_time_cannot_be_built() -> None:
    good: dict[str, Any] = {"installation": "0" * 32, "type": EventType.STARTED}
    good |= {"queue": "main", "request": 1, "timestamp_ms": 1}
    HookEvent(**good)
    for bad in ({"installation": ""}, {"source": ""}, {"timestamp_ms": 0}, {"type": "x"}):
        with pytest.raises((Malformed, TypeError)):
            HookEvent(**(good | bad))
    with pytest.raises(Malformed):
        HookEvent(**(good | {"project": "p"}))


def test_what_needs_a_second_look() -> None:
    def seen(uri: str, descends: Ancestry, *, named: bool = False) -> Seen:
        return Seen(uri, None, "a", descends, named)

    assert not Seen("b", None, None, Ancestry.YES, named_before=False).is_doubtful
    assert not seen("b", Ancestry.YES).is_doubtful
    assert seen("b", Ancestry.YES, named=True).is_doubtful
    assert seen("b", Ancestry.NO).is_doubtful
    assert seen("b", Ancestry.UNKNOWN).is_doubtful
    assert seen("b", Ancestry.UNKNOWN).is_rewrite
    assert not seen("b", Ancestry.YES, named=True).is_rewrite
    assert seen("a", Ancestry.YES).is_same


@given(seconds=st.none() | st.floats(allow_nan=False, min_value=-1e12, max_value=1e12))
def test_a_time_that_is_not_plausible_is_unknown(seconds: float | None) -> None:
    now = 1_700_000_000_000
    at = plausible_time(seconds, now)
    assert at is None or 0 <= at <= now + 86_400_000
    if seconds is not None and 1 <= seconds <= now / 1000:
        assert at == int(seconds * 1000)
