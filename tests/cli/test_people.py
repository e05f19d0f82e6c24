"""What an operator types at night, against `up` on real git and a Temporal server of its own."""

from __future__ import annotations

import getpass
import json
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.command import Up, answer, lastgreen, up
from tests.extensions.remote import Remote

QUEUE = "trunk/main"
WHY = ("--reason", "the disk is full")
# A commit that says "slow" is built until the file `go` is there; "red" fails.
COMMAND = "if grep -q slow folder/file; then while [ ! -e $HOME/go ]; do sleep 0.05; done; fi; "


class Machine:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.remote = Remote(folder / "trunk.git")
        self.remote.land("A")
        check = f"HOME={folder}; {COMMAND} ! grep -q red folder/file"
        options = ("--repository", "trunk.git", "--promote", "verified-main", "--data", "data")
        self.arguments = (*options, "--shell", "--command", check)
        self.up: Up

    def ask(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return lastgreen(self.folder, *arguments, "--data", "data")

    def answer(self, *arguments: str) -> Any:
        return answer(self.folder, *arguments, "--data", "data")

    def land(self, text: str) -> str:
        """The request that is made of it."""
        self.remote.land(text)
        return self.ask("report", QUEUE).stdout.strip()

    def state(self, request: str, *states: str) -> str:
        """Once it is in one of these."""
        limit = time.monotonic() + 30
        while (found := self.answer("show", request)["request"]["state"]) not in states:
            assert time.monotonic() < limit, (request, found, self.up.said)
            time.sleep(0.1)
        return str(found)


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    made = Machine(tmp_path_factory.mktemp("machine"))
    with up(made.folder, *made.arguments) as made.up:
        made.up.until(f"request/{QUEUE}/1  recorded")
        yield made


def test_a_paused_queue_says_who_and_why_and_goes_on_when_it_is_resumed(machine: Machine) -> None:
    assert machine.ask("pause", QUEUE).returncode == 2
    assert machine.ask("pause", QUEUE, "--reason", " ").returncode == 2
    assert machine.ask("pause", "other", *WHY).returncode == 2
    paused = machine.ask("pause", QUEUE, *WHY)
    assert (paused.returncode, paused.stdout) == (0, "paused: the disk is full\n")
    request = machine.land("B")
    found = machine.answer("status", QUEUE)[0]["paused"]
    assert found["actor"].startswith(f"{getpass.getuser()}@")
    assert (found["detail"], found["at"] > 0) == ("the disk is full", True)
    assert "the disk is full" in machine.ask("status", QUEUE).stdout
    told = machine.ask("explain", QUEUE).stdout
    assert told.startswith(f"{request} (")
    assert f"the queue is paused by {found['actor']} since" in told
    assert "(the disk is full); `lastgreen resume` admits it" in told
    assert machine.ask("resume", QUEUE, "--reason", "it is empty").returncode == 0
    machine.state(request, "succeeded")
    signed = [(row["kind"], row["detail"]) for row in machine.answer("audit", QUEUE)]
    assert signed == [("paused", "the disk is full"), ("resumed", "it is empty")]


def test_a_build_is_cancelled_and_its_commit_retried(machine: Machine) -> None:
    (machine.folder / "go").unlink(missing_ok=True)
    request = machine.land("slow C")
    machine.state(request, "processing")
    (flies,) = (r for r in machine.answer("explain", QUEUE)["lines"] if r["request"] == request)
    assert (flies["kind"], flies["since"] > 0) == ("in_flight", True)
    assert "is in flight since" in flies["sentence"]
    cancelled = machine.ask("cancel", request, *WHY, "--as", "ada")
    assert cancelled.returncode == 0, cancelled
    assert cancelled.stdout == f"{request} cancelled (cancelled_by_person)\n"
    again = machine.ask("cancel", request, *WHY)
    assert again.returncode == 4
    assert f"{request} has ended: cancelled" in again.stderr
    (machine.folder / "go").touch()
    retried = machine.ask("retry", request, *WHY, "--id", "one")
    assert retried.returncode == 0
    assert machine.ask("retry", request, *WHY, "--id", "one").stdout == retried.stdout
    machine.state(retried.stdout.strip(), "succeeded")
    shown = machine.ask("show", request).stdout
    assert f"also    {retried.stdout.strip()}  succeeded (build_succeeded)" in shown
    (other,) = machine.answer("show", request)["others"]
    assert other["id"] == retried.stdout.strip()
    history = machine.answer("show", request)["history"]
    people = [(row["kind"], row["actor"]) for row in history if row["actor"]]
    assert people[0] == ("cancel_requested", "ada")
    assert [kind for kind, _ in people[1:]] == ["refused", "retried"]


def test_asking_about_what_is_not_there_is_a_mistake_of_the_caller(machine: Machine) -> None:
    for arguments in (
        ("retry", f"request/{QUEUE}/999"),
        ("cancel", "request/other/1"),
        ("cancel", "seven"),
        ("dead-letters", "drop", QUEUE, "request/1/1"),
    ):
        done = machine.ask(*arguments, *WHY)
        assert done.returncode == 2, done


def test_a_dead_letter_says_what_a_person_can_do_and_is_retried_or_dropped(
    machine: Machine,
) -> None:
    config = machine.folder / "data" / "lastgreen.toml"
    right = config.read_text()
    config.write_text(right.replace("/bin/sh", "/bin/nothing"))
    assert machine.answer("dead-letters", "list", QUEUE) == []
    machine.up.end()
    config.write_text(right)
    wrong = ("--repository", "trunk.git", "--data", "data", "--command", "no-such-program")
    with up(machine.folder, *wrong) as broken:
        broken.until("Temporal UI")
        request = machine.land("D")
        broken.until("dead_letter_opened")
        machine.state(request, "failed")
        (letter,) = machine.answer("dead-letters", "list", QUEUE)
        assert (letter["kind"], letter["cause"]) == ("request", "processing_failed")
        shown = machine.ask("dead-letters", "show", QUEUE, letter["id"]).stdout
        for part in ("no-such-program", "to do     mend what", f"about     {request}", "open"):
            assert part in shown, shown
        assert machine.ask("dead-letters", "retry", QUEUE, letter["id"], *WHY).returncode == 0
        broken.until(f"request/{QUEUE}/\\d+  dead_letter_resolved")
    with up(machine.folder, *machine.arguments) as machine.up:
        machine.up.until("Temporal UI")
        letters = machine.answer("dead-letters", "list", QUEUE)
        for letter in letters:
            assert machine.ask("dead-letters", "drop", QUEUE, letter["id"], *WHY).returncode == 0
        assert machine.answer("dead-letters", "list", QUEUE) == []
        assert machine.ask("doctor").returncode == 0


def test_after_the_database_of_temporal_is_gone_recover_finishes_what_was_open(
    tmp_path: Path,
) -> None:
    machine = Machine(tmp_path)
    with up(machine.folder, *machine.arguments) as machine.up:
        machine.up.until(f"request/{QUEUE}/1  recorded")
        slow = machine.land("slow B")
        machine.state(slow, "processing")
        waiting = machine.land("C")
        machine.up.until(f"{slow}  build_triggered")
        machine.up.end(signal.SIGKILL)
    for name in ("temporal.db", "temporal.db-shm", "temporal.db-wal"):
        (tmp_path / "data" / name).unlink(missing_ok=True)
    assert machine.ask("recover", *WHY).returncode == 69
    (machine.folder / "go").touch()
    with up(machine.folder, *machine.arguments) as machine.up:
        machine.up.until("Temporal UI")
        done = machine.ask("recover", *WHY, "--json")
        assert done.returncode == 0, done
        assert f"queue/{QUEUE}" in json.loads(done.stdout)["started"]
        assert machine.state(slow, "succeeded", "failed") == "succeeded"
        assert machine.state(waiting, "succeeded", "failed") == "succeeded"
        history = [row["kind"] for row in machine.answer("show", slow)["history"]]
        assert history.count("fact_recorded") == 1
        assert "build_lost" in history
        limit = time.monotonic() + 30
        while (told := machine.ask("doctor")).returncode and time.monotonic() < limit:
            time.sleep(0.2)
        assert told.returncode == 0, told
        assert "all agrees" in told.stderr


def test_a_pause_is_written_also_while_temporal_is_out(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    with up(machine.folder, *machine.arguments) as machine.up:
        machine.up.until(f"request/{QUEUE}/1  recorded")
    paused = machine.ask("pause", QUEUE, *WHY)
    assert paused.returncode == 0
    assert "the queue is told when Temporal is back" in paused.stderr
    assert machine.answer("status", QUEUE)[0]["paused_reason"] == "the disk is full"
    assert machine.ask("retry", f"request/{QUEUE}/1", *WHY).returncode == 69
    assert machine.ask("doctor").returncode == 69
