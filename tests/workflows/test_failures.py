"""Budgets in their real minutes and hours: an activity's attempts on a clock of our own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import pytest
from temporalio.common import RetryPolicy
from temporalio.exceptions import ApplicationError
from temporalio.testing import ActivityEnvironment
from temporalio.worker import ActivityInboundInterceptor, ExecuteActivityInput

from activities.failures import BUDGET_SPENT, BUDGETS, Failures
from domain.errors import NoSuchBuild, NotYet, RefusedForNow, RunnerOut, StoreOut
from workflows import policies

MINUTE: Final = 60.0
HOUR: Final = 60 * MINUTE
Says = Callable[[float], Exception | None]


class Outside(ActivityInboundInterceptor):
    """What the activity itself would do: fails or not, by the time it is."""

    def __init__(self, says: Says, now: Callable[[], float]) -> None:
        self._says, self._now = says, now

    async def execute_activity(self, _: ExecuteActivityInput) -> str:
        error = self._says(self._now())
        if error is not None:
            raise error
        return "answered"


@dataclass
class Attempts:
    """Temporal's part: attempts with growing waits, and the last heartbeat handed on."""

    activity: str
    policy: dict[str, Any]
    says: Says
    away: tuple[float, float] = (-1, -1)
    """No worker runs from the first to the second."""
    now: float = 0
    failed_at: list[float] = field(default_factory=list)
    details: Sequence[Any] = ()

    async def until_it_ends(self, limit: float = 24 * HOUR) -> str:
        """``answered``, or the type of the error that ended it."""
        retry: RetryPolicy = self.policy["retry_policy"]
        most = (retry.maximum_interval or 100 * retry.initial_interval).total_seconds()
        wait = retry.initial_interval.total_seconds()
        attempt = 1
        while self.now < limit:
            try:
                return await self._attempt(attempt)
            except ApplicationError as error:
                if error.non_retryable:
                    return error.type or ""
                if error.type != NotYet.__name__:
                    self.failed_at.append(self.now)
            self._wait(min(wait * retry.backoff_coefficient ** min(attempt - 1, 20), most))
            attempt += 1
        return "still trying"

    async def _attempt(self, attempt: int) -> str:
        environment = ActivityEnvironment()
        environment.info = replace(
            environment.info,
            activity_type=self.activity,
            attempt=attempt,
            heartbeat_details=self.details,
            heartbeat_timeout=None,
            start_to_close_timeout=self.policy["start_to_close_timeout"],
            started_time=datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=self.now),
        )
        environment.on_heartbeat = self._beat
        inbound = Failures().intercept_activity(Outside(self.says, lambda: self.now))
        given = ExecuteActivityInput(fn=len, args=(), executor=None, headers={})
        answer: str = await environment.run(inbound.execute_activity, given)
        return answer

    def _beat(self, *details: Any) -> None:
        self.details = [list(part) for part in details]  # as from JSON

    def _wait(self, seconds: float) -> None:
        self.now += seconds
        if self.away[0] <= self.now < self.away[1]:
            self.now = self.away[1]


def fails_until(end: float, *errors: Exception, then: Exception | None = None) -> Says:
    """One error after the other, then ``then``."""

    def says(now: float) -> Exception | None:
        return errors[int(now) % len(errors)] if now < end else then

    return says


NO_BUILD: Final = NoSuchBuild("fake/1")
LIMITED: Final = RefusedForNow("429: slow down")
ANY: Final = (
    RunnerOut("502"),
    RefusedForNow("429"),
    PermissionError("401"),
    TimeoutError(),
    KeyError(),
)
POLLS = pytest.mark.parametrize("policy", [policies.POLL, policies.POLL_PUSHED])


@POLLS
@pytest.mark.spec("V120")
async def test_status_reads_that_fail_for_three_hours_end_nothing(policy: dict[str, Any]) -> None:
    polls = Attempts("watch_build", policy, fails_until(3 * HOUR, *ANY))
    assert await polls.until_it_ends() == "answered"
    assert polls.now >= 3 * HOUR


