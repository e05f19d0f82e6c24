"""A repository that is one project."""

from __future__ import annotations

from domain.results import ProjectResult


class NoProjects:
    async def resolve(self, queue: str, build_id: str) -> tuple[ProjectResult, ...]:
        _ = queue, build_id
        return ()
