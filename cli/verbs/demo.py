"""`demo`: a small trunk goes its way on this machine, and what came of it is checked."""

from __future__ import annotations

import asyncio
import re
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Final

import typer

from cli.output import BOARD, Board, say, short, show_rows
from cli.verb import Here
from cli.verbs.up import logged, write_queue
from domain.fact import Exit
from domain.request import State
from domain.settings import QueueSettings
from extensions.gitcommand import GitCommand
from stores.contract import Reader
from stores.rows import Request
from wiring.embedded import Machine, Ports, machine, owned
from wiring.recover import start_queues
from wiring.settings import Settings

Keep = Annotated[bool, typer.Option("--keep", help="Leave its folder in place")]
QUEUE: Final = "demo/trunk"
VERIFIED: Final = "refs/heads/verified-main"
LIMIT: Final = 60.0
IDENTITY: Final = ("-c", "user.name=demo", "-c", "user.email=demo@localhost")
SCRIPT: Final = """\
# About a second; then as long as the story holds this commit. Red while `broken` exists.
echo "validating $(cat letter)"
sleep 1
while [ -e "{hold}/$(cat letter)" ]; do sleep 0.05; done
[ ! -e broken ]
"""
EXPECTED: Final[dict[str, tuple[str, ...]]] = {
    "A": ("succeeded", "full", "-", "green", "yes"),
    "B": ("superseded", "-", "-", "-", "-"),
    "C": ("superseded", "-", "-", "-", "-"),
    "D": ("succeeded", "incremental", "A", "green", "yes"),
    "E": ("superseded", "-", "-", "-", "-"),
    "F": ("succeeded", "incremental", "D", "green", "yes"),
    "G": ("failed (build_failed)", "incremental", "F", "broken", "-"),
    "H": ("succeeded", "incremental", "F", "green", "yes"),
    "X": ("succeeded", "full", "-", "green", "yes"),
}
"""State, strategy, base, verdict, promoted; the requests are numbered as the heads came."""


@dataclass
class Scene:
    """The remote, a clone to work in, and the names of the commits."""

    folder: Path
    names: dict[str, str] = field(default_factory=dict[str, str])

    @property
    def remote(self) -> Path:
        return self.folder / "trunk.git"

    @property
    def hold(self) -> Path:
        return self.folder / "hold"

    def named(self, text: str) -> str:
        calls = {uri: letter for letter, uri in self.names.items()}
        return short(re.sub("[0-9a-f]{40}", lambda found: calls.get(found[0], found[0]), text))

    async def git(self, where: str, *arguments: str) -> str:
        git = GitCommand(self.folder / where, self.folder / "home")
        return await git.run(*IDENTITY, *arguments)

    async def make(self) -> None:
        for path in (self.hold, self.remote, self.folder / "work"):
            path.mkdir()
        await self.git("trunk.git", "init", "--quiet", "--bare", "--initial-branch=main")
        await self.git("work", "init", "--quiet", "--initial-branch=main")
        await self.git("work", "remote", "add", "origin", str(self.remote))
        (self.folder / "work" / "validate.sh").write_text(SCRIPT.format(hold=self.hold))

    async def push(self, letter: str, *, broken: bool = False, onto: str | None = None) -> None:
        """A commit on top of the last one, or in place of it."""
        work = self.folder / "work"
        if onto is not None:
            await self.git("work", "reset", "--quiet", "--hard", self.names[onto])
        (work / "letter").write_text(f"{letter}\n")
        (work / "broken").unlink(missing_ok=True)
        if broken:
            (work / "broken").touch()
        await self.git("work", "add", "--all")
        await self.git("work", "commit", "--quiet", f"--message={letter}")
        self.names[letter] = await self.git("work", "rev-parse", "HEAD")
        force = () if onto is None else ("--force",)
        await self.git("work", "push", "--quiet", *force, "origin", "HEAD:main")


