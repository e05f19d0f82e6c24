"""What workflows are started with, and told."""

from __future__ import annotations

from dataclasses import dataclass

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from activities.buildrunner import Question
    from domain.act import Act
    from domain.identity import Fence
    from domain.request import State


@dataclass(frozen=True, slots=True)
class QueueInput:
    """All that a queue remembers from run to run: the rest is in the store."""

    fence: Fence
    queue: str


@dataclass(frozen=True, slots=True)
class Report:
    """Answer of ``report_head``: the request of the head, or why there is none."""

    request: str | None
    is_new: bool = False
    error: str = ""
    kind: str = ""


@dataclass(frozen=True, slots=True)
class Asked:
    """``act`` of a person, from whoever knows which store is meant."""

    fence: Fence
    act: Act


@dataclass(frozen=True, slots=True)
class BuildInput:
    fence: Fence
    queue: str
    request: int
    uri: str
    deadline: int
    again: bool = False


@dataclass(frozen=True, slots=True)
class WatchBuild:
    question: Question
    uri: str
    until: int


@dataclass(frozen=True, slots=True)
class RecordInput:
    fence: Fence
    queue: str
    request: int
    uri: str
    state: State


@dataclass(frozen=True, slots=True)
class RequestInput:
    """Of what works on one request, beside its build: its hooks, its bisection."""

    fence: Fence
    queue: str
    request: int


@dataclass(frozen=True, slots=True)
class WatchInput:
    fence: Fence
    remote: str
