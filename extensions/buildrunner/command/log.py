"""A build's output on disk: its first and last part, however much it prints."""

from __future__ import annotations

from pathlib import Path
from typing import Final

CAP: Final = 10_000_000


def log_path(builds: Path, build_id: str) -> Path:
    return builds.absolute() / "log" / f"{build_id.rpartition('/')[2]}.log"


class CappedLog:
    """Holds the last part in memory until it is closed; at most ``cap`` bytes an attempt."""

    def __init__(self, path: Path, cap: int = CAP) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        too_long = path.exists() and path.stat().st_size >= cap
        self._file = path.open("wb" if too_long else "ab", buffering=0)
        self._left = self._room = cap // 2
        self._tail = bytearray()
        self._cut = 0

    def say(self, text: str) -> None:
        self.write(f"== {text}\n".encode(errors="replace"))

    def write(self, output: bytes) -> None:
        first, rest = output[: self._left], output[self._left :]
        if first:
            self._file.write(first)
            self._left -= len(first)
        self._tail += rest
        if (gone := len(self._tail) - self._room) > 0:
            del self._tail[:gone]
            self._cut += gone

    def close(self) -> None:
        if self._cut:
            self._file.write(b"\n... (%d bytes cut here) ...\n" % self._cut)
        self._file.write(self._tail)
        self._file.close()
