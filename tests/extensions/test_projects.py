from __future__ import annotations

import json
from pathlib import Path

import pytest

from domain.errors import ProjectsOut, ResultsRefused
from domain.results import ProjectResult
from extensions.kept import MOST_BYTES, keep_report, report_path
from extensions.projects.contract import Projects
from extensions.projects.fake import FakeProjects
from extensions.projects.none import NoProjects
from extensions.projects.report import ReportedProjects

BUILD = "command/0123"
SAME = [ProjectResult("api", 0.0), ProjectResult("web", 0.25)]
JSON = json.dumps({"projects": {"api": 0, "web": 0.25}})
JUNIT = """<?xml version="1.0"?>
<testsuites>
  <testsuite name="api" tests="3" failures="0" errors="0" skipped="1"/>
  <testsuite name="web" tests="5" failures="0" errors="1" skipped="1"><testcase/></testsuite>
</testsuites>
"""


async def resolved(folder: Path, text: str) -> list[ProjectResult]:
    path = report_path(folder, BUILD)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return list(await ReportedProjects(folder).resolve("q", BUILD))


@pytest.mark.spec("V174")
@pytest.mark.parametrize("text", [JSON, JUNIT])
async def test_a_json_and_a_junit_report_say_the_same(tmp_path: Path, text: str) -> None:
    assert await resolved(tmp_path, text) == SAME


async def test_a_single_suite_is_a_project_and_one_without_tests_is_green(tmp_path: Path) -> None:
    assert await resolved(tmp_path, '<testsuite name="api"/>') == [ProjectResult("api", 0.0)]


BOMB = '<!DOCTYPE x [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;">]><testsuite name="&b;"/>'


@pytest.mark.spec("V174")
@pytest.mark.parametrize(
    "text",
    [
        "",
        "not a report",
        "[]",
        '{"projects": []}',
        '{"projects": {"a": "0"}}',
        '{"projects": {"a": true}}',
        '{"projects": {"a": 0, "a": 1}}',
        "<testsuite",
        '<testsuite name="a" tests="many"/>',
        BOMB,
    ],
)
async def test_a_broken_report_is_refused_with_the_file_named(tmp_path: Path, text: str) -> None:
    with pytest.raises(ResultsRefused, match=f"report {report_path(tmp_path, BUILD)}"):
        await resolved(tmp_path, text)


@pytest.mark.spec("V174")
async def test_no_report_and_an_oversized_one_are_refused_with_the_file_named(
    tmp_path: Path,
) -> None:
    with pytest.raises(ResultsRefused, match=r"report .*0123: No such file"):
        await ReportedProjects(tmp_path).resolve("q", BUILD)
    with pytest.raises(ResultsRefused, match=f"0123: {MOST_BYTES + 1} bytes"):
        await resolved(tmp_path, " " * (MOST_BYTES + 1))


def test_only_what_lies_in_the_worktree_is_kept_and_no_more_than_is_read(tmp_path: Path) -> None:
    tree, kept = tmp_path / "tree", tmp_path / "kept" / "report"
    tree.mkdir()
    (tmp_path / "secret").write_text("secret")
    (tree / "link").symlink_to(tmp_path / "secret")
    (tree / "folder").symlink_to(tmp_path)
    for name in ("link", "folder/secret", "missing"):
        keep_report(tree, name, kept)
        assert not kept.exists()
    (tree / "large").write_bytes(b"x" * (MOST_BYTES + 100))
    keep_report(tree, "large", kept)
    assert kept.stat().st_size == MOST_BYTES + 1
    keep_report(tree, "missing", kept)
    assert not kept.exists()


async def test_none_says_nothing_of_projects() -> None:
    assert await NoProjects().resolve("q", BUILD) == ()


@pytest.mark.spec("V321")
async def test_the_fake_keeps_what_it_is_given_and_fails_as_told() -> None:
    fake = FakeProjects()
    projects: Projects = fake
    fake.results[BUILD] = SAME
    assert await projects.resolve("q", BUILD) == SAME
    fake.errors.append(ProjectsOut("502"))
    with pytest.raises(ProjectsOut):
        await projects.resolve("q", BUILD)
    assert await projects.resolve("q", BUILD) == SAME
