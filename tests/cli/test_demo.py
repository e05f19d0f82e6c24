"""The whole, end to end: `demo` checks itself, and is checked here from outside."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from tests.cli.command import lastgreen


def test_the_demo_ends_well_and_leaves_nothing(tmp_path: Path) -> None:
    told = lastgreen(tmp_path, "demo", "--json", TMPDIR=str(tmp_path))
    assert told.returncode == 0, told.stderr
    assert "Temporal UI  http://127.0.0.1:" in told.stderr
    found = json.loads(told.stdout)
    assert found["wrong"] == []
    assert [(row["commit"], row["state"].split()[0], row["base"]) for row in found["requests"]] == [
        ("A", "succeeded", "-"),
        ("B", "superseded", "-"),
        ("C", "superseded", "-"),
        ("D", "succeeded", "A"),
        ("E", "superseded", "-"),
        ("F", "succeeded", "D"),
        ("G", "failed", "F"),
        ("H", "succeeded", "F"),
        ("X", "succeeded", "-"),
    ]
    assert not list(tmp_path.glob("lastgreen-demo-*"))
    running = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True)
    assert str(tmp_path) not in running.stdout