@dataclass
class Story:
    scene: Scene
    running: Machine

    @property
    def store(self) -> Reader:
        return self.running.parts.store

    async def tell(self) -> None:
        """Each step waits for what stands, not for time to pass."""
        for letter in "AD":
            (self.scene.hold / letter).touch()
        await self._lands("A", State.PROCESSING)
        for letter in "BCD":
            await self._lands(letter, State.ACCEPTED)
        await self._ends("A")
        await self._reaches("D", lambda request: request.state is State.PROCESSING)
        for letter in "EF":
            await self._lands(letter, State.ACCEPTED)
        await self._ends("D")
        await self._reaches("F", _is_recorded)
        await self.scene.push("G", broken=True)
        await self._done("G")
        await self.scene.push("H")
        await self._done("H")
        await self.scene.push("X", onto="G")
        await self._done("X")

    async def _lands(self, letter: str, state: State) -> None:
        await self.scene.push(letter)
        await self._poke()
        await self._reaches(letter, lambda request: request.state is state)

    async def _ends(self, letter: str) -> None:
        (self.scene.hold / letter).unlink()
        await self._reaches(letter, _is_recorded)

    async def _done(self, letter: str) -> None:
        await self._poke()
        await self._reaches(letter, _is_recorded)

    async def _poke(self) -> None:
        await self.running.parts.waker.head_moved(self.running.fence, QUEUE)

    async def _reaches(self, letter: str, reached: Callable[[Request], bool]) -> None:
        uri = self.scene.names[letter]
        while not any(map(reached, await self.store.attempts(QUEUE, uri))):  # noqa: ASYNC110 - of a store
            await asyncio.sleep(0.03)

    async def differences(self, rows: list[tuple[str, ...]]) -> list[str]:
        """What is not as the story says; none of it should be."""
        wrong = []
        found = {row[0]: row[2:] for row in rows}
        for number, (letter, expected) in enumerate(EXPECTED.items(), 1):
            if found.get(letter) != expected:
                wrong.append(f"{letter} is {found.get(letter)}, not {expected}")
            builds = len(await self.store.builds(QUEUE, number))
            if builds != (expected[1] != "-"):
                wrong.append(f"{letter} had {builds} builds")
        if [row[1] for row in rows] != [f"request/{QUEUE}/{n + 1}" for n in range(len(EXPECTED))]:
            wrong.append(f"the requests are {', '.join(row[1] for row in rows)}")
        green = (await self.store.queue(QUEUE)).last_green
        ref = await self.scene.git("trunk.git", "for-each-ref", "--format=%(objectname)", VERIFIED)
        for what, uri in (("last green", green and green.uri), (VERIFIED, ref)):
            if uri != self.scene.names.get("X"):
                wrong.append(f"{what} is {self.scene.named(uri or 'none')}, not X")
        return wrong


def _is_recorded(request: Request) -> bool:
    return request.recorded_at is not None


async def demo(here: Here, keep: Keep = False) -> int:  # noqa: FBT002 - a flag
    """See a trunk go red and green again, on a small remote made for it."""
    folder = Path(tempfile.mkdtemp(prefix="lastgreen-demo-"))
    try:
        return await _demo(here, Scene(folder))
    finally:
        if keep:
            say(f"kept: {folder}")
        else:
            shutil.rmtree(folder, ignore_errors=True)


async def _demo(here: Here, scene: Scene) -> int:
    settings = Settings(data=scene.folder / "data", config=None, database_url=None)
    async with _running(scene, settings) as running:
        say(f"Temporal UI  {running.ui}")
        story = Story(scene, running)
        board = Board(running.parts.store, [QUEUE], scene.named)
        running.parts.waker.happened = board.happened
        try:
            async with board.shown(), asyncio.timeout(LIMIT):
                await story.tell()
        except TimeoutError:
            say(f"the story did not end within {LIMIT:g} s")
        rows = await board.rows()
        wrong = await story.differences(rows)
    data = {"requests": [dict(zip(BOARD, row, strict=True)) for row in rows], "wrong": wrong}
    show_rows(here, data, BOARD, rows)
    say("\n".join(wrong) or "all is as it should be")
    return Exit.BROKEN if wrong else Exit.GREEN


@asynccontextmanager
async def _running(scene: Scene, settings: Settings) -> AsyncIterator[Machine]:
    command = ("/bin/sh", "validate.sh")
    queue = QueueSettings(
        QUEUE, str(scene.remote), "main", command=command, promote="verified-main",
        watch_interval=1, rewind_confirm=1,
    )  # fmt: skip
    await scene.make()
    with owned(settings.data), logged(settings.data):
        settings = settings.model_copy(update={"config": write_queue(settings, queue)})
        async with machine(settings, settings.queues(), Ports(), say) as running:
            await start_queues(running.client, running.parts, running.fence, alone=True)
            yield running
