"""One queue of a real repository, validated by everything that ``lastgreen up`` runs."""

from __future__ import annotations

import asyncio
import subprocess
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from temporalio.client import Client, WorkflowHandle
from temporalio.service import RPCError, RPCStatusCode

from domain.identity import Fence
from domain.settings import QueueSettings
from extensions.queueconfig.fake import FakeConfig
from stores.rows import Request
from wiring.embedded import Ports, machine, owned
from wiring.parts import Parts
from wiring.settings import Settings
from workflows import ids
from workflows.messages import Report
from workflows.queue import QueueWorkflow

QUEUE: Final = "main"
TRUNK: Final = "refs/heads/main"
PATIENCE: Final = 60.0
NONE: Final[Mapping[int, str]] = {}


class Repository:
    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir(parents=True)
        self.git("init", "--quiet", "--bare", "--template=", "--initial-branch=main")
        self._made = 0

    def git(self, *arguments: str, given: str = "") -> str:
        done = subprocess.run(  # noqa: S603
            ["git", "-C", str(self.path), *arguments],  # noqa: S607
            input=given.encode(),
            capture_output=True,
            check=True,
        )
        return done.stdout.decode().strip()

    def write(self, count: int, changes: Mapping[int, str] = NONE) -> list[str]:
        """That many commits on top of the trunk, one on the other, which no ref names yet.
        ``changes`` are what the first, second ... does besides, as ``fast-import`` reads it.
        """
        tip = self.git("for-each-ref", "--format=%(objectname)", TRUNK)
        stream = ""
        for made in range(1, count + 1):
            self._made += 1
            stream += f"commit refs/written\nmark :{made}\n"
            stream += f"committer A <a@example.org> {1_700_000_000 + self._made} +0000\n"
            stream += f"data <<.\n{self._made}\n.\n"
            stream += f"from {tip}\n" if tip and made == 1 else ""
            stream += f"M 100644 inline file\ndata <<.\n{self._made}\n.\n"
            stream += changes.get(made, "")
        marks = "".join(f"get-mark :{made}\n" for made in range(1, count + 1))
        found = self.git(
            "fast-import", "--quiet", "--force", "--cat-blob-fd=1", given=stream + marks
        )
        self.git("update-ref", "-d", "refs/written")
        return found.split()

    def land(self, *commits: str) -> None:
        with self.moving() as move:
            for commit in commits:
                move(commit)

    @contextmanager
    def moving(self) -> Iterator[Callable[[str], None]]:
        """Moves the trunk, a transaction each, without a process each."""
        with subprocess.Popen(  # noqa: S603
            ["git", "-C", str(self.path), "update-ref", "--stdin"],  # noqa: S607
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        ) as process:
            said, heard = process.stdin, process.stdout
            assert said
            assert heard

            def move(commit: str) -> None:
                said.write(f"start\nupdate {TRUNK} {commit}\ncommit\n".encode())
                said.flush()
                assert (heard.readline(), heard.readline()) == (b"start: ok\n", b"commit: ok\n")

            yield move
            said.close()
        assert process.returncode == 0


@dataclass
class Real:
    client: Client
    parts: Parts
    fence: Fence
    repository: Repository

    async def report(self) -> Report:
        """As the CLI does it."""
        await self.parts.waker.queue(self.fence, QUEUE)
        handle: WorkflowHandle[QueueWorkflow, None] = self.client.get_workflow_handle_for(
            QueueWorkflow.run, ids.queue(QUEUE)
        )
        return await handle.execute_update(QueueWorkflow.report_head, self.fence)

    async def land(self) -> str:
        """One commit more, landed and reported."""
        (commit,) = self.repository.write(1)
        self.repository.land(commit)
        report = await self.report()
        assert report.request, report
        return commit

    async def request(self, commit: str) -> Request:
        return (await self.parts.store.attempts(QUEUE, commit))[0]

    async def recorded(self, commit: str) -> Request:
        """When it is, and the promotion with it."""
        limit = time.monotonic() + PATIENCE
        while True:
            attempts = await self.parts.store.attempts(QUEUE, commit)
            if attempts and attempts[0].recorded_at:
                return attempts[0]
            assert time.monotonic() < limit, attempts
            await asyncio.sleep(0.02)

    async def events(self, workflow_id: str) -> int:
        """Over all its runs; 0 when there is none."""
        try:
            run: str | None = (await self.client.get_workflow_handle(workflow_id).describe()).run_id
        except RPCError as error:
            if error.status is RPCStatusCode.NOT_FOUND:
                return 0
            raise
        count = 0
        while run:
            history = await self.client.get_workflow_handle(workflow_id, run_id=run).fetch_history()
            count += len(history.events)
            started = history.events[0].workflow_execution_started_event_attributes
            run = started.continued_execution_run_id
        return count


@asynccontextmanager
async def real_trunk(folder: Path, *command: str, **settings: Any) -> AsyncIterator[Real]:  # noqa: ANN401 - as they are
    """Its Temporal server is its own, with its database on disk, as on a person's machine."""
    repository = Repository(folder / "repository")
    given: dict[str, Any] = {
        "command": command,
        "shell": True,
        "promote": "verified-main",
        "watch_interval": 3600,
    }
    queue = QueueSettings(QUEUE, str(repository.path), "main", **(given | settings))
    on_disk = Settings(data=folder / "data")
    with owned(on_disk.data):
        async with machine(on_disk, FakeConfig(queue), Ports(), lambda _: None) as on:
            yield Real(on.client, on.parts, on.fence, repository)
