"""Today's workflows against what workflows of every version once did."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from temporalio import workflow
from temporalio.client import WorkflowHistory
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.worker import Replayer, UnsandboxedWorkflowRunner, WorkflowRunner
from temporalio.workflow import NondeterminismError

from tests.record_histories import HISTORIES, MARKER, SECRET
from wiring.parts import WORKFLOWS
from wiring.temporal import SANDBOX
from workflows.messages import RecordInput
from workflows.record import RecordWorkflow

FILES = sorted(HISTORIES.glob("*/*.json"))
LARGEST = 64 * 1024


def named(path: Path) -> str:
    return f"{path.parent.name}/{path.stem}"


def started(path: Path) -> dict[str, Any]:
    first = json.loads(path.read_text())["events"][0]
    attributes: dict[str, Any] = first["workflowExecutionStartedEventAttributes"]
    return attributes


def history_of(path: Path) -> WorkflowHistory:
    return WorkflowHistory.from_json(started(path)["workflowId"], path.read_text())


def replayer(*workflows: type, runner: WorkflowRunner = SANDBOX) -> Replayer:
    return Replayer(
        workflows=workflows, workflow_runner=runner, data_converter=pydantic_data_converter
    )


@pytest.mark.spec("V347")
@pytest.mark.parametrize("path", FILES, ids=named)
async def test_a_recorded_history_replays(path: Path) -> None:
    await replayer(*WORKFLOWS).replay_workflow(history_of(path))


def test_this_version_has_recorded_every_workflow() -> None:
    recorded = {
        started(path)["workflowType"]["name"]
        for path in FILES
        if path.parent.name == version("lastgreen")
    }
    assert recorded == {workflow.__name__ for workflow in WORKFLOWS}


@workflow.defn(name="RecordWorkflow")
class RecordsTooLate(RecordWorkflow):
    @workflow.run
    async def run(self, ask: RecordInput) -> None:
        await workflow.sleep(1)
        await super().run(ask)


async def test_a_workflow_that_does_something_else_is_found_out() -> None:
    (path,) = [path for path in FILES if named(path) == f"{version('lastgreen')}/record-green"]
    bare = UnsandboxedWorkflowRunner()
    await replayer(RecordWorkflow, runner=bare).replay_workflow(history_of(path))
    with pytest.raises(NondeterminismError):
        await replayer(RecordsTooLate, runner=bare).replay_workflow(history_of(path))


def payloads(part: Any) -> Iterator[bytes]:
    if isinstance(part, dict):
        if "data" in part and "metadata" in part:
            yield base64.b64decode(part["data"])
        for inner in part.values():
            yield from payloads(inner)
    elif isinstance(part, list):
        for inner in part:
            yield from payloads(inner)


@pytest.mark.spec("V106")
@pytest.mark.parametrize("path", FILES, ids=named)
def test_a_history_holds_neither_a_secret_nor_a_log_nor_much(path: Path) -> None:
    history = path.read_text()
    found = [*payloads(json.loads(history))]
    assert found
    assert max(map(len, found)) <= LARGEST
    text = history.encode() + b"".join(found)
    assert SECRET.encode() not in text
    # The command itself is configuration: it is not in a history either.
    assert MARKER.encode() not in text
