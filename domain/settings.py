"""Settings of a queue: defaults and ranges. Seconds, as a person writes them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Final

from domain.errors import Malformed
from domain.event import EventType
from domain.identity import queue_name


@dataclass(frozen=True, slots=True)
class Route:
    """One sink that hears of a queue; no types means all of them. ``edges``: of changes alone."""

    sink: str
    types: tuple[EventType, ...] = ()
    edges: bool = False

    def hears(self, kind: EventType, *, is_edge: bool = True) -> bool:
        return (not self.types or kind in self.types) and (is_edge or not self.edges)


BISECT: Final = ("off", "ask", "auto")
RED_CODES: Final = range(1, 256)
RANGES: Final[Mapping[str, tuple[float, float]]] = {
    "max_concurrent": (1, 1_000),
    "gate_wait": (1, 86_400),
    "rewind_confirm": (0, 3_600),
    "confirm_failures": (0, 5),
    "start_timeout": (1, 30 * 86_400),
    "validation_timeout": (1, 30 * 86_400),
    "slot_grace": (1, 86_400),
    "cancel_grace": (1, 86_400),
    "watch_interval": (1, 86_400),
}


@dataclass(frozen=True, slots=True)
class QueueSettings:
    """What a queue is made of. The runner's and remote's own settings are their extensions'."""

    name: str
    repository: str
    ref: str
    runner: str = "command"
    command: tuple[str, ...] = ()
    shell: bool = False
    infrastructure_codes: tuple[int, ...] = ()
    """Exit codes of the command that are no verdict: it is run again."""
    projects: str = "none"
    report: str | None = None
    """A file that the command leaves in its worktree, kept for ``projects``."""
    environment: tuple[str, ...] = ()
    """Names of variables handed on to the command, beyond PATH, HOME, LANG and TMPDIR."""
    promote: str | None = None
    hooks: tuple[Route, ...] = ()
    max_concurrent: int = 1
    gate_wait: float = 30
    rewind_confirm: float = 10
    confirm_failures: int = 0
    start_timeout: float = 30 * 60
    validation_timeout: float = 4 * 3600
    slot_grace: float = 15 * 60
    cancel_grace: float = 2 * 60
    watch_interval: float = 15
    bisect: str = "off"
    """``ask``: when a person does; ``auto``: of each red head over more than one commit."""

    def __post_init__(self) -> None:
        queue_name(self.name)
        for key, limits in RANGES.items():
            in_range(key, getattr(self, key), limits)
        self._check_report()
        if self.bisect not in BISECT:
            raise Malformed(f"bisect = {self.bisect!r}: must be one of {', '.join(BISECT)}")
        if self.slot_grace <= self.cancel_grace:
            raise Malformed("slot_grace must be longer than cancel_grace")

    def _check_report(self) -> None:
        if wrong := set(self.infrastructure_codes) - set(RED_CODES):
            raise Malformed(f"infrastructure_codes: {min(wrong)} is not from 1 to 255")
        if (self.report is not None) != (self.projects == "report"):
            raise Malformed('report = a path, and projects = "report": each needs the other')
        if self.report is not None and (
            self.report.startswith("/") or ".." in self.report.split("/")
        ):
            raise Malformed(f"report = {self.report!r}: must be a path inside the worktree")


def in_range(key: str, value: float, limits: tuple[float, float]) -> None:
    low, high = limits
    if not low <= value <= high:
        raise Malformed(f"{key} = {value:g}: must be from {low:g} to {high:g}")


def ms(seconds: float) -> int:
    return round(seconds * 1000)


def normal_ref(ref: str) -> str:
    """``main`` and ``refs/heads/main`` are one ref."""
    return ref if ref.startswith("refs/") else f"refs/heads/{ref}"


def remote_id(repository: str) -> str:
    """Names a remote where its address must not stand: it may hold a credential."""
    return sha256(repository.encode()).hexdigest()[:16]


def check_together(queues: Mapping[str, QueueSettings]) -> None:
    """No promotion ref may be a validated ref, or another queue's, of the same remote."""
    validated = {(q.repository, normal_ref(q.ref)): q.name for q in queues.values()}
    taken: dict[tuple[str, str], str] = {}
    for queue in queues.values():
        if queue.promote is None:
            continue
        target = (queue.repository, normal_ref(queue.promote))
        if target in validated:
            raise Malformed(
                f"queue {queue.name}: promote = {queue.promote!r} is the ref that queue "
                f"{validated[target]} validates; promoting would move the trunk itself"
            )
        if target in taken:
            raise Malformed(
                f"queue {queue.name}: promote = {queue.promote!r} is already the promotion ref "
                f"of queue {taken[target]}"
            )
        taken[target] = queue.name
