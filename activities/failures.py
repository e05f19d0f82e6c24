"""One place where errors become Temporal's, are counted against their budget, and are seen."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

from temporalio import activity
from temporalio.exceptions import ApplicationError, ApplicationErrorCategory
from temporalio.worker import (
    ActivityInboundInterceptor,
    ExecuteActivityInput,
    Interceptor,
)

from domain.errors import NoSuchBuild, NotYet, Permanent, RefusedForNow, StoreOut
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


@dataclass(frozen=True, slots=True)
class Series:
    """An unbroken series of failed answers: seconds spent, and when the last one came."""

    spent: float
    last: float

    def after(self, now: float, due: float) -> Series:
        """A gap counts for no more than what was due: nobody tried meanwhile."""
        return Series(self.spent + min(max(now - self.last, 0.0), due), now)


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
            raise ApplicationError(
                clean(str(error)), type=type(error).__name__, non_retryable=True
            ) from error
        except Exception as error:
            self._tell(error)
            _spend(error)
            raise ApplicationError(clean(str(error)), type=type(error).__name__) from error

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


def _spend(error: Exception) -> None:
    """Against the budget of this activity and error, if it has one; the store never has."""
    info = activity.info()
    kind, budget = BUDGETS.get(info.activity_type, (NotYet, 0.0))
    if info.is_local or not isinstance(error, kind) or isinstance(error, StoreOut):
        return
    now = info.started_time.timestamp()  # virtual in tests
    past = Series(*info.heartbeat_details[0]) if info.heartbeat_details else Series(0.0, now)
    limit = info.start_to_close_timeout
    due = min(2.0 ** (info.attempt - 2), MAX_BACK_OFF) + (limit.total_seconds() if limit else 0)
    series = past.after(now, due)
    activity.heartbeat((series.spent, series.last))
    if series.spent > budget:
        raise ApplicationError(
            f"{clean(str(error))} (for {series.spent:.0f} s, {info.attempt} attempts)",
            type(error).__name__,
            info.attempt,
            type=BUDGET_SPENT,
            non_retryable=True,
        ) from error
