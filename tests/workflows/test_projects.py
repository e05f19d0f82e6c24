"""Facts of the projects in a repository, beside the repository's own."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from temporalio.client import Client
from temporalio.common import RetryPolicy

from activities import failures
from domain.act import Verb
from domain.errors import ProjectsOut
from domain.event import EventType
from domain.fact import BROKEN, GREEN, PARTLY
from domain.request import State
from domain.results import ProjectResult
from tests.trunk import Trunk, running_trunk
from workflows import policies

BAD = (ProjectResult("api", 1.0), ProjectResult("web", 0.25), ProjectResult("docs", 0.0))


@pytest_asyncio.fixture
async def trunk(client: Client, tmp_path: Path) -> AsyncIterator[Trunk]:
    async with running_trunk(client, tmp_path) as trunk:
        yield trunk


async def ends(
    trunk: Trunk, uri: str, status: str, results: tuple[ProjectResult, ...] = ()
) -> None:
    await trunk.report(uri)
    number = (await trunk.request(uri)).number
    trunk.projects.results[await trunk.triggered(number)] = results
    await trunk.build_ends(uri, status)
    await trunk.recorded(uri)


async def degree(trunk: Trunk, uri: str, project: str = "") -> float | None:
    fact = await trunk.store.fact(trunk.queue, uri, project)
    return fact.degree if fact else None


async def of_projects(trunk: Trunk, uri: str) -> list[float | None]:
    return [await degree(trunk, uri, result.project) for result in BAD]


async def said(trunk: Trunk, number: int) -> dict[str, str]:
    return {row.kind: row.detail for row in await trunk.store.history(trunk.queue, number)}


@pytest.mark.spec("V165")
@pytest.mark.parametrize(("status", "whole"), [("succeeded", GREEN), ("failed", BROKEN)])
async def test_without_results_the_repository_is_green_or_broken_and_that_is_complete(
    trunk: Trunk, status: str, whole: float
) -> None:
    await ends(trunk, "A", status)
    assert await degree(trunk, "A") == whole
    assert (await said(trunk, 1))["project_facts_recorded"] == "0"


@pytest.mark.spec("V166", "V167", "V172")
@pytest.mark.parametrize(("status", "whole"), [("succeeded", GREEN), ("failed", PARTLY)])
async def test_with_results_each_project_has_its_own_fact_and_the_repository_decides(
    trunk: Trunk, status: str, whole: float
) -> None:
    await ends(trunk, "A", status, BAD)
    assert await degree(trunk, "A") == whole
    assert await of_projects(trunk, "A") == [1.0, 0.25, 0.0]
    assert (await said(trunk, 1))["project_facts_recorded"] == "3"
    is_green = status == "succeeded"
    assert (await trunk.last_green() == (1, "A")) is is_green
    assert (trunk.source.promotion == "A") is is_green


@pytest.mark.spec("V168")
@pytest.mark.parametrize(
    "wrong", [ProjectResult("", 0.0), ProjectResult("api", 0.0), ProjectResult("x", math.nan)]
)
async def test_one_wrong_result_leaves_all_out_and_the_repository_is_as_without(
    trunk: Trunk, wrong: ProjectResult
) -> None:
    await ends(trunk, "A", "failed", (*BAD, wrong))
    assert await degree(trunk, "A") == BROKEN
    assert await of_projects(trunk, "A") == [None] * 3
    assert "project_facts_recorded" not in await said(trunk, 1)
    (letter,) = await trunk.store.dead_letters(trunk.queue)
    assert (letter.kind, letter.subject) == ("projects", "1")
    assert "project result 4" in letter.detail


@pytest.mark.spec("V169")
async def test_no_fact_is_written_before_the_resolver_answers(
    trunk: Trunk, monkeypatch: pytest.MonkeyPatch
) -> None:
    often = RetryPolicy(initial_interval=0.05 * policies.SECOND)
    monkeypatch.setitem(policies.FOR_EVER, "retry_policy", often)
    trunk.projects.out = ProjectsOut("502")
    await trunk.report("A")
    trunk.projects.results[await trunk.triggered()] = BAD
    await trunk.build_ends("A", "failed")
    await trunk.is_in("A", State.FAILED)
    await asyncio.sleep(0.5)
    assert await degree(trunk, "A") is None
    trunk.projects.out = None
    await trunk.recorded("A")
    assert (await degree(trunk, "A"), await of_projects(trunk, "A")) == (PARTLY, [1.0, 0.25, 0.0])


@pytest.mark.spec("V169")
async def test_a_resolver_that_is_out_for_too_long_is_left_out(
    trunk: Trunk, monkeypatch: pytest.MonkeyPatch
) -> None:
    often = RetryPolicy(initial_interval=0.05 * policies.SECOND)
    monkeypatch.setitem(policies.FOR_EVER, "retry_policy", often)
    monkeypatch.setitem(failures.BUDGETS, "facts", (Exception, 0.3))
    trunk.projects.out = ProjectsOut("502")
    await ends(trunk, "A", "succeeded", BAD)
    assert (await degree(trunk, "A"), await of_projects(trunk, "A")) == (GREEN, [None] * 3)
    assert "project_facts_recorded" not in await said(trunk, 1)
    (letter,) = await trunk.store.dead_letters(trunk.queue)
    assert letter.kind == "projects"
    assert trunk.source.promotion == "A"


@pytest.mark.spec("V171")
async def test_each_project_is_announced_before_the_repository(trunk: Trunk) -> None:
    await ends(trunk, "A", "failed", BAD)
    kinds = [EventType.STARTED, *[EventType.PROJECT_RECORDED] * 3, EventType.RECORDED]

    async def all_heard() -> bool:
        return len(trunk.sink.ids) == len(kinds)

    await trunk.until(all_heard)
    events = {event.id: event for event in trunk.sink.heard}.values()
    assert [event.type for event in events] == kinds
    projects = [event.payload.get("project") for event in events]
    assert sorted(p for p in projects if p) == ["api", "docs", "web"]
    assert len({event.id for event in events}) == len(kinds)


@pytest.mark.spec("V173")
async def test_a_project_that_was_green_once_stays_green(trunk: Trunk) -> None:
    await ends(trunk, "A", "failed", (ProjectResult("api", 0.0), ProjectResult("web", 1.0)))
    await trunk.act(Verb.RETRY, 1)
    trunk.projects.results[await trunk.triggered(2)] = (
        ProjectResult("api", 1.0),
        ProjectResult("web", 0.0),
    )
    await trunk.fails("A")
    for project, request in (("api", 1), ("web", 2)):
        fact = await trunk.store.fact(trunk.queue, "A", project)
        assert fact is not None
        assert (fact.request, fact.degree) == (request, 0.0)
    assert await degree(trunk, "A") == PARTLY


@pytest.mark.spec("V230")
async def test_only_the_results_of_the_deciding_build_are_recorded(
    client: Client, tmp_path: Path
) -> None:
    async with running_trunk(client, tmp_path, confirm_failures=1) as trunk:
        await trunk.report("A")
        trunk.projects.results[await trunk.triggered()] = (ProjectResult("first", 1.0),)
        await trunk.build_ends("A", "failed")
        trunk.projects.results[await trunk.triggered(1, 2)] = (ProjectResult("second", 1.0),)
        await trunk.fails("A")
        assert await degree(trunk, "A", "first") is None
        assert await degree(trunk, "A", "second") == 1.0
