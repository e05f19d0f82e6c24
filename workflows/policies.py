"""Every timeout and retry rule."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Final

from temporalio.common import Priority, RetryPolicy
from temporalio.workflow import ActivityCancellationType

WATCH_QUEUE: Final = "lastgreen-watch"
BUILDS_QUEUE: Final = "lastgreen-builds"
MAIN_QUEUE: Final = "lastgreen"

SECOND: Final = timedelta(seconds=1)
BACK_OFF: Final = RetryPolicy(initial_interval=SECOND, maximum_interval=30 * SECOND)
GATE: Final = Priority(priority_key=1)

LOCAL: Final[dict[str, Any]] = {
    "start_to_close_timeout": 5 * SECOND,
    "schedule_to_close_timeout": 8 * SECOND,
    "retry_policy": RetryPolicy(initial_interval=0.1 * SECOND, maximum_attempts=3),
}
"""A step of the store while it is well."""

AT_HAND: Final[dict[str, Any]] = {
    "start_to_close_timeout": 5 * SECOND,
    "retry_policy": RetryPolicy(maximum_attempts=1),
}
"""A first try of what is asked of a build runner: where it fails, a regular activity follows."""

FOR_EVER: Final[dict[str, Any]] = {
    "start_to_close_timeout": 30 * SECOND,
    "retry_policy": BACK_OFF,
    "priority": GATE,
}
"""A step of the store while it is not: seen in the UI, blocks no signal."""

ONCE: Final[dict[str, Any]] = {
    "start_to_close_timeout": 60 * SECOND,
    "retry_policy": RetryPolicy(maximum_attempts=1),
}

RUNNER: Final[dict[str, Any]] = {
    "start_to_close_timeout": 60 * SECOND,
    "heartbeat_timeout": 120 * SECOND,
    "retry_policy": BACK_OFF,
}

SOURCE_CONTROL: Final[dict[str, Any]] = {
    "start_to_close_timeout": 600 * SECOND,
    "heartbeat_timeout": 30 * SECOND,
    "retry_policy": BACK_OFF,
}

ANCESTRY: Final[dict[str, Any]] = SOURCE_CONTROL | {"priority": GATE}
"""Without a budget: a head at the gate waits as long as source control is out."""

POLL: Final[dict[str, Any]] = {
    "start_to_close_timeout": 60 * SECOND,
    "retry_policy": RetryPolicy(initial_interval=2 * SECOND, maximum_interval=30 * SECOND),
    "cancellation_type": ActivityCancellationType.TRY_CANCEL,
}
POLL_PUSHED: Final[dict[str, Any]] = POLL | {
    "retry_policy": RetryPolicy(initial_interval=60 * SECOND, backoff_coefficient=1.0),
}
"""A runner that wakes us: polling is only the fallback."""

SINK: Final[dict[str, Any]] = {
    "start_to_close_timeout": 15 * SECOND,
    "retry_policy": RetryPolicy(initial_interval=SECOND, maximum_interval=600 * SECOND),
}

WATCH: Final[dict[str, Any]] = {
    "start_to_close_timeout": timedelta(hours=24),
    "heartbeat_timeout": 60 * SECOND,
    "retry_policy": BACK_OFF,
    "task_queue": WATCH_QUEUE,
}

BISECT_AGAIN: Final = 60 * SECOND
WATCH_AGAIN: Final = 60 * SECOND
STANDS_STILL: Final = 30 * SECOND
REPORT_WAIT: Final = 30 * SECOND
DRIVE_AGAIN_MS: Final = 5 * 60_000
CHILD_AGAIN: Final = SECOND
ALMOST_MS: Final = 31_000
"""The server ends a retried activity one back-off before its deadline."""
KNOWN_PAIRS: Final = 20
LONG_HISTORY: Final = 2_000
