"""What a queue's ref points at, as far as it may be believed; and whose queue it is."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

from temporalio import workflow
from temporalio.exceptions import ApplicationError

with workflow.unsafe.imports_passed_through():
    from activities.sourcecontrol import SourceControlActivities
    from domain.errors import WrongInstallation
    from domain.gate import Seen
    from domain.identity import Fence
    from stores.rows import Stamp
    from workflows import policies
    from workflows.messages import QueueInput


async def believed(now: Callable[[], Stamp]) -> Seen:
    """What a second look agrees with, where one look may be a replica's stale answer."""
    seen = await _see(now())
    while seen.is_doubtful and not seen.is_same:
        workflow.set_current_details(f"sees {seen.uri}, which may be stale: looks again")
        await workflow.sleep(timedelta(seconds=seen.confirm), summary="second look")
        again = await _see(now())
        if again.uri == seen.uri:
            return again
        seen = again
    return seen


async def _see(stamp: Stamp) -> Seen:
    return await workflow.execute_activity_method(
        SourceControlActivities.look,
        stamp,
        summary="what is the head?",
        **policies.SOURCE_CONTROL,
    )


def refuse_stranger(own: QueueInput, caller: Fence) -> None:
    """Two stores on one namespace: the workflow works for the one that started it."""
    if caller.installation != own.fence.installation:
        raise ApplicationError(
            f"queue {own.queue} of this namespace belongs to installation "
            f"{own.fence.installation}, your store is installation {caller.installation}",
            type=WrongInstallation.__name__,
            non_retryable=True,
        )
