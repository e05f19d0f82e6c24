"""Two ways to act: ``step`` for the store, ``call`` for the outside; and how a child is started."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

from temporalio import workflow
from temporalio.common import SearchAttributePair, TypedSearchAttributes
from temporalio.exceptions import (
    ApplicationError,
    FailureError,
    WorkflowAlreadyStartedError,
    is_cancelled_exception,
)

with workflow.unsafe.imports_passed_through():
    from domain.errors import Fenced, ProjectsOut, ResultsRefused
    from domain.explain import Line
    from domain.identity import Fence
    from domain.request import State
    from stores.rows import Stamp
    from workflows import ids, policies

T = TypeVar("T")


class Says:
    """What a workflow waits for, a place for each of its loops: its current details."""

    def __init__(self) -> None:
        self._told: dict[str, Sequence[Line]] = {}

    def __call__(self, place: str, *lines: Line) -> None:
        self._told[place] = lines
        workflow.set_current_details("\n\n".join(line.sentence for line in self.lines))

    @property
    def lines(self) -> list[Line]:
        return [line for told in self._told.values() for line in told]


def now_ms() -> int:
    return int(workflow.now().timestamp() * 1000)


def stamp(fence: Fence, queue: str) -> Stamp:
    return Stamp(fence, queue, now_ms())


def failure_of(error: BaseException | None) -> ApplicationError | None:
    """The innermost failure that an activity reported."""
    while error is not None and not isinstance(error, ApplicationError):
        error = error.__cause__
    return error


def why(error: BaseException) -> str:
    """What a person reads: the innermost failure's own words."""
    failure = failure_of(error)
    return failure.message if failure is not None else str(error)


def attempts_of(error: BaseException) -> int:
    """How often it was tried before it was given up; 0 when nobody counted."""
    failure = failure_of(error)
    counted = failure.details[1:2] if failure is not None else ()
    return int(counted[0]) if counted else 0


def is_fenced(error: FailureError) -> bool:
    """The store has a newer epoch: whoever runs under the old one ends."""
    failure = failure_of(error)
    return failure is not None and failure.type == Fenced.__name__


def is_final(error: FailureError) -> bool:
    failure = failure_of(error)
    return is_cancelled_exception(error) or (failure is not None and failure.non_retryable)


def is_about_projects(error: FailureError) -> bool:
    """They cannot be meant, or cannot be had in time: the repository's own fact does not wait."""
    failure = failure_of(error)
    names = {failure.type, *failure.details[:1]} if failure is not None else set()
    return bool(names & {ResultsRefused.__name__, ProjectsOut.__name__})


async def step(do: Callable[[Any, Any], Awaitable[T]], message: object) -> T:
    """Local while the store is well, else regular: an outage is seen, and blocks no signal."""
    try:
        return await workflow.execute_local_activity_method(do, message, **policies.LOCAL)
    except FailureError as error:
        if is_final(error):
            raise
        return await workflow.execute_activity_method(do, message, **policies.FOR_EVER)


async def at_hand(do: Callable[[Any, Any], Awaitable[T]], message: object) -> T | None:
    """One quick local try, which costs the least when all is well; None when it did not answer."""
    try:
        return await workflow.execute_local_activity_method(do, message, **policies.AT_HAND)
    except FailureError as error:
        if is_final(error):
            raise
        return None


async def once(do: Callable[[Any, Any], Awaitable[T]], message: object) -> T | None:
    """One call; None when there was no answer. What can never be answered is raised."""
    try:
        return await workflow.execute_activity_method(do, message, **policies.ONCE)
    except FailureError as error:
        if is_final(error):
            raise
        return None


async def child(run: Callable[[Any, Any], Awaitable[T]], message: object, **options: Any) -> T:  # noqa: ANN401 - passed on
    """Run one's own child; one left by an earlier run of the parent is waited out."""
    while True:
        try:
            return await workflow.execute_child_workflow(run, message, **options)
        except WorkflowAlreadyStartedError:
            await workflow.sleep(policies.CHILD_AGAIN)


def attributes(queue: str, request: int, uri: str, state: State) -> TypedSearchAttributes:
    return TypedSearchAttributes(
        [
            SearchAttributePair(ids.QUEUE, queue),
            SearchAttributePair(ids.REQUEST, ids.build(queue, request)),
            SearchAttributePair(ids.STATE, str(state)),
            SearchAttributePair(ids.URI, uri[:255]),
        ]
    )


def of_queue(queue: str) -> TypedSearchAttributes:
    return TypedSearchAttributes([SearchAttributePair(ids.QUEUE, queue)])
