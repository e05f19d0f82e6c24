"""What a build left behind, kept on this machine beyond its worktree."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Final

MOST_BYTES: Final = 10_000_000


def report_path(builds: Path, build_id: str) -> Path:
    return builds.absolute() / "report" / build_id.rpartition("/")[2]


def keep_report(tree: Path, name: str, kept: Path) -> None:
    """Of the last attempt, as it is: who reads it says what is wrong with it. Nothing that lies
    outside the worktree, and no more than would be read.
    """
    kept.parent.mkdir(parents=True, exist_ok=True)
    kept.unlink(missing_ok=True)
    left = tree / name
    with suppress(OSError):
        if left.resolve().is_relative_to(tree.resolve()):
            with left.open("rb") as report:
                kept.write_bytes(report.read(MOST_BYTES + 1))
