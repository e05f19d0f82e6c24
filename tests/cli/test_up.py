"""`up` on real git and a Temporal server of its own, and what the other verbs say of it."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from temporalio.client import Client

from stores import schema
from tests.cli.command import Up, answer, free_ports, lastgreen, server_pid, up
from tests.extensions.processes import is_alive, is_written
from tests.extensions.remote import Remote

QUEUE = "trunk/main"
# Red is a commit whose message says so.
COMMAND = ("--shell", "--command", "! grep -q red folder/file")
GREEN = "refs/heads/verified-main"


class Machine:
    """One `up` for all tests that only ask; A is green, B is red, both validated."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.remote = Remote(folder / "trunk.git")
        (self.a,) = self.remote.land("A")
        options = ("--repository", "trunk.git", "--promote", "verified-main", "--data", "data")
        self.arguments = (*options, *COMMAND)
        self.b = ""
        self.up: Up


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    made = Machine(tmp_path_factory.mktemp("machine"))
    with up(made.folder, *made.arguments) as made.up:
        made.up.until(f"request/{QUEUE}/1  recorded")
        (made.b,) = made.remote.land("red B")
        assert ask(made, "report", QUEUE).stdout == f"request/{QUEUE}/2\n"
        made.up.until(f"request/{QUEUE}/2  recorded")
        yield made


def ask(machine: Machine, *arguments: str) -> subprocess.CompletedProcess[str]:
    return lastgreen(machine.folder, *arguments, "--data", "data")


def test_the_head_is_validated_and_promoted(machine: Machine) -> None:
    assert machine.remote.at(GREEN) == machine.a
    assert "Temporal UI  http://127.0.0.1:" in machine.up.said
    assert f"queue {QUEUE}  main of {machine.folder}/trunk.git" in machine.up.said


def test_reporting_the_same_head_again_is_the_same_request(machine: Machine) -> None:
    told = answer(machine.folder, "report", QUEUE, "--data", "data")
    assert (told["request"], told["is_new"]) == (f"request/{QUEUE}/2", False)


def test_is_green_by_exit_code(machine: Machine) -> None:
    green, broken = (
        ask(machine, "is-green", QUEUE, machine.a),
        ask(machine, "is-green", QUEUE, machine.b),
    )
    assert (green.returncode, broken.returncode) == (0, 1)
    assert green.stdout.startswith(f"green by request/{QUEUE}/1, degree 0")
    assert broken.stdout.startswith(f"broken by request/{QUEUE}/2, degree 1")
    unknown = ask(machine, "is-green", QUEUE, "f" * 40)
    assert unknown.returncode == 3
    assert unknown.stdout == "unknown: no fact; no request named it\n"
    assert ask(machine, "is-green", "other", machine.a).returncode == 2


def test_last_green_is_on_stdout_alone(machine: Machine) -> None:
    told = ask(machine, "last-green", QUEUE)
    assert (told.returncode, told.stdout, told.stderr) == (0, f"{machine.a}\n", "")


def test_status_and_requests(machine: Machine) -> None:
    (state,) = answer(machine.folder, "status", QUEUE, "--data", "data")
    assert state["latest_request_id"] == f"request/{QUEUE}/2"
    assert (state["last_green_uri"], state["in_flight_count"]) == (machine.a, 0)
    found = answer(machine.folder, "requests", QUEUE, "--state", "failed", "--data", "data")
    assert [(r["id"], r["cause"], r["base_uri"]) for r in found] == [
        (f"request/{QUEUE}/2", "build_failed", machine.a)
    ]
    newest = answer(machine.folder, "requests", QUEUE, "--limit", "1", "--data", "data")
    assert [request["number"] for request in newest] == [2]
    (queue,) = answer(machine.folder, "queues", "--data", "data")
    assert (queue["name"], queue["promote"]) == (QUEUE, "verified-main")


@pytest.mark.spec("V291")
def test_show_tells_every_step_in_order(machine: Machine) -> None:
    told = answer(machine.folder, "show", f"request/{QUEUE}/1", "--data", "data")
    kinds = [row["kind"] for row in told["history"]]
    expected = ["accepted", "admitted", "build_triggered", "build_succeeded", "fact_recorded"]
    assert [kind for kind in kinds if kind in {*expected, "promoted", "recorded"}] == [
        *expected, "promoted", "recorded",
    ]  # fmt: skip
    times = [row["at"] for row in told["history"]]
    assert times == sorted(times) and times[0] > 0
    assert len(kinds) == len(set(kinds))
    assert [build["status"] for build in told["builds"]] == ["succeeded"]
    assert told["fact"]["degree"] == 0
    text = ask(machine, "show", f"request/{QUEUE}/1").stdout
    assert text.index("admitted") < text.index("recorded")
    assert ask(machine, "show", f"request/{QUEUE}/99").returncode == 2


def test_a_second_owner_is_refused_by_name(machine: Machine) -> None:
    other = ("up", *machine.arguments[:-1], "false")
    told = lastgreen(machine.folder, *other)
    assert told.returncode == 2
    assert f"pid {machine.up.process.pid}, since 2" in told.stderr
    assert "end that one first, or name another folder with --data" in told.stderr
    assert "red" in (machine.folder / "data" / "lastgreen.toml").read_text(), "it changed a thing"


def test_a_port_in_use_is_told_with_its_option(tmp_path: Path) -> None:
    Remote(tmp_path / "trunk.git")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        for option in ("--port", "--ui-port"):
            told = lastgreen(tmp_path, "up", "--repository", "trunk.git", *COMMAND, option, port)
            assert told.returncode == 2
            assert f"port {port} cannot be used" in told.stderr
            assert option in told.stderr


