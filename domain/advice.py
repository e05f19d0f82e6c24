"""What a person can do about what no machine can mend."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from domain.request import ENDINGS, Cause

OF_KIND: Final[Mapping[str, str]] = {
    "record": "mend what refuses the fact; it is tried all the time, or at once by retry",
    "promotion": "mend the remote or its permissions, then retry; the next green moves it too",
    "hook": "mend the sink, then retry: the event is sent again under the same id",
}
OF_CAUSE: Final[Mapping[str, str]] = {
    Cause.TRIGGER_FAILED: "mend the runner's settings, then retry",
    Cause.NEVER_STARTED: "see why the runner starts nothing, then retry",
    Cause.POLLING_EXHAUSTED: "see why the runner lost the build, then retry",
    Cause.VALIDATION_TIMEOUT: "see why the build hung, or raise validation_timeout; then retry",
    Cause.PROCESSING_FAILED: "mend what the detail names, then retry",
}


def advice(kind: str, cause: str) -> str:
    text = OF_KIND.get(kind) or OF_CAUSE.get(cause, "read the detail, then retry or drop it")
    ending = ENDINGS[Cause(cause)] if kind == "request" and cause in set(Cause) else None
    return (
        f"{text}; while it is the newest it is tried again by itself"
        if (ending and ending.tried_again)
        else text
    )
