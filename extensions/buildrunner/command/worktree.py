"""A clean worktree of one commit for one attempt, out of a store that is never the mirror."""

from __future__ import annotations

import asyncio
import fcntl
import shutil
import time
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Final
from uuid import uuid4

from extensions.gitcommand import GitCommand, GitFailed, check_url

FETCH_TIMEOUT: Final = 30 * 60
CHECKOUT_TIMEOUT: Final = 15 * 60
_TRY_LOCK_EVERY: Final = 0.2
_STALE: Final = 10 * 60
_BIN: Final = ThreadPoolExecutor(max_workers=1, thread_name_prefix="trash")
# git may pack what piles up, but in sight of whoever holds the lock.
_QUIET: Final = ("-c", "gc.autoDetach=false", "-c", "maintenance.autoDetach=false")


@dataclass(frozen=True, slots=True)
class Wanted:
    """``about`` says to a person whose it is."""

    build: str
    about: str
    url: str
    head: str
    base: str | None
    own: str = field(default_factory=lambda: uuid4().hex[:8])

    @property
    def name(self) -> str:
        """Nobody else's: an attempt that was given up may not have noticed yet."""
        return f"{self.build}-{self.own}"


@asynccontextmanager
async def checked_out(builds: Path, wanted: Wanted) -> AsyncIterator[Path]:
    """``GitFailed`` when there is none to be had. It is gone afterwards, whatever happened, and
    nobody waits until all its files are.
    """
    tree, known = _folder(builds, "work") / wanted.name, _store(builds, wanted) / "worktrees"
    with _note(builds, wanted):
        left = [*tree.parent.glob(f"{wanted.build}-*"), *known.glob(f"{wanted.build}-*")]
        await asyncio.to_thread(_remove, *left)
        try:
            await _add(builds, wanted, tree)
            yield tree
        finally:
            shutil.rmtree(known / wanted.name, ignore_errors=True)
            _throw_away(builds, tree)


def _store(builds: Path, wanted: Wanted) -> Path:
    """One for each remote, of the builds' own."""
    return builds / "store" / f"{sha256(wanted.url.encode()).hexdigest()[:32]}.git"


async def _add(builds: Path, wanted: Wanted, tree: Path) -> None:
    check_url(wanted.url)
    store = _store(builds, wanted)
    store.mkdir(parents=True, exist_ok=True)
    git = GitCommand(store, builds / "home")
    specs = [f"+{wanted.head}:refs/lastgreen/head"]
    if wanted.base and wanted.base != wanted.head:
        specs.append(f"+{wanted.base}:refs/lastgreen/base")
    fetch = (*_QUIET, "fetch", "--quiet", "--depth=1", "--no-tags", "--", wanted.url, *specs)
    async with _locked(store):
        _unlock(store)
        if not (store / "HEAD").exists():
            await git.run("init", "--quiet", "--bare", "--template=")
        await git.run(*fetch, timeout=FETCH_TIMEOUT)
    add = ("worktree", "add", "--quiet", "--detach", "--", str(tree), wanted.head)
    await git.run(*add, timeout=CHECKOUT_TIMEOUT, offline=True)
    found = (store / "worktrees" / wanted.name / "HEAD").read_text().strip()
    if found != wanted.head:
        raise GitFailed(1, f"the worktree is at {found}, not at {wanted.head}")


@asynccontextmanager
async def _locked(store: Path) -> AsyncIterator[None]:
    with store.with_suffix(".lock").open("w") as lock:
        while not _is_ours(lock.fileno()):  # noqa: ASYNC110 (other processes take it too)
            await asyncio.sleep(_TRY_LOCK_EVERY)
        yield


def _unlock(store: Path) -> None:
    """We are alone here: an old lock of git's is that of one that was killed."""
    for lock in (*store.glob("*.lock"), *store.glob("refs/lastgreen/*.lock")):
        with suppress(FileNotFoundError):
            if time.time() - lock.stat().st_mtime > _STALE:
                lock.unlink()


def _is_ours(lock: int) -> bool:
    with suppress(BlockingIOError):
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    return False


def _remove(*trees: Path) -> None:
    """What still cannot be removed is left to the next attempt."""
    for tree in trees:
        shutil.rmtree(tree, onerror=_open_up)
        shutil.rmtree(tree, ignore_errors=True)


def _throw_away(builds: Path, tree: Path) -> None:
    trash = _folder(builds, "trash") / tree.name
    with suppress(FileNotFoundError):
        tree.rename(trash)
        _BIN.submit(_remove, trash)


def _open_up(_: object, path: str, __: object) -> None:
    """Caches of some tools are read-only. Links are not followed out of the tree."""
    for closed in (Path(path).parent, Path(path)):
        if closed.is_dir() and not closed.is_symlink():
            with suppress(OSError):
                closed.chmod(0o700)


def _folder(builds: Path, name: str) -> Path:
    folder = builds.absolute() / name
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@contextmanager
def _note(builds: Path, wanted: Wanted) -> Iterator[None]:
    """Locked as long as its process lives: a pid alone could be anybody's by the time of asking."""
    path = _folder(builds, "running") / wanted.name
    with path.open("w", encoding="utf-8") as note:
        fcntl.flock(note, fcntl.LOCK_EX | fcntl.LOCK_NB)
        note.write(wanted.about)
        note.flush()
        try:
            yield
        finally:
            path.unlink(missing_ok=True)


def ended_by_the_leash(builds: Path) -> list[str]:
    """What ran when its worker ended without a word; each is said once, and tidied up."""
    _remove(*_folder(builds, "trash").iterdir())
    ended = []
    for path in sorted((builds / "running").glob("*")):
        with suppress(FileNotFoundError), path.open(encoding="utf-8") as note:
            if _is_ours(note.fileno()):
                ended.append(note.read())
                _remove(_folder(builds, "work") / path.name)
                path.unlink(missing_ok=True)
    return ended
