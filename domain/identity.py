"""Names and ids, parsed once at the door."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, NewType, Self

from domain.errors import Malformed

Queue = NewType("Queue", str)
Uri = NewType("Uri", str)

MAX_NUMBER: Final = 2**63 - 1
MAX_NAME: Final = 200
_SEGMENT: Final = re.compile(r"[A-Za-z0-9._-]+")
_NUMBER: Final = re.compile(r"[1-9][0-9]{0,18}")
_INSTALLATION: Final = re.compile(r"[0-9a-f]{32}")
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")


def queue_name(text: str) -> Queue:
    """Segments of ``A-Z a-z 0-9 . _ -`` joined by ``/``, 1 to 200 bytes."""
    if not 1 <= len(text.encode(errors="replace")) <= MAX_NAME:
        raise Malformed(f"queue name {text[:40]!r}: must have 1 to {MAX_NAME} bytes")
    for segment in text.split("/"):
        if not _SEGMENT.fullmatch(segment) or segment in (".", ".."):
            raise Malformed(
                f"queue name {text!r}: segment {segment!r} is not allowed; "
                "use letters, digits, '.', '_' and '-', with '/' between segments"
            )
    return Queue(text)


def _opaque(what: str, text: str, limit: int) -> str:
    if not 1 <= len(text.encode(errors="surrogatepass")) <= limit:
        raise Malformed(f"{what}: must have 1 to {limit} bytes")
    if _CONTROL.search(text):
        raise Malformed(f"{what} {text[:80]!r}: control characters are not allowed")
    return text


def commit_uri(text: str) -> Uri:
    """Opaque: only a source control reads more into it than equality."""
    return Uri(_opaque("URI", text, 1024))


def build_id(text: str) -> str:
    return _opaque("build id", text, 255)


def project_id(text: str) -> str:
    """Never empty: the empty project is the repository itself."""
    return _opaque("project id", text, 255)


@dataclass(frozen=True, slots=True)
class RequestId:
    """``request/<queue>/<number>``; numbers of one queue are compared, others never."""

    queue: str
    number: int

    def __post_init__(self) -> None:
        queue_name(self.queue)
        if not 1 <= self.number <= MAX_NUMBER:
            raise Malformed(f"request number {self.number}: must be 1 to {MAX_NUMBER}")

    @classmethod
    def parse(cls, text: str, queue: str | None = None) -> Self:
        """``queue`` is the one it was asked about in: an id of another one is refused."""
        head, slash, number = text.rpartition("/")
        if not (slash and head.startswith("request/") and _NUMBER.fullmatch(number)):
            raise Malformed(f"request id {text[:240]!r}: must be request/<queue>/<number>")
        parsed = cls(head.removeprefix("request/"), int(number))
        if queue is not None and parsed.queue != queue:
            raise Malformed(f"request id {text[:240]!r} is not one of queue {queue!r}")
        return parsed

    def __str__(self) -> str:
        return f"request/{self.queue}/{self.number}"

    def is_older_than(self, other: RequestId) -> bool:
        if self.queue != other.queue:
            raise Malformed(f"{self} and {other} have no order: they are of two queues")
        return self.number < other.number


@dataclass(frozen=True, slots=True)
class Fence:
    """Which store, and since when: whoever carries an older epoch may neither write nor call."""

    installation: str
    epoch: int

    def __post_init__(self) -> None:
        if not _INSTALLATION.fullmatch(self.installation):
            raise Malformed("installation: must be 32 lower-case hex digits")


def idempotency_key(installation: str, request: RequestId, attempt: int) -> str:
    return f"{installation}/{request}" + (f"#{attempt}" if attempt > 1 else "")
