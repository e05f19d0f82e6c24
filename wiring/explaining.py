"""Why a queue stands as it does: what the store says, and what only a running workflow knows."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Final

from temporalio.api.workflow.v1 import PendingActivityInfo
from temporalio.client import Client, WorkflowExecutionStatus, WorkflowQueryFailedError
from temporalio.service import RPCError

from activities.failures import BUDGETS, Series, series_of
from domain.errors import NotYet
from domain.explain import Explanation, Line
from domain.gate import Reason
from domain.request import Request
from domain.settings import QueueSettings
from domain.trouble import ASKED, Trouble
from extensions.gitcommand import redact
from extensions.text import shown
from stores.contract import Reader
from stores.rows import Work
from wiring.recover import owner_of
from wiring.temporal import TemporalOut
from workflows import ids
from workflows.queue import QueueWorkflow

PATIENCE: Final = timedelta(seconds=5)
LONGEST: Final = 500
NOT_ASKED: Final = "not_asked"
OF_THE_STORE: Final = {"paused", "in_flight", "waits", "more"} | {r.name.lower() for r in Reason}
"""What the queue's workflow was told by the store, which may know better by now."""


async def explain(
    reader: Reader,
    settings: QueueSettings | None,
    connect: Callable[[], Awaitable[Client]],
    *,
    queue: str,
    uri: str | None = None,
) -> Explanation:
    """Without Temporal all that the store knows; of a commit only what concerns it."""
    lines = list(await reader.explain(queue, settings, uri))
    try:
        async with asyncio.timeout(2 * PATIENCE.total_seconds()):
            told = [line async for line in _running(await connect(), reader, queue)]
    except (TemporalOut, RPCError, TimeoutError) as error:
        told = [_not_asked(str(error) or "Temporal gives no answer")]
    lines = [_better(line, told) for line in lines]
    more = [line for line in told if line.kind not in OF_THE_STORE]
    if uri is not None:
        own = {line.request for line in lines}
        more = [line for line in more if line.request in own or line.kind == NOT_ASKED]
    return Explanation(queue, uri, [*lines, *more])


async def _running(client: Client, reader: Reader, queue: str) -> AsyncIterator[Line]:
    owner, fence = await owner_of(client, queue), await reader.fence()
    if owner is None:
        yield _not_asked("the queue's workflow does not run; `lastgreen doctor --fix` starts it")
    elif owner.installation != fence.installation:
        yield _not_asked(f"the queue's workflow belongs to installation {owner.installation}")
    else:
        for line in await _told(client, queue):
            yield line
        async for line in _troubles(client, reader, queue):
            yield line


def _not_asked(why: str) -> Line:
    why = shown(redact(why), LONGEST)
    return Line(NOT_ASKED, f"what only running workflows know could not be asked: {why}")


async def _told(client: Client, queue: str) -> Sequence[Line]:
    handle = client.get_workflow_handle(ids.queue(queue))
    try:
        return await handle.query(QueueWorkflow.explain, rpc_timeout=PATIENCE)
    except (RPCError, WorkflowQueryFailedError) as error:
        return [_not_asked(f"no worker answered ({error})")]


def _better(line: Line, told: Sequence[Line]) -> Line:
    """What descends from what, the queue's workflow was told, and the store was not."""
    if line.kind != Reason.SOURCE_CONTROL.name.lower():
        return line
    held = Reason.NOT_ON_TOP.name.lower()
    return next((t for t in told if (t.kind, t.request) == (held, line.request)), line)


async def _troubles(client: Client, reader: Reader, queue: str) -> AsyncIterator[Line]:
    looked: list[tuple[str, Request | None]] = [(ids.queue(queue), None)]
    for owed in await reader.owed(queue, 0, None):
        if owed.kind is Work.BUILD:
            request, number = await reader.request(queue, owed.request), owed.request
            attempt = max((b.attempt for b in await reader.builds(queue, number)), default=1)
            looked += [
                (ids.build(queue, number), request),
                (ids.buildsignal(queue, number, attempt), request),
                (ids.record(queue, number), request),
            ]
    pending = await asyncio.gather(*(_pending(client, workflow) for workflow, _ in looked))
    for (_, about), activities in zip(looked, pending, strict=True):
        for activity in activities:
            if trouble := _trouble(activity, about):
                yield trouble.line


async def _pending(client: Client, workflow: str) -> Sequence[PendingActivityInfo]:
    with suppress(RPCError):
        about = await client.get_workflow_handle(workflow).describe(rpc_timeout=PATIENCE)
        if about.status is WorkflowExecutionStatus.RUNNING:
            return about.raw_description.pending_activities
    return ()


def _trouble(activity: PendingActivityInfo, request: Request | None) -> Trouble | None:
    name, failure = activity.activity_type.name, activity.last_failure
    if failure.HasField("server_failure_info"):
        failure = failure.cause  # what the server cut, as it was too large
    kind = failure.application_failure_info.type or "no answer"
    if name not in ASKED or not activity.HasField("last_failure") or kind == NotYet.__name__:
        return None
    beats = [json.loads(payload.data) for payload in activity.heartbeat_details.payloads]
    series = series_of(beats)
    return Trouble(
        name,
        activity.attempt - 1,
        f"{kind}: {shown(redact(failure.message), LONGEST)}",
        _spent(name, kind, series),
        int(series.since * 1000) if series and series.since else None,
        activity.next_attempt_schedule_time.ToMilliseconds() or None,
        request,
    )


def _spent(name: str, kind: str, series: Series | None) -> str:
    """Of an answer that counts: every one, or those of one kind."""
    counts, budget = BUDGETS.get(name, (NotYet, 0.0))
    if series is None or (counts is not Exception and counts.__name__ != kind):
        return ""
    return f"{series.spent:.0f} s of {budget:.0f} s"
