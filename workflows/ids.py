"""The ids of workflows: no two of different kinds can be equal."""

from __future__ import annotations

from typing import Final

from temporalio.common import SearchAttributeKey

QUEUE: Final = SearchAttributeKey.for_keyword("LastgreenQueue")
REQUEST: Final = SearchAttributeKey.for_keyword("LastgreenRequest")
STATE: Final = SearchAttributeKey.for_keyword("LastgreenState")
URI: Final = SearchAttributeKey.for_keyword("LastgreenUri")
SEARCH_ATTRIBUTES: Final = (QUEUE, REQUEST, STATE, URI)


def queue(name: str) -> str:
    return f"queue/{name}"


def build(name: str, number: int) -> str:
    return f"request/{name}/{number}"


def buildsignal(name: str, number: int, attempt: int) -> str:
    return f"{build(name, number)}/buildsignal/{attempt}"


def record(name: str, number: int) -> str:
    return f"{build(name, number)}/record"


def bisect(name: str, number: int) -> str:
    return f"bisect/{build(name, number)}"


def hooks(name: str, number: int) -> str:
    return f"hooks/{build(name, number)}"


def watch(remote: str) -> str:
    """Of a remote's id, never its address."""
    return f"watch/{remote}"
