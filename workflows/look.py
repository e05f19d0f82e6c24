"""What a queue's ref points at, as far as it may be believed; and whose queue it is."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

from temporalio import workflow
from temporalio.exceptions import ApplicationError, FailureError

with workflow.unsafe.imports_passed_through():
    from activities.sourcecontrol import SourceControlActivities
    from domain.errors import WrongInstallation
    from domain.explain import Line
    from domain.gate import Ancestry, Seen
    from domain.identity import Fence
    from domain.settings import ms
    from domain.trouble import asks, second_look
    from stores.rows import Stamp
    from workflows import policies
    from workflows.messages import QueueInput, Report
    from workflows.steps import Says, failure_of, now_ms, why


async def believed(now: Callable[[], Stamp], says: Says) -> Seen:
    """What a second look agrees with, where one look may be a replica's stale answer."""
    says("look", asks("look", now_ms()))
    seen = await _see(now())
    while seen.is_doubtful and not seen.is_same:
        says("look", second_look(seen, now_ms() + ms(seen.confirm)))
        await workflow.sleep(timedelta(seconds=seen.confirm), summary="second look")
        first, seen = seen, await _see(now())
        if first.uri == seen.uri:
            break
    says("look")
    return seen


def in_vain(error: FailureError, says: Says) -> Report:
    says("look", Line("look_failed", f"the last look at the ref was in vain: {why(error)}"))
    failure = failure_of(error)
    return Report(None, error=str(failure or error), kind=(failure and failure.type) or "")


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


def settled(known: dict[tuple[str, str], Ancestry]) -> dict[tuple[str, str], Ancestry]:
    """Yes and no never change between two commits; unknown is kept for one turn."""
    kept = [(pair, answer) for pair, answer in known.items() if answer is not Ancestry.UNKNOWN]
    return dict(kept[-policies.KNOWN_PAIRS :])
