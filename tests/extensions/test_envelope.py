"""Events on the wire, read by somebody else's library."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from cloudevents.core.bindings.http import HTTPMessage, from_http
from cloudevents.core.formats.json import JSONFormat
from hypothesis import given
from hypothesis import strategies as st

from domain.event import EventType, HookEvent
from extensions.hooks.envelope import CONTENT_TYPE, MODELS, cloud_event
from tools.schemas import PAGE, page

OWN = "0" * 32
NAMES = st.sampled_from(["main", "shop/main", "a/1/b"])
PROJECTS = st.text(min_size=1, max_size=20).filter(lambda text: text.isprintable())


def event(
    kind: EventType, queue: str = "shop/main", project: str = "app", at: int = 1
) -> HookEvent:
    named = project if kind is EventType.PROJECT_RECORDED else ""
    return HookEvent(OWN, kind, queue, 7, at, named)


def read(sent: dict[str, Any]) -> Any:
    message = HTTPMessage({"content-type": CONTENT_TYPE}, json.dumps(sent).encode())
    return from_http(message, JSONFormat())


@pytest.mark.spec("V263")
@pytest.mark.parametrize("kind", EventType)
@given(queue=NAMES, project=PROJECTS, at=st.integers(1, 4_000_000_000_000))
def test_each_event_is_a_cloud_event_and_parsed_back_to_the_same_envelope(
    kind: EventType, queue: str, project: str, at: int
) -> None:
    told = event(kind, queue, project, at)
    sent = cloud_event(told, "lastgreen")
    got = read(sent)  # refuses what the specification does
    assert (got.get_specversion(), got.get_datacontenttype()) == ("1.0", "application/json")
    assert (got.get_id(), got.get_source(), got.get_type()) == (told.id, "lastgreen", str(kind))
    assert (got.get_subject(), got.get_data()) == (told.subject, told.payload)
    assert got.get_time() == datetime.fromtimestamp(at / 1000, UTC)
    assert MODELS[kind].model_validate(sent).model_dump(mode="json") == sent
    assert set(sent) == {*MODELS[kind].model_fields}


@pytest.mark.spec("V263")
@pytest.mark.parametrize("kind", EventType)
def test_attributes_that_are_not_known_are_ignored(kind: EventType) -> None:
    sent = cloud_event(event(kind), "lastgreen")
    more = sent | {"traceparent": "00-1-2-03", "partitionkey": "x"}
    assert read(more).get_id() == sent["id"]
    assert MODELS[kind].model_validate(more).model_dump(mode="json") == sent


def test_its_source_may_be_another() -> None:
    sent = cloud_event(event(EventType.STARTED), "https://ci.example.org/lastgreen")
    assert read(sent).get_source() == "https://ci.example.org/lastgreen"
    assert sent["id"] == event(EventType.STARTED).id


def test_the_published_schemas_are_those_of_the_models() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run: python tools/schemas.py"
