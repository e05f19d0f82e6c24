"""Compares the store's rows, what is owed and what runs; says what disagrees, and its cure."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from temporalio.client import Client, WorkflowExecutionStatus
from temporalio.service import RPCError

from domain.errors import NotFound, Permanent, Transient
from domain.gate import clock
from domain.identity import Fence, RequestId
from domain.settings import QueueSettings, remote_id
from stores.rows import Owed, Work
from wiring.parts import Parts
from wiring.recover import known_queues, owner_of, start_queues
from workflows import ids

REST: Final = 1.0
START: Final = "start it: `lastgreen doctor --fix`"
DRIVE: Final = "wake the queue, which starts it: `lastgreen doctor --fix`"


@dataclass(frozen=True)
class Finding:
    """``is_note``: nothing disagrees, but a person should know."""

    queue: str
    what: str
    cure: str
    is_note: bool = False


@dataclass(frozen=True)
class Doctor:
    client: Client
    parts: Parts
    fence: Fence
    at: int

    async def findings(self) -> list[Finding]:
        """What stands at two looks: whatever is just being done disagrees for a moment."""
        found = await self._look()
        if all(finding.is_note for finding in found):
            return found
        await asyncio.sleep(REST)
        again = await self._look()
        return [finding for finding in found if finding in again]

    async def _look(self) -> list[Finding]:
        found = [finding async for finding in self._of_watches()]
        for queue in await known_queues(self.parts):
            settings = self._settings(queue)
            for look in (self._workflow, self._owed, self._left_over, self._promotion, self._notes):
                found += [finding async for finding in look(queue, settings)]
        return found

    async def fix(self) -> None:
        """Start what does not run, and wake the queues: each turn starts what is owed."""
        await start_queues(self.client, self.parts, self.fence)
        for queue in await known_queues(self.parts):
            await self.parts.waker.queue(self.fence, queue, "drive")

    def _settings(self, queue: str) -> QueueSettings | None:
        with suppress(NotFound):
            return self.parts.config.get(queue)
        return None

    async def _runs(self, workflow: str) -> bool:
        with suppress(RPCError):
            about = await self.client.get_workflow_handle(workflow).describe()
            return about.status is WorkflowExecutionStatus.RUNNING
        return False

    async def _of_watches(self) -> AsyncIterator[Finding]:
        for queue in self.parts.config.list():
            if not await self._runs(ids.watch(remote_id(queue.repository))):
                yield Finding(queue.name, "nobody watches its remote for moved refs", START)

    async def _workflow(self, queue: str, _: QueueSettings | None) -> AsyncIterator[Finding]:
        owner = await owner_of(self.client, queue)
        if owner is None:
            yield Finding(queue, "its workflow does not run: no head is admitted", START)
        elif owner.installation != self.fence.installation:
            yield Finding(
                queue,
                f"its workflow belongs to installation {owner.installation}, this store is "
                f"installation {self.fence.installation}",
                "give one of the two a namespace of its own, or another name for the queue",
            )
        elif owner.epoch != self.fence.epoch:
            yield Finding(
                queue,
                f"its workflow runs in epoch {owner.epoch}, the store is in {self.fence.epoch}",
                "it ends at its next step; then start it: `lastgreen doctor --fix`",
            )

    async def _owed(self, queue: str, settings: QueueSettings | None) -> AsyncIterator[Finding]:
        for owed in await self.parts.store.owed(queue, self.at, settings):
            request = RequestId(queue, owed.request)
            if owed.overdue:
                what = f"{request} is past its deadline of {clock(owed.deadline)}, and its grace"
                yield Finding(queue, what, DRIVE)
            elif not await self._runs(_runs_under(queue, owed)):
                yield Finding(queue, f"{request} {_owes(owed)}, and no workflow runs for it", DRIVE)

    async def _left_over(
        self, queue: str, settings: QueueSettings | None
    ) -> AsyncIterator[Finding]:
        owed = {o.request for o in await self.parts.store.owed(queue, self.at, settings)}
        query = f"{ids.QUEUE.name} = '{queue}' AND ExecutionStatus = 'Running'"
        async for workflow in self.client.list_workflows(
            f"{query} AND WorkflowType = 'BuildWorkflow'"
        ):
            number = RequestId.parse(workflow.id, queue).number
            if number not in owed and await self._runs(workflow.id):
                what = f"{workflow.id} runs, although nothing is owed for it any more"
                yield Finding(queue, what, "it ends by itself; terminate it if it does not")

    async def _promotion(
        self, queue: str, settings: QueueSettings | None
    ) -> AsyncIterator[Finding]:
        state = await self.parts.store.queue(queue)
        if settings is None or settings.promote is None or state.holder is None:
            return
        try:
            at = await self.parts.extensions.source_control(queue).promoted()
        except (Permanent, Transient) as error:
            yield Finding(queue, f"{settings.promote} cannot be read: {error}", "see the remote")
            return
        if at != state.holder.uri and state.holder.recorded_at is not None:
            yield Finding(
                queue,
                f"{settings.promote} is at {at or 'nothing'}, last green is {state.holder.uri}",
                "retry its dead letter, if it has one; the next green commit moves it otherwise",
            )

    async def _notes(self, queue: str, settings: QueueSettings | None) -> AsyncIterator[Finding]:
        if settings is None:
            yield Finding(queue, "it is not configured: its heads wait", "add it", is_note=True)
        if paused := (await self.parts.store.queue(queue)).paused:
            what = f"paused by {paused.actor} since {clock(paused.at)}: {paused.detail}"
            yield Finding(queue, what, f"`lastgreen resume {queue}`", is_note=True)
        if letters := await self.parts.store.dead_letters(queue):
            what = f"{len(letters)} dead letters wait for a person"
            yield Finding(queue, what, f"`lastgreen dead-letters list {queue}`", is_note=True)


def _runs_under(queue: str, owed: Owed) -> str:
    named = {Work.BUILD: ids.build, Work.HOOKS: ids.hooks, Work.BISECT: ids.bisect}
    return named[owed.kind](queue, owed.request)


def _owes(owed: Owed) -> str:
    if owed.kind is Work.HOOKS:
        return "has events to deliver"
    if owed.kind is Work.BISECT:
        return "is bisected"
    return "is processing" if not owed.state.is_terminal else "owes its record"
