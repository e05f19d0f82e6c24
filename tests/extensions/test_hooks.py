from __future__ import annotations

import json

import pytest
import structlog

from domain.event import EventType, HookEvent
from extensions.hooks.contract import Sink
from extensions.hooks.fake import FakeSink
from extensions.hooks.log import LogSink

EVENT = HookEvent("0" * 32, EventType.RECORDED, "monorepo/main", 7, 1_700_000_000_000)


@pytest.mark.parametrize("sink", [LogSink(), FakeSink()], ids=["log", "fake"])
async def test_a_known_event_again_changes_nothing_that_matters(sink: Sink) -> None:
    await sink.deliver(EVENT)
    await sink.deliver(EVENT)
    if isinstance(sink, FakeSink):
        assert sink.ids == [EVENT.id]


async def test_the_log_line_names_event_subject_and_payload() -> None:
    with structlog.testing.capture_logs() as lines:
        await LogSink().deliver(EVENT)
    (line,) = lines
    assert line["event"] == "validation.repository.recorded"
    assert line["event_id"] == EVENT.id
    assert line["request_id"] == "request/monorepo/main/7"
    json.dumps(line)


@pytest.mark.spec("V321")
async def test_the_fake_sink_can_fail_and_lose_an_answer() -> None:
    sink = FakeSink()
    sink.errors.append(TimeoutError("late"))
    with pytest.raises(TimeoutError, match="late"):
        await sink.deliver(EVENT)
    assert sink.heard == []
    sink.loses_answer = True
    with pytest.raises(TimeoutError, match="lost"):
        await sink.deliver(EVENT)
    assert sink.ids == [EVENT.id]
