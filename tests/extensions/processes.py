"""What the tests of the leash and of the command runner look at."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Callable
from pathlib import Path


async def until(condition: Callable[[], object], seconds: float = 10) -> None:
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 (of another process)
            await asyncio.sleep(0.02)


def is_alive(pid: int) -> bool:
    """A zombie is not."""
    command = ("ps", "-o", "stat=", "-p", str(pid))
    state = subprocess.run(command, check=False, capture_output=True, text=True).stdout
    return bool(state.strip()) and not state.startswith("Z")


def is_written(path: Path) -> bool:
    return path.exists() and path.read_text().endswith("\n")


def text_of(path: Path) -> str:
    return path.read_text() if path.exists() else ""


async def until_gone(*pids: int, seconds: float = 1) -> None:
    await until(lambda: not any(map(is_alive, pids)), seconds)


async def pid_in(path: Path) -> int:
    await until(lambda: is_written(path))
    return int(text_of(path))
