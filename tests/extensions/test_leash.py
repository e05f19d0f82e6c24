from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest

from extensions.leash import Leash
from tests.extensions.processes import is_alive, is_written, pid_in, until, until_gone

ROOT = Path(__file__).parents[2]
OWNER = """
import asyncio, os, sys
from pathlib import Path
from extensions.leash import Leash
async def main():
    leash = await Leash.start(sys.argv[1:], Path.cwd(), dict(os.environ), 2)
    print(leash.pid, flush=True)
    await leash.wait()
asyncio.run(main())
"""
# A child and a grandchild that do not mind being asked to end.
STUBBORN = "trap '' TERM; sleep 300 & echo $! > grandchild; echo ready > ready; wait; wait"


async def start(folder: Path, *argv: str) -> Leash:
    with (folder / "output").open("wb") as output:
        return await Leash.start(argv, folder, dict(os.environ), output.fileno())


@pytest.mark.parametrize(
    ("script", "code"), [("true", 0), ("exit 7", 7), ("exit 127", 127), ("kill -9 $$", 137)]
)
async def test_the_exit_code_of_the_program_comes_through(
    tmp_path: Path, script: str, code: int
) -> None:
    leash = await start(tmp_path, "/bin/sh", "-c", script)
    assert await leash.wait() == code


async def test_output_and_errors_go_where_they_were_told(tmp_path: Path) -> None:
    leash = await start(tmp_path, "/bin/sh", "-c", "pwd; echo wrong >&2; cat")
    await leash.wait()
    assert (tmp_path / "output").read_text() == f"{tmp_path}\nwrong\n"


@pytest.mark.parametrize("program", ["no-such-program", "./neither/this"])
async def test_a_program_that_does_not_exist_is_told_apart_from_one_that_fails(
    tmp_path: Path, program: str
) -> None:
    with pytest.raises(FileNotFoundError):
        await start(tmp_path, program)


async def test_a_file_that_is_no_program_cannot_be_started(tmp_path: Path) -> None:
    (tmp_path / "plain").write_text("text")
    with pytest.raises(PermissionError):
        await start(tmp_path, "./plain")
    (tmp_path / "plain").chmod(0o755)
    with pytest.raises(OSError, match="Exec format"):
        await start(tmp_path, "./plain")


async def test_closing_the_leash_ends_the_whole_group_within_a_second(tmp_path: Path) -> None:
    leash = await start(tmp_path, "/bin/sh", "-c", STUBBORN)
    grandchild = await pid_in(tmp_path / "grandchild")
    leash.close()
    await until_gone(leash.pid, grandchild)
    assert await leash.wait() == 128 + signal.SIGKILL


async def test_a_program_that_is_asked_to_end_may_tidy_up(tmp_path: Path) -> None:
    script = "trap 'echo tidy; exit 0' TERM; echo ready > ready; sleep 300 & wait"
    leash = await start(tmp_path, "/bin/sh", "-c", script)
    await until(lambda: is_written(tmp_path / "ready"))
    leash.close()
    assert await leash.wait() == 0
    assert (tmp_path / "output").read_text() == "tidy\n"


async def test_what_the_program_leaves_behind_ends_with_it(tmp_path: Path) -> None:
    leash = await start(tmp_path, "/bin/sh", "-c", "sleep 300 & echo $! > grandchild")
    assert await leash.wait() == 0
    await until_gone(int((tmp_path / "grandchild").read_text()))


async def test_a_build_that_ends_its_own_group_does_not_end_the_leash(tmp_path: Path) -> None:
    leash = await start(tmp_path, "/bin/sh", "-c", "kill -9 0")
    assert await leash.wait() == 137


async def test_when_the_leash_itself_is_ended_the_owner_ends_the_group(tmp_path: Path) -> None:
    leash = await start(tmp_path, "/bin/sh", "-c", STUBBORN)
    grandchild = await pid_in(tmp_path / "grandchild")
    os.kill(leash._process.pid, signal.SIGKILL)
    assert await leash.wait() == 137
    await until_gone(leash.pid, grandchild)


async def test_a_killed_owner_takes_the_group_with_it_and_nothing_else(tmp_path: Path) -> None:
    owner = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", OWNER, "/bin/sh", "-c", STUBBORN),
        cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(ROOT)}, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    bystander = await asyncio.create_subprocess_exec("sleep", "300")
    assert owner.stdout
    child = int(await owner.stdout.readline())
    grandchild = await pid_in(tmp_path / "grandchild")
    owner.kill()
    await owner.communicate()
    await until_gone(child, grandchild)
    assert is_alive(bystander.pid)
    bystander.kill()
    await bystander.wait()
