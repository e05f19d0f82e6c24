"""Hook events: what others hear. Ids come from the transition, never from a clock."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final
from urllib.parse import quote

from domain.errors import Malformed
from domain.identity import RequestId
from domain.request import ABANDONED as _ABANDONED
from domain.request import CANCELLED as _CANCELLED

SOURCE: Final = "lastgreen"


class EventType(StrEnum):
    STARTED = "validation.repository.started"
    PROJECT_RECORDED = "validation.project.recorded"
    RECORDED = "validation.repository.recorded"
    CANCELLED = _CANCELLED
    ABANDONED = _ABANDONED
    CULPRIT_FOUND = "validation.culprit.found"


@dataclass(frozen=True, slots=True)
class HookEvent:
    """The payload is identity alone: a sink reads the rest as it is when it is called."""

    installation: str
    type: EventType
    queue: str
    request: int
    timestamp_ms: int
    project: str = ""
    source: str = SOURCE
    version: int = 0

    def __post_init__(self) -> None:
        if not (self.installation and self.source and isinstance(self.type, EventType)):
            raise Malformed("event: installation, source and type are required")
        if self.timestamp_ms <= 0 or self.version != 0:
            raise Malformed("event: the time must be greater than 0, the version 0")
        if bool(self.project) != (self.type is EventType.PROJECT_RECORDED):
            raise Malformed(f"event: {self.type} with project {self.project!r}")

    @property
    def subject(self) -> str:
        request = str(RequestId(self.queue, self.request))
        return f"{request}/{quote(self.project, safe='')}" if self.project else request

    @property
    def id(self) -> str:
        return event_id(self.installation, self.type, self.subject)

    @property
    def payload(self) -> dict[str, str]:
        payload = {"queue": self.queue, "request_id": str(RequestId(self.queue, self.request))}
        return payload | ({"project": self.project} if self.project else {})


def event_id(installation: str, kind: EventType, subject: str) -> str:
    return f"{SOURCE}/{installation}/{kind}/{subject}/0"


def queue_named_in(event: str) -> str:
    """The queue of an event, by its id."""
    parts = event.split("/", 3)
    if len(parts) < 4 or parts[0] != SOURCE or not parts[3].endswith("/0"):  # noqa: PLR2004 - as event_id has it
        raise Malformed(f"{event!r} is no event's id: {SOURCE}/<installation>/<type>/<subject>/0")
    subject = parts[3].removesuffix("/0")
    if parts[2] == EventType.PROJECT_RECORDED:
        subject = subject.rpartition("/")[0]
    return RequestId.parse(subject).queue
