"""One place where errors become Temporal's, are counted against their budget, and are seen."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import astuple, dataclass, replace
from datetime import timedelta
from typing import Any, Final

from temporalio import activity
from temporalio.exceptions import ApplicationError, ApplicationErrorCategory
from temporalio.worker import (
    ActivityInboundInterceptor,
    ExecuteActivityInput,
    Interceptor,
)

from domain.errors import (
    NoSuchBuild,
    NotYet,
    Permanent,
    RefusedForNow,
    Transient,
    Uncounted,
)
from extensions.text import clean

BUDGET_SPENT: Final = "BudgetSpent"
MAX_BACK_OFF: Final = 30.0
BUDGETS: Final[dict[str, tuple[type[Exception], float]]] = {
    "look": (Exception, 600.0),
    "trigger": (RefusedForNow, 600.0),
    "watch_build": (NoSuchBuild, 600.0),
    "publish": (Exception, 600.0),
    "facts": (Exception, 600.0),
    "deliver": (Exception, 72 * 3600.0),
}
"""Activity → the error that has a budget there, in seconds; every other one is waited out."""
LONGEST: Final[dict[str, float]] = {"deliver": 600.0}
"""Activity → the longest wait between two tries, where we choose it and not a retry policy."""
JITTER: Final = 0.25
NEVER: Final = 1e12
_OWN_BUDGET: ContextVar[float | None] = ContextVar("own budget", default=None)


@dataclass(frozen=True, slots=True)
class Series:
    """An unbroken series of failed answers: seconds spent, and when the last one came."""

    spent: float
    last: float
    """Of those that count against the budget; before the first one the end of time."""
    wait: float | None = None
    """Seconds until the next try, where we chose them."""
    since: float = 0.0
    """When the first one came, whether it counts or not."""

    def after(self, now: float, due: float) -> Series:
        """A gap counts for no more than what was due: nobody tried meanwhile."""
        spent = self.spent + min(max(now - self.last, 0.0), due)
        return replace(self, spent=spent, last=now, wait=None)


def spend_at_most(seconds: float) -> None:
    """The activity that runs has a budget of its own, in place of the one in ``BUDGETS``."""
    _OWN_BUDGET.set(seconds)


class Failures(Interceptor):
    def __init__(self, seen: Callable[[str, Exception], None] | None = None) -> None:
        self._seen = seen

    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:  # noqa: A002 - the SDK's name
        return _Inbound(next, self._seen)


class _Inbound(ActivityInboundInterceptor):
    def __init__(
        self, following: ActivityInboundInterceptor, seen: Callable[[str, Exception], None] | None
    ) -> None:
        super().__init__(following)
        self._seen = seen

    async def execute_activity(self, input: ExecuteActivityInput) -> Any:  # noqa: A002, ANN401 - the SDK's signature
        try:
            async with _beating():
                return await super().execute_activity(input)
        except NotYet as error:
            activity.heartbeat()  # a good answer ends the series
            benign = ApplicationErrorCategory.BENIGN
            raise ApplicationError(str(error), type="NotYet", category=benign) from error
        except ApplicationError:
            raise
        except Permanent as error:
            self._tell(error)
            kind, attempt = type(error).__name__, activity.info().attempt
            raise ApplicationError(
                clean(str(error)), kind, attempt, type=kind, non_retryable=True
            ) from error
        except Exception as error:
            self._tell(error)
            wait = _spend(error)
            raise ApplicationError(
                clean(str(error)),
                type=type(error).__name__,
                next_retry_delay=None if wait is None else timedelta(seconds=wait),
            ) from error

    def _tell(self, error: Exception) -> None:
        if self._seen is not None:
            self._seen(activity.info().activity_type, error)


@asynccontextmanager
async def _beating() -> AsyncIterator[None]:
    """A worker that dies is missed within the heartbeat timeout, however long the call may take."""
    info = activity.info()
    if info.is_local or info.heartbeat_timeout is None:
        yield
        return

    async def beat(every: float) -> None:
        while True:
            await asyncio.sleep(every)
            activity.heartbeat(*info.heartbeat_details)

    beats = asyncio.create_task(beat(info.heartbeat_timeout.total_seconds() / 3))
    try:
        yield
    finally:
        beats.cancel()


def _spend(error: Exception) -> float | None:
    """Against the budget of this activity and error, if it has one; the store never has. Answers
    with the wait until the next try, where it is not the retry policy's.
    """
    info = activity.info()
    kind, budget = BUDGETS.get(info.activity_type, (NotYet, 0.0))
    if info.is_local:
        return None
    now = info.started_time.timestamp()  # virtual in tests
    past = series_of(info.heartbeat_details) or Series(0.0, NEVER, since=now)
    if not isinstance(error, kind) or isinstance(error, Uncounted):
        activity.heartbeat(astuple(past))
        return None
    budget = _OWN_BUDGET.get() or budget
    limit = info.start_to_close_timeout
    due = past.wait or min(2.0 ** (info.attempt - 2), MAX_BACK_OFF)
    series = past.after(now, due + (limit.total_seconds() if limit else 0))
    if series.spent > budget:
        raise ApplicationError(
            f"{clean(str(error))} (for {series.spent:.0f} s, {info.attempt} attempts)",
            type(error).__name__,
            info.attempt,
            type=BUDGET_SPENT,
            non_retryable=True,
        ) from error
    wait = _wait(error, budget - series.spent)
    activity.heartbeat(astuple(replace(series, wait=wait)))
    return wait


def series_of(heartbeat: Sequence[Any]) -> Series | None:
    return Series(*heartbeat[0]) if heartbeat else None


def _wait(error: Exception, left: float) -> float | None:
    """As the other side asked, up to the budget; else doubling, and spread: what failed together
    does not come back together.
    """
    info = activity.info()
    longest = LONGEST.get(info.activity_type)
    if longest is None:
        return None
    if isinstance(error, Transient) and error.after is not None:
        return min(error.after, left + 1)
    spread = random.uniform(1 - JITTER, 1)  # noqa: S311 - no secret
    return min(2.0 ** (info.attempt - 1), longest) * spread
