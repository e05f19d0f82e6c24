"""The command runner on a real Temporal server, real git and real processes."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import tracemalloc
from asyncio.subprocess import Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from temporalio import workflow
from temporalio.client import WorkflowFailureError
from temporalio.testing import WorkflowEnvironment
from temporalio.worker import Worker

from domain.errors import Misconfigured, RunnerOut
from domain.results import ProjectResult
from extensions.buildrunner.command import worktree
from extensions.buildrunner.command.log import CappedLog
from extensions.buildrunner.command.worktree import ended_by_the_leash
from extensions.buildrunner.contract import LOST, Triggered
from extensions.projects.report import ReportedProjects
from tests.conftest import TEMPORAL
from tests.extensions.commandbench import Bench, a_bench, git
from tests.extensions.processes import is_alive, is_written, pid_in, text_of, until, until_gone

ROOT = Path(__file__).parents[2]


@pytest.fixture
def bench(temporal: WorkflowEnvironment, tmp_path: Path) -> Bench:
    return a_bench(temporal.client, tmp_path)


async def build(bench: Bench, *command: str, in_shell: bool = False) -> tuple[Triggered, str]:
    bench.runs(*command, in_shell=in_shell)
    triggered = await bench.runner().trigger(bench.order(bench.commit(**{"a.txt": "1"})))
    return triggered, await bench.ends(triggered)


@pytest.mark.spec("V318")
@pytest.mark.parametrize(
    ("script", "verdict"),
    [("exit 0", "succeeded"), ("exit 1", "failed"), ("exit 127", "failed"), ("kill $$", "failed")],
)
async def test_exit_0_has_succeeded_and_every_other_code_has_failed(
    bench: Bench, script: str, verdict: str
) -> None:
    async with bench.working():
        assert (await build(bench, script, in_shell=True))[1] == verdict


@pytest.mark.spec("V318")
async def test_it_runs_in_a_clean_worktree_of_exactly_that_commit_removed_afterwards(
    bench: Bench,
) -> None:
    base = bench.commit(**{"a.txt": "older", "gone.txt": "x"})
    (bench.repository / "gone.txt").unlink()
    head = bench.commit(**{"a.txt": "wanted"})
    bench.commit(**{"a.txt": "newer", "b.txt": "later"})
    (bench.repository / "a.txt").write_text("not committed")
    bench.runs(
        "git rev-parse HEAD; git status --porcelain; ls; cat a.txt; echo; git show --stat"
        " --format=%H $LASTGREEN_BASE_COMMIT; mkdir -p deep/er; touch deep/er/x; chmod 500 deep/er",
        in_shell=True,
    )
    async with bench.working():
        triggered = await bench.runner().trigger(bench.order(head, base))
        assert await bench.ends(triggered) == "succeeded"
    lines = bench.log(triggered).splitlines()
    assert lines[2:5] == [head, "a.txt", "wanted"]
    assert base in lines
    assert not bench.worktrees()
    assert not [*(bench.builds / "running").iterdir()]


@pytest.mark.spec("V318")
async def test_base_head_queue_and_request_are_in_its_environment_and_nothing_that_was_not_named(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NAMED", "yes")
    monkeypatch.setenv("TOKEN", "secret")
    base, head = bench.commit(a="1"), bench.commit(a="2")
    bench.runs("env", environment=("NAMED", "NOT_SET"))
    async with bench.working():
        triggered = await bench.runner().trigger(bench.order(head, base))
        assert await bench.ends(triggered) == "succeeded"
    seen = dict(line.split("=", 1) for line in bench.log(triggered).splitlines() if "=" in line)
    ours = {name: seen[name] for name in seen if name.startswith("LASTGREEN_")}
    assert ours == {
        "LASTGREEN_QUEUE": "trunk/main", "LASTGREEN_REQUEST": "request/trunk/main/1",
        "LASTGREEN_URI": head, "LASTGREEN_COMMIT": head, "LASTGREEN_BASE_COMMIT": base,
        "LASTGREEN_STRATEGY": "incremental", "LASTGREEN_ATTEMPT": "1",
    }  # fmt: skip
    assert seen["NAMED"] == "yes"
    assert seen["PATH"] == os.environ["PATH"]
    assert not {"TOKEN", "NOT_SET"} & seen.keys()


@pytest.mark.spec("V318")
async def test_without_a_shell_no_argument_is_read_as_one(bench: Bench) -> None:
    async with bench.working():
        triggered, verdict = await build(bench, "echo", "$HOME; false")
    assert verdict == "succeeded"
    assert "\n$HOME; false\n" in bench.log(triggered)


@pytest.mark.spec("V318")
@pytest.mark.parametrize("program", ["no-such-program", "./a.txt"])
async def test_no_such_program_is_an_error_for_good_that_names_the_argv(
    bench: Bench, program: str
) -> None:
    async with bench.working():
        with pytest.raises(WorkflowFailureError):
            await build(bench, program, "--all")
    triggered = await bench.runner().trigger(bench.order(git(bench.repository, "rev-parse", "@")))
    with pytest.raises(Misconfigured, match=rf"'{program}', '--all'\] cannot be started"):
        await bench.runner().status(triggered.build_id)
    assert "cannot be started" in bench.log(triggered)
    assert not bench.worktrees()


async def test_a_queue_without_a_command_is_refused_before_anything_is_started(
    bench: Bench,
) -> None:
    bench.runs()
    with pytest.raises(Misconfigured, match="trunk/main has no command"):
        await bench.runner().trigger(bench.order("a" * 40))
    assert await bench.runner().find(bench.order("a" * 40).key, "a" * 40) is None


@pytest.mark.spec("V318")
async def test_without_a_worktree_it_is_tried_again_and_counts_as_started(bench: Bench) -> None:
    head = bench.commit(a="1")
    elsewhere = bench.repository.rename(bench.folder / "elsewhere")
    async with bench.working():
        triggered = await bench.runner().trigger(bench.order(head))
        await until(lambda: "no worktree" in bench.log(triggered))
        await bench.status_is(triggered, "running")
        elsewhere.rename(bench.repository)
        assert await bench.ends(triggered) == "succeeded"
    assert not bench.worktrees()


async def test_an_exit_code_of_infrastructure_is_no_verdict_and_it_is_run_again(
    bench: Bench,
) -> None:
    marker = bench.folder / "once"
    bench.runs(f"[ -e {marker} ] || {{ touch {marker}; exit 75; }}", in_shell=True)
    bench.settings = replace(bench.settings, infrastructure_codes=(75,))
    head = bench.commit(a="1")
    async with bench.working():
        triggered = await bench.runner().trigger(bench.order(head))
        assert await bench.ends(triggered) == "succeeded"
    assert "ended with 75" in bench.log(triggered)


async def test_the_report_that_the_command_leaves_is_kept(bench: Bench) -> None:
    bench.runs('echo \'{"projects": {"api": 1}}\' > report.json; exit 1', in_shell=True)
    bench.settings = replace(bench.settings, projects="report", report="report.json")
    head = bench.commit(a="1")
    async with bench.working():
        triggered = await bench.runner().trigger(bench.order(head))
        assert await bench.ends(triggered) == "failed"
    projects = ReportedProjects(bench.builds)
    assert await projects.resolve("q", triggered.build_id) == [ProjectResult("api", 1.0)]


@pytest.mark.spec("V318")
async def test_without_a_worktree_until_nobody_waits_any_more_it_ends_as_cancelled(
    bench: Bench,
) -> None:
    bench.commit(a="1")
    order = bench.order("d" * 40)
    slack_is_over = order.until - 3_600_000 - 5 * 60_000 + 2_000
    async with bench.working():
        triggered = await bench.runner().trigger(replace(order, until=slack_is_over))
        assert await bench.ends(triggered) == "cancelled"
    assert "no worktree" in bench.log(triggered)


@pytest.mark.spec("V318")
async def test_killed_by_cancel_is_cancelled_and_the_whole_group_is_gone(bench: Bench) -> None:
    bench.runs(
        f"trap '' TERM; sh -c 'sleep 300 & echo $! > {bench.folder}/pid; wait'", in_shell=True
    )
    async with bench.working():
        triggered = await bench.runner().trigger(bench.order(bench.commit(a="1")))
        grandchild = await pid_in(bench.folder / "pid")
        await bench.status_is(triggered, "running")
        assert is_alive(grandchild)
        await bench.runner().cancel(triggered.build_id)
        assert await bench.ends(triggered) == "cancelled"
        await until_gone(grandchild)
    assert not bench.worktrees()


async def test_a_build_nobody_has_begun_is_accepted_and_cancelled_at_once(bench: Bench) -> None:
    async with bench.workflow_worker():
        triggered = await bench.runner().trigger(bench.order(bench.commit(a="1")))
        await asyncio.sleep(0.3)
        assert await bench.runner().status(triggered.build_id) == "accepted"
        await bench.runner().cancel(triggered.build_id)
        assert await bench.ends(triggered) == "cancelled"


async def test_a_build_cancelled_before_any_worker_saw_it_is_cancelled(bench: Bench) -> None:
    triggered = await bench.runner().trigger(bench.order(bench.commit(a="1")))
    assert await bench.runner().status(triggered.build_id) == "accepted"
    await bench.runner().cancel(triggered.build_id)
    async with bench.working():
        await bench.status_is(triggered, "cancelled")


async def test_a_build_ended_by_somebodys_hand_is_cancelled(bench: Bench) -> None:
    triggered = await bench.runner().trigger(bench.order(bench.commit(a="1")))
    await bench.client.get_workflow_handle(triggered.build_id).terminate()
    assert await bench.runner().status(triggered.build_id) == "cancelled"


@workflow.defn(sandboxed=False)  # this module is no workflow's
class Watcher:
    def __init__(self) -> None:
        self.heard = 0

    @workflow.run
    async def run(self) -> None:
        await workflow.wait_condition(lambda: self.heard == 1)

    @workflow.signal
    def news(self) -> None:
        self.heard += 1


async def test_the_watcher_is_woken_when_the_verdict_can_be_read(
    bench: Bench,
) -> None:
    bench.runs("false")
    queue = f"{bench.name}-watcher"
    async with bench.working(), Worker(bench.client, task_queue=queue, workflows=[Watcher]):
        watcher = await bench.client.start_workflow(Watcher.run, id=queue, task_queue=queue)
        order = replace(bench.order(bench.commit(a="1")), wake=queue)
        triggered = await bench.runner().trigger(order)
        await watcher.result()
        assert await bench.runner().status(triggered.build_id) == "failed"


async def test_a_watcher_that_is_gone_does_not_hurt(bench: Bench) -> None:
    bench.runs("false")
    order = replace(bench.order(bench.commit(a="1")), wake="nobody")
    async with bench.working():
        assert await bench.ends(await bench.runner().trigger(order)) == "failed"


async def test_however_much_it_prints_neither_disk_nor_memory_fill_and_the_end_is_kept(
    bench: Bench,
) -> None:
    bench.log_cap = 100_000
    script = "echo first; head -c 200000000 /dev/zero; echo; echo last words"
    tracemalloc.start()
    async with bench.working():
        triggered, verdict = await build(bench, script, in_shell=True)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert verdict == "succeeded"
    assert len(bench.log(triggered)) < 101_000
    assert "first\n" in bench.log(triggered)
    assert "bytes cut here" in bench.log(triggered)
    assert "last words\n" in bench.log(triggered)
    assert peak < 10_000_000


def test_the_log_keeps_its_first_and_last_part_and_says_what_it_cut(tmp_path: Path) -> None:
    log = CappedLog(tmp_path / "log", cap=20)
    for number in range(10):
        log.write(b"%d" % number * 5)
    log.close()
    middle = b"\n... (30 bytes cut here) ...\n"
    assert (tmp_path / "log").read_bytes() == b"0000011111" + middle + b"8888899999"


def test_a_log_that_is_full_is_begun_anew_by_the_next_attempt(tmp_path: Path) -> None:
    for text in (b"a" * 30, b"b" * 5, b"c"):
        log = CappedLog(tmp_path / "log", cap=20)
        log.write(text)
        log.close()
    assert (tmp_path / "log").read_bytes() == b"bbbbbc"


async def test_builds_of_one_remote_at_once_do_not_disturb_one_another(bench: Bench) -> None:
    heads = [bench.commit(**{"a.txt": f"{number}"}) for number in range(5)]
    bench.runs("sleep 0.3; cat a.txt", in_shell=True)
    async with bench.working():
        ordered = [bench.order(head, base) for base, head in pairwise(heads)]
        triggered = [await bench.runner().trigger(order) for order in ordered]
        verdicts = await asyncio.gather(*map(bench.ends, triggered))
    assert verdicts == ["succeeded"] * 4
    assert [bench.log(one).splitlines()[2][0] for one in triggered] == ["1", "2", "3", "4"]
    assert not bench.worktrees()


async def test_a_lock_that_a_killed_git_left_behind_is_removed_when_it_is_old(
    bench: Bench,
) -> None:
    async with bench.working():
        await build(bench, "true")
        (store,) = (bench.builds / "store").glob("*.git")
        lock = store / "shallow.lock"
        lock.touch()
        triggered = await bench.runner().trigger(bench.order(bench.commit(a="2")))
        await until(lambda: "shallow.lock" in bench.log(triggered))
        os.utime(lock, (0, 0))
        assert await bench.ends(triggered) == "succeeded"


async def test_a_process_that_left_the_group_and_holds_the_output_does_not_hold_the_build(
    bench: Bench,
) -> None:
    async with bench.working():
        script = f"setsid sleep 20 & echo $! > {bench.folder}/pid"
        assert (await build(bench, script, in_shell=True))[1] == "succeeded"
    os.kill(await pid_in(bench.folder / "pid"), 9)


@asynccontextmanager
async def builds_worker(bench: Bench, script: str) -> AsyncIterator[Process]:
    address = bench.client.service_client.config.target_host
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.extensions.builds_worker"),
        *(address, bench.name, str(bench.folder), script),
        cwd=ROOT,
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


@pytest.mark.spec("V319")
async def test_when_the_worker_is_killed_another_builds_the_same_id_again_and_one_verdict_counts(
    bench: Bench,
) -> None:
    triggered = await bench.runner().trigger(bench.order(bench.commit(a="1")))
    script = f"echo $$ >> {bench.folder}/pid; until [ -e {bench.folder}/go ]; do sleep 0.1; done"
    bench.runs(script, in_shell=True)
    async with bench.workflow_worker():
        async with builds_worker(bench, script) as first:
            killed = await pid_in(bench.folder / "pid")
            await bench.status_is(triggered, "running")
            first.kill()
            await until_gone(killed, seconds=2)
        assert await bench.runner().status(triggered.build_id) == "running"
        (said,) = ended_by_the_leash(bench.builds)
        assert triggered.build_id in said
        assert ended_by_the_leash(bench.builds) == []
        assert not bench.worktrees()
        (bench.folder / "go").touch()
        async with bench.builds_worker():
            assert await bench.ends(triggered) == "succeeded"
    assert len(text_of(bench.folder / "pid").splitlines()) == 2
    assert "== attempt 2" in bench.log(triggered)


async def test_no_verdict_waits_until_all_files_of_its_tree_are_gone(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_told, remove = threading.Event(), worktree._remove

    def slowly(*trees: Path) -> None:
        if "trash" in {part for tree in trees for part in tree.parts}:
            assert is_told.wait(60)
        remove(*trees)

    monkeypatch.setattr(worktree, "_remove", slowly)
    bench.runs("true")
    async with bench.working():
        triggered = await bench.runner().trigger(bench.order(bench.commit(a="1")))
        assert await bench.ends(triggered) == "succeeded"
        assert not bench.worktrees()
        (tree,) = bench.trash()
        assert (tree / "a").exists()
        is_told.set()
        await until(lambda: not bench.trash())


def test_what_a_dead_worker_threw_away_is_removed_when_the_next_one_starts(tmp_path: Path) -> None:
    (tmp_path / "trash" / "tree").mkdir(parents=True)
    assert ended_by_the_leash(tmp_path) == []
    assert [*(tmp_path / "trash").iterdir()] == []


async def test_what_still_runs_is_not_said_to_have_ended(bench: Bench) -> None:
    bench.runs(f"echo $$ > {bench.folder}/pid; sleep 300", in_shell=True)
    async with bench.working():
        triggered = await bench.runner().trigger(bench.order(bench.commit(a="1")))
        pid = await pid_in(bench.folder / "pid")
        assert ended_by_the_leash(bench.builds) == []
        assert is_alive(pid)
        await bench.runner().cancel(triggered.build_id)
        assert await bench.ends(triggered) == "cancelled"


async def test_a_worker_that_is_shut_down_ends_the_build_and_another_runs_it_again(
    bench: Bench,
) -> None:
    path = bench.folder / "pid"
    bench.runs(f"echo $$ > {path}; sleep 300", in_shell=True)
    async with bench.workflow_worker():
        async with bench.builds_worker():
            triggered = await bench.runner().trigger(bench.order(bench.commit(a="1")))
            await until(lambda: is_written(path))
            before = asyncio.get_running_loop().time()
        assert asyncio.get_running_loop().time() - before < 5
        await until_gone(await pid_in(path))
        assert not bench.worktrees()
        bench.runs("true")
        async with bench.builds_worker():
            assert await bench.ends(triggered) == "succeeded"


@pytest.mark.spec("V319")
async def test_when_temporals_own_data_is_lost_the_build_is_lost_and_made_anew_under_its_key(
    bench: Bench,
) -> None:
    order = bench.order(bench.commit(a="1"))
    async with await WorkflowEnvironment.start_local(
        dev_server_existing_path=TEMPORAL, dev_server_log_level="error"
    ) as other:
        before = replace(bench, client=other.client)
        async with before.working():
            old = await before.runner().trigger(order)
            assert await before.ends(old) == "succeeded"
    assert await bench.runner().status(old.build_id) == LOST
    assert await bench.runner().find(order.key, order.head_uri) is None
    async with bench.working():
        assert await bench.runner().trigger(order) == old
        assert await bench.ends(old) == "succeeded"


async def test_a_server_that_is_out_is_no_answer(bench: Bench) -> None:
    async with await WorkflowEnvironment.start_local(
        dev_server_existing_path=TEMPORAL, dev_server_log_level="error"
    ) as other:
        runner = replace(bench, client=other.client).runner()
    order = bench.order("a" * 40)
    answers = await asyncio.gather(
        runner.trigger(order),
        runner.find(order.key, order.head_uri),
        runner.status("command/" + "a" * 32),
        runner.cancel("command/" + "a" * 32),
        return_exceptions=True,
    )
    assert [type(answer) for answer in answers] == [RunnerOut] * 4