@POLLS
@pytest.mark.spec("V120")
async def test_no_such_build_for_nine_minutes_ends_nothing(policy: dict[str, Any]) -> None:
    polls = Attempts("watch_build", policy, fails_until(9 * MINUTE, NO_BUILD))
    assert await polls.until_it_ends() == "answered"


@pytest.mark.spec("V120")
async def test_a_good_answer_ends_the_series() -> None:
    """Eight minutes of failures, one answer that nothing follows from, eight minutes more."""

    def says(now: float) -> Exception | None:
        if 8 * MINUTE <= now < 9 * MINUTE:
            return NotYet("still running")
        return NO_BUILD if now < 17 * MINUTE else None

    polls = Attempts("watch_build", policies.POLL, says)
    assert await polls.until_it_ends() == "answered"


@POLLS
async def test_no_such_build_for_the_whole_budget_is_the_end(policy: dict[str, Any]) -> None:
    """V121, the budget; what it ends in is told by the stories."""
    polls = Attempts("watch_build", policy, fails_until(HOUR, NO_BUILD))
    assert await polls.until_it_ends() == BUDGET_SPENT
    assert 10 * MINUTE < polls.now <= 11 * MINUTE


@pytest.mark.spec("V97")
async def test_a_refusal_that_may_pass_has_ten_minutes_and_an_outage_has_hours() -> None:
    """What each ends in is told by the stories of triggers."""
    refused = Attempts("trigger", policies.RUNNER, fails_until(11 * MINUTE, LIMITED))
    assert await refused.until_it_ends() == BUDGET_SPENT
    assert 10 * MINUTE < refused.now < 11 * MINUTE
    out = Attempts("trigger", policies.RUNNER, fails_until(3 * HOUR, RunnerOut("502"), OSError()))
    assert await out.until_it_ends() == "answered"
    assert out.now >= 3 * HOUR


@pytest.mark.spec("V95")
async def test_five_minutes_of_anything_are_waited_out_with_growing_waits() -> None:
    trigger = Attempts("trigger", policies.RUNNER, fails_until(5 * MINUTE, *ANY))
    assert await trigger.until_it_ends() == "answered"
    waits = [
        later - sooner
        for sooner, later in zip(trigger.failed_at, trigger.failed_at[1:], strict=False)
    ]
    assert waits[:6] == [1, 2, 4, 8, 16, 30]
    assert set(waits[6:]) == {30}


@pytest.mark.spec("V370")
@pytest.mark.parametrize(
    ("activity", "policy", "error"),
    [("watch_build", policies.POLL, NO_BUILD), ("trigger", policies.RUNNER, LIMITED)],
)
async def test_hours_in_which_nobody_tried_are_not_spent(
    activity: str, policy: dict[str, Any], error: Exception
) -> None:
    back = 2 * MINUTE + 6 * HOUR
    calls = Attempts(activity, policy, fails_until(back + 7 * MINUTE, error), (2 * MINUTE, back))
    assert await calls.until_it_ends() == "answered"
    calls = Attempts(activity, policy, fails_until(24 * HOUR, error), (2 * MINUTE, back))
    assert await calls.until_it_ends() == BUDGET_SPENT
    assert back + 6 * MINUTE < calls.now < back + 10 * MINUTE


@pytest.mark.spec("V370")
def test_no_schedule_to_close_timeout_ends_a_stage() -> None:
    """A trigger's is its deadline, past which it is asked once more; a local try is followed up."""
    named = {name: policy for name, policy in vars(policies).items() if isinstance(policy, dict)}
    assert {n for n, policy in named.items() if "schedule_to_close_timeout" in policy} == {"LOCAL"}


@pytest.mark.parametrize("activity", sorted(BUDGETS))
async def test_a_store_that_is_out_spends_no_budget(activity: str) -> None:
    """Section 4: tried again without end."""
    out = fails_until(100 * HOUR, StoreOut("the database is gone"))
    calls = Attempts(activity, policies.RUNNER, out)
    assert await calls.until_it_ends(20 * HOUR) == "still trying"
