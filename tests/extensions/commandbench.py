"""A repository, a queue of it, and workers for its builds."""

from __future__ import annotations

import subprocess
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from uuid import uuid4

from temporalio.client import Client
from temporalio.worker import Worker

from domain.settings import QueueSettings
from extensions.buildrunner.command.run import CommandActivities
from extensions.buildrunner.command.runner import CommandRunner
from extensions.buildrunner.command.workflow import CommandWorkflow
from extensions.buildrunner.contract import Order, Triggered
from tests.extensions.processes import text_of, until

HOUR = 3_600_000


def git(folder: Path, *arguments: str) -> str:
    identity = ("-c", "user.name=A", "-c", "user.email=a@example.invalid")
    command = ("git", "-C", str(folder), *identity, *arguments)
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return done.stdout.strip()


@dataclass
class Bench:
    client: Client
    folder: Path
    settings: QueueSettings
    name: str = field(default_factory=lambda: uuid4().hex)
    log_cap: int = 10_000_000

    @property
    def repository(self) -> Path:
        return Path(self.settings.repository)

    @property
    def builds(self) -> Path:
        return self.folder / "builds"

    def runner(self) -> CommandRunner:
        return CommandRunner(
            client=self.client,
            builds_directory=self.builds,
            settings_of=lambda _: self.settings,
            workflow_queue=f"{self.name}-workflows",
            builds_queue=f"{self.name}-builds",
        )

    def runs(self, *command: str, in_shell: bool = False, environment: Sequence[str] = ()) -> None:
        self.settings = replace(
            self.settings, command=command, shell=in_shell, environment=tuple(environment)
        )

    def commit(self, **files: str) -> str:
        for name, text in files.items():
            (self.repository / name).write_text(text)
        git(self.repository, "add", "--all")
        git(self.repository, "commit", "--quiet", "--allow-empty", "--message", f"{files}")
        return git(self.repository, "rev-parse", "HEAD")

    def order(self, head: str, base: str | None = None) -> Order:
        return Order(
            key=f"{self.name}/request/{self.settings.name}/1",
            queue=self.settings.name,
            request=1,
            attempt=1,
            base_uri=base,
            head_uri=head,
            strategy="incremental" if base else "full",
            wake="",
            until=int(time.time() * 1000) + HOUR,
        )

    def log(self, build: Triggered) -> str:
        return text_of(Path(build.url or ""))

    def worktrees(self) -> list[Path]:
        return [*(self.builds / "work").glob("*")]

    def trash(self) -> list[Path]:
        return [*(self.builds / "trash").glob("*")]

    async def ends(self, build: Triggered, seconds: float = 30) -> str:
        handle = self.client.get_workflow_handle(build.build_id)
        await handle.result(rpc_timeout=timedelta(seconds=seconds))
        return await self.runner().status(build.build_id)

    async def status_is(self, build: Triggered, status: str) -> None:
        runner = self.runner()
        while await runner.status(build.build_id) != status:
            await until(lambda: True)

    def workflow_worker(self) -> Worker:
        return Worker(self.client, task_queue=f"{self.name}-workflows", workflows=[CommandWorkflow])

    def builds_worker(self) -> Worker:
        activities = CommandActivities(self.builds, lambda _: self.settings, self.log_cap)
        return Worker(
            self.client,
            task_queue=f"{self.name}-builds",
            activities=[activities.run_command],
            max_heartbeat_throttle_interval=timedelta(seconds=1),
            graceful_shutdown_timeout=timedelta(seconds=10),
        )

    @asynccontextmanager
    async def working(self) -> AsyncIterator[None]:
        async with self.workflow_worker(), self.builds_worker():
            yield


def a_bench(client: Client, folder: Path) -> Bench:
    repository = folder / "repository"
    repository.mkdir()
    git(repository, "init", "--quiet", "--initial-branch=main")
    settings = QueueSettings(name="trunk/main", repository=str(repository), ref="main")
    return Bench(client, folder, replace(settings, command=("true",)))
