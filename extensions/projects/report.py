"""Reads the report that a build left behind: JSON, or JUnit XML."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import ParseError

from defusedxml.common import DefusedXmlException
from defusedxml.ElementTree import fromstring

from domain.errors import ResultsRefused
from domain.results import ProjectResult
from extensions.kept import MOST_BYTES, report_path


@dataclass(frozen=True)
class ReportedProjects:
    """``{"projects": {"name": degree}}``, or JUnit, where each suite is a project and its degree
    the share of its tests that failed.
    """

    builds_directory: Path

    async def resolve(self, queue: str, build_id: str) -> Sequence[ProjectResult]:
        _ = queue
        path = report_path(self.builds_directory, build_id)
        return await asyncio.to_thread(read_report, path)


def read_report(path: Path) -> list[ProjectResult]:
    """``ResultsRefused``, naming the file, where there is none, or none that can be read."""
    try:
        size = path.stat().st_size
        if size > MOST_BYTES:
            raise ResultsRefused(f"report {path}: {size} bytes, at most {MOST_BYTES}")
        text = path.read_bytes().strip()
    except OSError as error:
        raise ResultsRefused(f"report {path}: {error.strerror}") from error
    try:
        return list(_of_junit(text) if text.startswith(b"<") else _of_json(text))
    except (ValueError, TypeError, ParseError, DefusedXmlException) as error:
        raise ResultsRefused(f"report {path}: {error}") from error


def _of_json(text: bytes) -> Iterator[ProjectResult]:
    projects = json.loads(text, object_pairs_hook=_once)
    if not isinstance(projects, dict) or not isinstance(projects.get("projects"), dict):
        raise TypeError('it needs the form {"projects": {"name": degree}}')
    for name, degree in projects["projects"].items():
        if isinstance(degree, bool) or not isinstance(degree, int | float):
            raise TypeError(f"project {name!r}: degree {degree!r} is no number")
        yield ProjectResult(name, float(degree))


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise ValueError(f"{name!r} is there twice")
        found[name] = value
    return found


def _of_junit(text: bytes) -> Iterator[ProjectResult]:
    root = fromstring(text, forbid_dtd=True)
    for suite in [root] if root.tag == "testsuite" else root.iter("testsuite"):
        tests = int(suite.get("tests", "0")) - int(suite.get("skipped", "0"))
        failed = int(suite.get("failures", "0")) + int(suite.get("errors", "0"))
        yield ProjectResult(suite.get("name", ""), failed / tests if tests > 0 else 0.0)
