"""What must die with its owner runs under a leash: a small parent that holds one end of a pipe.

The pipe closes with its owner, however that ended, and then the whole group is ended.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Final, Self

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Mapping, Sequence
    from pathlib import Path

HANDED_ON: Final = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "USER")
GRACE: Final = 0.5
"""Seconds between asking the group to end and ending it."""
_PIPE: Final = 0


def handed_on(named: Sequence[str] = ()) -> dict[str, str]:
    """Of our environment, what another's program may see."""
    return {name: os.environ[name] for name in (*HANDED_ON, *named) if name in os.environ}


def end(group: int, how: int = signal.SIGKILL) -> None:
    # macOS answers EPERM for a group of which only zombies are left.
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, how)


class Leash:
    def __init__(
        self, process: asyncio.subprocess.Process, pipe: asyncio.StreamWriter, pid: int
    ) -> None:
        self._process = process
        self._pipe = pipe
        self.pid = pid
        """Of the program, which leads a session and group of its own."""

    @classmethod
    async def start(
        cls, argv: Sequence[str], cwd: Path, env: Mapping[str, str], stdout_fd: int
    ) -> Self:
        """Output and errors go to ``stdout_fd``. ``OSError`` when argv cannot be started."""
        # The leash itself, run as a program for every build, is spared these.
        import asyncio
        import socket

        ours, theirs = socket.socketpair()
        reader, writer = await asyncio.open_connection(sock=ours)
        try:
            with theirs:
                process = await asyncio.create_subprocess_exec(
                    *(sys.executable, "-I", "-S", __file__, *argv),
                    stdin=theirs.fileno(), stdout=stdout_fd, stderr=stdout_fd,
                    cwd=cwd, env=env, start_new_session=True,
                )  # fmt: skip
            pid = _pid_in(await reader.readline())
        except BaseException:
            writer.close()
            raise
        return cls(process, writer, pid)

    async def wait(self) -> int:
        """The program's exit code, or 128 and the signal that ended it."""
        code = await self._process.wait()
        if code < 0:
            # Somebody ended the leash: only its owner is left to end the group.
            end(self.pid)
        self.close()
        return code if code >= 0 else 128 - code

    def close(self) -> None:
        """Ends the group, within a second; ``wait`` says when it is gone."""
        self._pipe.close()


def _pid_in(answer: bytes) -> int:
    number, _, wrong = answer.decode(errors="replace").strip().partition(" ")
    if wrong or not number:
        raise OSError(int(number or 0), wrong or "the leash ended at once")
    return int(number)


def _hold(group: int) -> None:
    with suppress(ConnectionError):
        while os.read(_PIPE, 64):
            pass
    end(group, signal.SIGTERM)
    time.sleep(GRACE)  # unless the program ends first, and the leash with it
    end(group)


def main(argv: Sequence[str]) -> int:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: None)
    try:
        # Users run what they like: that is what a build is.
        child = subprocess.Popen(argv, stdin=subprocess.DEVNULL, start_new_session=True)  # noqa: S603
    except OSError as error:
        os.write(_PIPE, f"{error.errno} {error.strerror}\n".encode())
        return 127
    with suppress(BrokenPipeError):
        os.write(_PIPE, f"{child.pid}\n".encode())
    threading.Thread(target=_hold, args=(child.pid,), daemon=True).start()
    code = child.wait()
    end(child.pid)  # what it left behind
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
