"""What a build says of the projects in a repository."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from domain.errors import Malformed, ResultsRefused
from domain.fact import degree
from domain.identity import project_id

MOST: Final = 10_000
"""Results of one build."""


@dataclass(frozen=True, slots=True)
class ProjectResult:
    project: str
    degree: float


def check_results(results: Sequence[ProjectResult]) -> tuple[ProjectResult, ...]:
    """All of them or none: ``ResultsRefused`` names the entry that is wrong."""
    if len(results) > MOST:
        raise ResultsRefused(f"{len(results)} project results, at most {MOST}")
    seen: set[str] = set()
    for at, result in enumerate(results, 1):
        try:
            project_id(result.project)
            degree(result.degree)
        except Malformed as error:
            raise ResultsRefused(
                f"project result {at}, {result.project[:80]!r}: {error}"
            ) from error
        if result.project in seen:
            raise ResultsRefused(f"project result {at}: {result.project!r} is there twice")
        seen.add(result.project)
    return tuple(results)
