"""A build's output on disk: its first and last part, however much it prints."""

from __future__ import annotations

from collections import deque
from pathlib import Path
from typing import Final

CAP: Final = 10_000_000


class CappedLog:
    """Holds the last part in memory until it is closed; at most ``cap`` bytes an attempt."""

    def __init__(self, path: Path, cap: int = CAP) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        too_long = path.exists() and path.stat().st_size >= cap
        self._file = path.open("wb" if too_long else "ab", buffering=0)
        self._left = self._room = cap // 2
        self._tail: deque[bytes] = deque()
        self._kept = self._cut = 0

    def write(self, output: bytes) -> None:
        first, rest = output[: self._left], output[self._left :]
        if first:
            self._file.write(first)
            self._left -= len(first)
        if rest:
            self._tail.append(rest)
            self._kept += len(rest)
        while self._kept > self._room:
            self._shorten(self._kept - self._room)

    def say(self, text: str) -> None:
        self.write(f"== {text}\n".encode(errors="replace"))

    def _shorten(self, count: int) -> None:
        oldest = self._tail.popleft()
        if len(oldest) > count:
            self._tail.appendleft(oldest[count:])
        gone = min(count, len(oldest))
        self._kept -= gone
        self._cut += gone

    def close(self) -> None:
        if self._cut:
            self._file.write(b"\n... (%d bytes cut here) ...\n" % self._cut)
        for output in self._tail:
            self._file.write(output)
        self._file.close()
