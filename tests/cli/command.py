"""Runs the command as a person does: as a process of its own, in a folder of its own."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, Final, Self

ROOT: Final = Path(__file__).resolve().parents[2]
PATIENCE: Final = 30.0
LASTGREEN: Final = (sys.executable, "-m", "cli.main")


def environment(**more: str) -> dict[str, str]:
    kept = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    return {**kept, "PYTHONPATH": str(ROOT), **more}


def lastgreen(folder: Path, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    command = [*LASTGREEN, *arguments]
    return subprocess.run(
        command, cwd=folder, env=environment(**more), capture_output=True, text=True,
        check=False, timeout=100,
    )  # fmt: skip


def answer(folder: Path, *arguments: str, **more: str) -> Any:
    return json.loads(lastgreen(folder, *arguments, "--json", **more).stdout)


class Up:
    """A verb that runs until it is told to end."""

    def __init__(self, folder: Path, *arguments: str, verb: str = "up", **more: str) -> None:
        self.lines: list[str] = []
        self.process = subprocess.Popen(
            [*LASTGREEN, verb, *arguments], cwd=folder, env=environment(**more),
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        self.lines.extend(iter(self.process.stderr.readline, ""))

    @property
    def said(self) -> str:
        return "".join(self.lines)

    def until(self, pattern: str, seconds: float = PATIENCE) -> re.Match[str]:
        limit = time.monotonic() + seconds
        while (found := re.search(pattern, self.said)) is None:
            over = self.process.poll() is not None or time.monotonic() > limit
            assert not over, f"{pattern!r} was not said:\n{self.said}"
            time.sleep(0.02)
        return found

    def end(self, how: int = signal.SIGTERM) -> int:
        self.process.send_signal(how)
        code = self.process.wait(PATIENCE)
        self._reader.join(PATIENCE)
        return code

    @contextmanager
    def running(self) -> Iterator[Self]:
        try:
            yield self
        finally:
            if self.process.poll() is None:
                self.end()
            if self.process.stderr is not None:
                self.process.stderr.close()


def up(folder: Path, *arguments: str) -> AbstractContextManager[Up]:
    return Up(folder, *arguments).running()


def server_pid(data: Path) -> int:
    pid: int = json.loads((data / "server.json").read_text())["pid"]
    return pid


def free_ports() -> tuple[int, int]:
    with (
        socket.create_server(("127.0.0.1", 0)) as one,
        socket.create_server(("127.0.0.1", 0)) as two,
    ):
        return one.getsockname()[1], two.getsockname()[1]
