"""The sink that is a program, run for real."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from pathlib import Path

import pytest

from domain.errors import Misconfigured, SinkOut
from domain.event import EventType, HookEvent
from domain.sinks import SinkSettings
from extensions.hooks.command import CommandSink
from extensions.hooks.envelope import cloud_event
from tests.extensions.processes import pid_in, until_gone

EVENT = HookEvent("0" * 32, EventType.RECORDED, "shop/main", 7, 1_700_000_000_000)


def sink_of(*argv: str, environment: tuple[str, ...] = ()) -> CommandSink:
    own = SinkSettings("hear", "command", command=argv, environment=environment)
    return CommandSink(own, "lastgreen")


def shell(script: str, *environment: str) -> CommandSink:
    return sink_of("/bin/sh", "-c", script, environment=environment)


async def test_it_gets_the_event_on_its_input_and_its_id_in_its_environment(tmp_path: Path) -> None:
    await shell(f'cat > {tmp_path}/in; echo "$LASTGREEN_EVENT_ID" > {tmp_path}/id').deliver(EVENT)
    assert json.loads((tmp_path / "in").read_text()) == cloud_event(EVENT, "lastgreen")
    assert (tmp_path / "id").read_text().strip() == EVENT.id


async def test_an_argv_is_no_shell_line(tmp_path: Path) -> None:
    script = "import sys; open(sys.argv[1], 'w').write(sys.argv[2])"
    await sink_of(sys.executable, "-c", script, f"{tmp_path}/out", "$HOME; `id` *").deliver(EVENT)
    assert (tmp_path / "out").read_text() == "$HOME; `id` *"


async def test_a_program_that_fails_is_tried_again_and_its_last_words_are_told() -> None:
    with pytest.raises(SinkOut, match="exit code 3: the disk is full"):
        await shell("echo the disk is full >&2; exit 3").deliver(EVENT)


async def test_a_program_that_does_not_exist_is_a_misconfiguration() -> None:
    with pytest.raises(Misconfigured, match="/nowhere/program"):
        await sink_of("/nowhere/program").deliver(EVENT)


async def test_a_program_that_does_not_read_its_input_may_be_done() -> None:
    await sink_of("/bin/true").deliver(EVENT)


async def test_only_named_variables_are_handed_on_and_none_of_them_comes_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NAMED", "canary-named")
    monkeypatch.setenv("OTHER", "canary-other")
    with pytest.raises(SinkOut) as failed:
        await shell(f"env > {tmp_path}/env; env; exit 1", "NAMED").deliver(EVENT)
    seen = (tmp_path / "env").read_text()
    assert "NAMED=canary-named" in seen
    assert "OTHER" not in seen
    assert "canary" not in str(failed.value)


async def test_what_it_prints_is_cleaned_and_cut() -> None:
    script = r"head -c 3000000 /dev/zero; printf '\033[31mred\377'; exit 1"
    with pytest.raises(SinkOut) as failed:
        await shell(script).deliver(EVENT)
    assert len(str(failed.value)) < 400
    assert not set(str(failed.value)) & set("\x00\x1b")


async def test_what_it_leaves_behind_is_ended_and_not_waited_for(tmp_path: Path) -> None:
    before = time.monotonic()
    await shell(f"sleep 60 & echo $! > {tmp_path}/pid").deliver(EVENT)
    assert time.monotonic() - before < 10
    await until_gone(await pid_in(tmp_path / "pid"))


async def test_a_call_that_is_given_up_ends_the_program(tmp_path: Path) -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.5):
            await shell(f"echo $$ > {tmp_path}/pid; sleep 60").deliver(EVENT)
    await until_gone(await pid_in(tmp_path / "pid"))
