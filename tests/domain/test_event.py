"""Events are named by the transition that they tell of."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from domain.errors import Malformed
from domain.event import EventType, HookEvent

PROJECT = EventType.PROJECT_RECORDED
NAMES = st.sampled_from(["a", "a/1", "a/1/b", "1", "a/b", "monorepo/main"])
PROJECTS = st.text(st.sampled_from("ab1/#% ä"), min_size=1, max_size=5)
PARTS = st.tuples(
    st.sampled_from(["0" * 32, "1" * 32]),
    st.sampled_from(EventType),
    NAMES,
    st.integers(1, 12),
    PROJECTS,
)
Parts = tuple[str, EventType, str, int, str]


def event(parts: Parts, at: int = 1) -> HookEvent:
    own, kind, queue, number, project = parts
    return HookEvent(own, kind, queue, number, at, project if kind is PROJECT else "")


@pytest.mark.spec("V261")
@given(one=PARTS, other=PARTS, at=st.integers(1, 2**40))
def test_event_ids_come_from_the_transition(one: Parts, other: Parts, at: int) -> None:
    assert event(one).id == event(one, at).id
    same = event(one) == event(other)
    assert (event(one).id == event(other).id) is same


@pytest.mark.spec("V261")
@given(parts=PARTS, other=PARTS, index=st.integers(0, 4))
def test_one_part_that_differs_makes_another_id(parts: Parts, other: Parts, index: int) -> None:
    changed: list[Any] = [*parts]
    changed[index] = other[index]
    made, again = event(parts), event((changed[0], changed[1], changed[2], changed[3], changed[4]))
    assert (made.id == again.id) is (made == again)


@pytest.mark.spec("V262")
@given(parts=PARTS)
def test_the_payload_is_identity_alone(parts: Parts) -> None:
    made = event(parts)
    expected = {"queue": parts[2], "request_id": f"request/{parts[2]}/{parts[3]}"}
    if parts[1] is PROJECT:
        expected["project"] = parts[4]
    assert made.payload == expected
    assert (made.version, made.source) == (0, "lastgreen")
    assert made.timestamp_ms > 0


@pytest.mark.spec("V262")
@pytest.mark.parametrize(
    "bad",
    [
        {"installation": ""},
        {"source": ""},
        {"type": "x"},
        {"type": ""},
        {"timestamp_ms": 0},
        {"timestamp_ms": -1},
        {"version": 1},
        {"queue": ""},
        {"request": 0},
    ],
)
def test_an_event_without_id_source_or_type_cannot_be_built(bad: dict[str, Any]) -> None:
    good: dict[str, Any] = {"installation": "0" * 32, "type": EventType.STARTED}
    good |= {"queue": "main", "request": 1, "timestamp_ms": 1}
    assert HookEvent(**good).id
    with pytest.raises(Malformed):
        _ = HookEvent(**(good | bad)).id


@pytest.mark.parametrize("kind", EventType)
def test_a_project_is_named_by_its_own_events_alone(kind: EventType) -> None:
    right, wrong = ("app", "") if kind is PROJECT else ("", "app")
    assert HookEvent("0" * 32, kind, "main", 1, 1, right).payload
    with pytest.raises(Malformed):
        HookEvent("0" * 32, kind, "main", 1, 1, wrong)