def test_a_repository_that_does_not_exist(tmp_path: Path) -> None:
    told = lastgreen(tmp_path, "up", "--repository", "nowhere", *COMMAND)
    assert told.returncode == 2
    assert "queue nowhere/main: no such repository: " in told.stderr


class _Closed(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(401)
        self.send_header("WWW-Authenticate", 'Basic realm="r"')
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


def test_a_repository_that_asks_for_credentials(tmp_path: Path) -> None:
    with HTTPServer(("127.0.0.1", 0), _Closed) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}/closed.git"
        told = lastgreen(tmp_path, "up", "--repository", url, *COMMAND)
        server.shutdown()
    assert told.returncode == 2
    assert "put a token into the repository's URL" in told.stderr


def test_an_empty_repository_is_waited_for(tmp_path: Path) -> None:
    remote = Remote(tmp_path / "trunk.git")
    (tmp_path / "lastgreen.toml").write_text(
        f'version = 1\n[[queue]]\nname = "{QUEUE}"\nref = "main"\ncommand = ["true"]\n'
        'repository = "./trunk.git"\nwatch_interval = 1\n'
    )
    with up(tmp_path) as running:
        running.until("trunk.git has no refs/heads/main .*push it, or correct --ref")
        assert lastgreen(tmp_path, "report", QUEUE).returncode == 2
        assert lastgreen(tmp_path, "last-green", QUEUE).returncode == 3
        remote.land("A")
        running.until(f"request/{QUEUE}/1  recorded")
        began = time.monotonic()
        assert running.end(signal.SIGINT) == 0
        assert time.monotonic() - began < 5
    told = lastgreen(tmp_path, "report", QUEUE)
    assert told.returncode == 69, told


def test_a_command_that_cannot_be_started(tmp_path: Path) -> None:
    Remote(tmp_path / "trunk.git").land("A")
    with up(tmp_path, "--repository", "trunk.git", "--command", "no-such-program") as running:
        running.until(r"cannot be started: No such file")
        running.until(r"request/trunk/main/1  (trigger_failed|processing_failed)")
    (request,) = answer(tmp_path, "requests", QUEUE)
    assert request["state"] == "failed"


def test_a_worker_apart_from_its_server(tmp_path: Path, client: Client) -> None:
    """Of another server; nothing of ours runs on this one's usual task queues."""
    Remote(tmp_path / "trunk.git").land("A")
    name = f"apart-{time.time_ns()}"
    (tmp_path / "lastgreen.toml").write_text(
        f'version = 1\n[[queue]]\nname = "{name}"\nref = "main"\ncommand = ["true"]\n'
        f'repository = "{tmp_path}/trunk.git"\n'
    )
    address = client.service_client.config.target_host
    assert lastgreen(tmp_path, "db", "upgrade").returncode == 0
    assert answer(tmp_path, "db", "upgrade") == {"schema": schema.newest()}
    with Up(tmp_path, verb="worker", TEMPORAL_ADDRESS=address).running() as worker:
        worker.until(f"works for {name} at {address}")
        told = lastgreen(tmp_path, "report", name, TEMPORAL_ADDRESS=address)
        assert told.stdout == f"request/{name}/1\n"


@pytest.mark.spec("V399")
def test_killed_in_the_middle_of_a_build(tmp_path: Path) -> None:
    Remote(tmp_path / "trunk.git").land("A")
    pids, go, data = tmp_path / "pids", tmp_path / "go", tmp_path / "data"
    script = f"sleep 300 & echo $$ $! >> {pids}; [ -e {go} ] || sleep 300"
    ports = [str(port) for port in free_ports()]
    arguments = (
        *("--repository", "trunk.git", "--shell", "--command", script, "--data", "data"),
        *("--port", ports[0], "--ui-port", ports[1]),
    )
    with up(tmp_path, *arguments) as running:
        running.until("build_triggered")
        until_true(lambda: is_written(pids), 20)
        ours = [int(pid) for pid in pids.read_text().split()] + [server_pid(data)]
        assert all(map(is_alive, ours))
        running.end(signal.SIGKILL)
        until_true(lambda: not any(map(is_alive, ours)), 1)
    go.touch()
    with subprocess.Popen(["sleep", "300"]) as stranger:
        note = json.loads((data / "server.json").read_text())
        (data / "server.json").write_text(json.dumps({**note, "pid": stranger.pid}))
        with up(tmp_path, *arguments) as running:
            running.until("the last run was ended from outside; its Temporal server")
            running.until("ended with the last run, and run again now: .*trunk/main")
            running.until(f"request/{QUEUE}/1  recorded", 60)
            last = server_pid(data)
            assert running.end() == 0
        assert stranger.poll() is None, "a stranger was ended"
        stranger.kill()
    told = answer(tmp_path, "show", f"request/{QUEUE}/1", "--data", "data")
    assert told["request"]["state"] == "succeeded"
    kinds = [row["kind"] for row in told["history"]]
    assert (kinds.count("build_succeeded"), kinds.count("fact_recorded")) == (1, 1)
    left = {int(pid) for pid in pids.read_text().split()} | {last}
    assert len(left) == 5, "the build ran twice"
    until_true(lambda: not any(map(is_alive, left)), 5)
    with up(tmp_path, *arguments) as running:
        running.until("Temporal UI")
    assert "ended" not in running.said, "each is said once"


def until_true(reached: Callable[[], bool], seconds: float) -> None:
    limit = time.monotonic() + seconds
    while not reached():
        assert time.monotonic() < limit
        time.sleep(0.02)
