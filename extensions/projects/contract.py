"""The seam to what a build says of the projects in its repository."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from domain.results import ProjectResult


class Projects(Protocol):
    """``ResultsRefused`` for results that cannot be meant, ``ProjectsOut`` for no answer."""

    async def resolve(self, queue: str, build_id: str) -> Sequence[ProjectResult]:
        """Of one build that has ended; empty where it says nothing of projects."""
