"""What the page for newcomers says, done by a newcomer; and what an operator asks about hooks."""

from __future__ import annotations

import base64
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

from tests.cli.command import ROOT, Up, answer, environment, lastgreen
from tests.extensions.remote import Remote

HOWTO: Final = (ROOT / "docs" / "howto" / "hooks.md").read_text(encoding="utf-8")
CANARY: Final = base64.b64encode(os.urandom(32)).decode()
SECRET: Final = {"BOARD_SECRET": f"whsec_{CANARY}"}
WHY: Final = ("--reason", "the board lost a day")
RECORDED: Final = "validation.repository.recorded"


def example(language: str) -> str:
    found = re.search(rf"^```{language}\n(.*?)^```", HOWTO, re.MULTILINE | re.DOTALL)
    assert found
    return found[1]


@dataclass
class Newcomer:
    folder: Path
    printed: Path
    receiver: Any
    up: Up

    def ask(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return lastgreen(self.folder, *arguments, **SECRET)

    def told(self) -> list[Any]:
        rows: list[Any] = answer(self.folder, "hooks", "list", "request/shop/main/1")
        return rows

    def until(self, line: str, times: int = 1) -> None:
        limit = time.monotonic() + 30
        while self.printed.read_text().splitlines().count(line) < times:
            assert time.monotonic() < limit, (self.printed.read_text(), self.up.said)
            time.sleep(0.05)


@pytest.fixture(scope="module")
def newcomer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Newcomer]:
    """Every word as it is on the page, but for a free port and a faster build."""
    folder = tmp_path_factory.mktemp("newcomer")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    config = example("toml").replace("8555", port).replace('["make", "test"]', '["true"]')
    (folder / "lastgreen.toml").write_text(config)
    (folder / "receiver.py").write_text(example("python").replace("8555", port))
    Remote(folder / "shop.git").land("A")
    printed = folder / "printed"
    with (
        printed.open("w") as out,
        subprocess.Popen(
            [sys.executable, "receiver.py"], cwd=folder, env=environment(**SECRET), stdout=out,
            stderr=subprocess.DEVNULL,
        ) as receiver,
    ):  # fmt: skip
        try:
            _listens(int(port))
            with Up(folder, **SECRET).running() as up:
                yield Newcomer(folder, printed, receiver, up)
        finally:
            receiver.kill()


def _listens(port: int) -> None:
    limit = time.monotonic() + 20
    while True:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        assert time.monotonic() < limit
        time.sleep(0.05)


def test_the_receiver_of_the_page_has_ten_lines() -> None:
    assert len([line for line in example("python").splitlines() if line.strip()]) == 10


def test_a_newcomer_receives_verified_events(newcomer: Newcomer) -> None:
    for kind in ("validation.repository.started", RECORDED):
        newcomer.until(f"{kind} request/shop/main/1")
    assert [(row["sink"], row["state"]) for row in newcomer.told()] == [("board", "delivered")] * 2


def test_an_event_is_delivered_once_more_under_its_id(newcomer: Newcomer) -> None:
    newcomer.until(f"{RECORDED} request/shop/main/1")
    (event,) = [row["event"] for row in newcomer.told() if RECORDED in row["event"]]
    again = newcomer.ask("hooks", "replay", event, "--sink", "board", *WHY, "--as", "ada")
    assert (again.returncode, again.stderr) == (0, "")
    assert again.stdout == f"replayed: {event} to board: the board lost a day\n"
    newcomer.until(f"{RECORDED} request/shop/main/1", 2)
    audit = answer(newcomer.folder, "audit", "shop/main")
    assert [(row["kind"], row["actor"]) for row in audit if row["actor"]] == [("replayed", "ada")]


@pytest.mark.parametrize(
    ("event", "code"),
    [
        ("nonsense", 2),
        ("lastgreen/0/validation.repository.recorded/request/shop/main/1/0", 2),
        ("lastgreen/0/validation.repository.recorded/request/shop/main/x/0", 2),
    ],
)
def test_what_nobody_was_told_of_is_not_delivered(
    newcomer: Newcomer, event: str, code: int
) -> None:
    assert newcomer.ask("hooks", "replay", event, *WHY).returncode == code


def test_a_sample_arrives_and_says_so(newcomer: Newcomer) -> None:
    newcomer.until(f"{RECORDED} request/shop/main/1")
    before = newcomer.printed.read_text().count(RECORDED)
    sent = newcomer.ask("hooks", "test", "board")
    assert sent.returncode == 0, sent.stderr
    assert f"lastgreen/{'0' * 32}/" in sent.stdout
    assert newcomer.printed.read_text().count(RECORDED) == before + 1


def test_a_sink_that_is_not_there_or_set_up_wrongly_is_told(newcomer: Newcomer) -> None:
    assert newcomer.ask("hooks", "test", "nobody").returncode == 2
    without = lastgreen(newcomer.folder, "hooks", "test", "board")
    assert (without.returncode, "BOARD_SECRET" in without.stderr) == (2, True)
    other = {"BOARD_SECRET": f"whsec_{base64.b64encode(bytes(32)).decode()}"}
    refused = lastgreen(newcomer.folder, "hooks", "test", "board", **other)
    assert refused.returncode == 69, refused.stderr


def test_no_secret_is_in_any_file_or_word(newcomer: Newcomer) -> None:
    newcomer.until(f"{RECORDED} request/shop/main/1")
    assert CANARY not in newcomer.up.said
    for path in (newcomer.folder / ".lastgreen").rglob("*"):
        if path.is_file():
            assert CANARY.encode() not in path.read_bytes(), path
