"""A clear error, the right exit code, and nothing is lost or made."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from cli.main import run
from domain.errors import (
    Malformed,
    Misconfigured,
    NotFound,
    Refused,
    SourceControlOut,
    StoreOut,
    Transient,
)
from tests.cli.command import lastgreen
from wiring.temporal import TemporalOut

QUEUE = '[[queue]]\nname = "q"\nrepository = "/r"\nref = "main"\ncommand = ["true"]\n'


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    assert not list(tmp_path.rglob("store.db")), "a refused verb made a store"


def up(*arguments: str) -> int:
    return run(["up", "--data", "data", "--command", "true", *arguments])


@pytest.mark.parametrize("url", ["--upload-pack=touch x", "ext::sh -c true", "-", "a\nb", ""])
def test_a_url_that_git_would_run_is_refused(
    url: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert up(f"--repository={url}") == 2
    assert "must be a path or a URL" in capsys.readouterr().err
    assert not list(folder.iterdir())


@pytest.mark.parametrize("target", ["main", "refs/heads/main"])
def test_promoting_to_the_validated_ref_is_refused(
    target: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert up("--repository", "r", "--promote", target) == 2
    assert "would move the trunk itself" in capsys.readouterr().err
    assert not list(folder.iterdir())


@pytest.mark.parametrize("name", ["..", "a/../b", "a\nb", "x" * 300, "", "a//b", "a b"])
def test_a_queue_name_is_parsed_at_the_door(
    name: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["report", name]) == 2
    assert "queue name" in capsys.readouterr().err
    if name:
        assert up("--repository", "r", "--queue", name) == 2
        assert "queue name" in capsys.readouterr().err
    assert not list(folder.iterdir())


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["up", "--command", "true"], "--command needs --repository"),
        (["up", "--repository", "r"], "--repository needs --command"),
        (["up", "--repository", "r", "--command", "a 'b"], "No closing quotation"),
        (["up", "--repository", "r", "--command", "true", "--ref", "a..b"], "not a name of a ref"),
        (["up"], "lastgreen.toml: No such file"),
        (["check"], "--config, or start one queue with --repository"),
        (["worker"], "lastgreen.toml: No such file"),
        (["report", "q"], "lastgreen.toml: No such file"),
        (["show", "7"], "must be request/<queue>/<number>"),
        (["no-such-verb"], "No such command"),
        (["status", "--no-such-option"], "No such option"),
        (["requests", "q", "--state", "no-such-state"], "no-such-state"),
    ],
)
def test_usage(arguments: list[str], text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(arguments) == 2
    told = capsys.readouterr()
    assert text in told.err
    assert not told.out


def test_an_unknown_key_is_told_by_file_line_and_key(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "lastgreen.toml").write_text(f"version = 1\n{QUEUE}colour = []\n")
    for verb in ("check", "up", "worker", "queues"):
        assert run([verb]) == 2
        assert "lastgreen.toml:7: colour: unknown key" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ('runner = "jenkins"', "no build runner is called 'jenkins'"),
        ('hooks = ["pager"]', "no sink is called 'pager'"),
        ('promote = "main"', "would move the trunk itself"),
        ('promote = "a..b"', "not a name of a ref"),
    ],
)
def test_check_finds_what_only_a_run_would(
    line: str, text: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "lastgreen.toml").write_text(f"version = 1\n{QUEUE}{line}\n")
    assert run(["check"]) == 2
    assert text in capsys.readouterr().err


def test_check_shows_the_queues(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "lastgreen.toml").write_text(f"version = 1\n{QUEUE}")
    assert run(["check"]) == 0
    assert capsys.readouterr().out.splitlines()[1].split() == ["q", "/r", "main", "-", "command"]


def test_a_queue_that_is_not_configured_is_never_reported(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "lastgreen.toml").write_text(f"version = 1\n{QUEUE}")
    assert run(["report", "other"]) == 2
    assert "'other' is not configured in lastgreen.toml: q" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [
        ["status"],
        ["requests", "q"],
        ["last-green", "q"],
        ["is-green", "q", "a"],
        ["show", "request/q/1"],
    ],
)
def test_no_store_is_never_an_answer(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(arguments) == 69
    assert "there is no store in" in capsys.readouterr().err


def test_a_data_folder_that_is_none(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A file in its place: as root, no mode of a folder would be in the way."""
    (folder / "data").write_text("mine")
    assert up("--repository", "r") == 2
    assert "cannot be written: File exists; name another with --data" in capsys.readouterr().err
    assert (folder / "data").read_text() == "mine"


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (Malformed("why"), 2),
        (NotFound("why"), 2),
        (Misconfigured("why"), 2),
        (Refused("why"), 4),
        (StoreOut("why"), 69),
        (SourceControlOut("why"), 69),
        (TemporalOut("why"), 69),
        (Transient("why"), 70),
        (ZeroDivisionError("why"), 70),
    ],
)
def test_exit_codes_of_errors(
    error: Exception, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*_: object) -> None:
        raise error

    monkeypatch.setattr("cli.verbs.ask.reading", broken)
    assert run(["status"]) == code
    said = capsys.readouterr().err
    assert "why" in said and "Traceback" not in said
    assert run(["status", "--debug"]) == code
    assert "Traceback" in capsys.readouterr().err


def test_temporal_that_does_not_answer(folder: Path) -> None:
    """A process of its own: it must also end in order after a connection that was refused."""
    (folder / "lastgreen.toml").write_text(f"version = 1\n{QUEUE}")
    told = lastgreen(folder, "worker", TEMPORAL_ADDRESS="127.0.0.1:1")
    assert told.returncode == 69
    assert "127.0.0.1:1" in told.stderr and "lastgreen up" in told.stderr
