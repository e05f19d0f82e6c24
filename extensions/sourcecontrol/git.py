"""Anything git can fetch, read through a bare mirror that holds commits alone where it may."""

from __future__ import annotations

import asyncio
import fcntl
import os
import re
import shutil
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Final

from domain.errors import NotFound, Refused, SourceControlOut
from domain.gate import Ancestry
from domain.identity import commit_uri
from domain.settings import QueueSettings
from extensions.gitcommand import (
    COMMIT,
    GitCommand,
    GitFailed,
    check_ref,
    check_url,
    classify,
    redact,
)
from extensions.sourcecontrol.contract import Change, Head, Page, Promoted
from extensions.text import clean

FETCH_SECONDS: Final = 600
PUSH_SECONDS: Final = 120
MAX_PACKS: Final = 200
MAX_AUTHOR: Final = 200
MAX_TITLE: Final = 300
_UNKNOWN: Final = 128
_ANSWERS: Final = {1: Ancestry.NO, _UNKNOWN: Ancestry.UNKNOWN}
_MADE: Final = "made"
_NO_REF: Final = re.compile("couldn't find remote ref")
_NO_FILTER: Final = re.compile(r"filter.* (not supported|not allowed)")
_DAMAGED: Final = re.compile(r"\.lock': File exists|cannot lock ref|cannot change to")
_RACED: Final = re.compile("stale info|but expected|reference already exists")
_REFUSED: Final = re.compile(
    r"exists; cannot create|denied to|permission denied|not allowed to push|marked as read only"
    r"|returned error: 403|remote rejected\](?! \((failed to update ref|unpacker error))",
    re.IGNORECASE,
)
_SETTINGS: Final = ("push.negotiate=true", "gc.auto=0", "maintenance.auto=false")
_CURSOR: Final = re.compile(r"[1-9][0-9]{0,9}")


class Mirror:
    """One remote, shared by its queues. Its commits outlive a rewrite or gc of the remote."""

    def __init__(self, url: str, refs: Iterable[str], directory: Path) -> None:
        self._url = check_url(url)
        self._refs = tuple(check_ref(ref) for ref in refs)
        self._directory = directory
        self._git = GitCommand(directory, directory.parent)
        self._outside = GitCommand(directory.parent, directory.parent)
        self._turn = asyncio.Lock()
        self._filter = "--filter=tree:0"

    @property
    def name(self) -> str:
        return redact(self._url)

    async def refs(self) -> dict[str, str]:
        """What an annotated tag names is its commit, as for ``latest``."""
        peeled = {ref: ref + "^{}" for ref in self._refs}
        there = await self.listed(*peeled, *peeled.values())
        return {r: there.get(peeled[r], there[r]) for r in self._refs if r in there}

    async def listed(self, *refs: str) -> dict[str, str]:
        if not refs:
            return {}
        try:
            answer = await self._outside.run("ls-remote", "--", self._url, *refs)
        except GitFailed as failed:
            raise classify(failed) from failed
        rows = (line.partition("\t") for line in answer.split("\n"))
        return {ref: uri for uri, _, ref in rows if ref in refs}

    async def fetch(self, *refs: str) -> bool:
        """Whether all of them exist there."""
        async with self._turn, _alone(self._beside("lock")):
            try:
                try:
                    await self._fetch(refs)
                except GitFailed as failed:
                    if not await self._is_damaged(failed):
                        raise
                    self._discard()
                    await self._fetch(refs)
                await self._tidy()
            except GitFailed as failed:
                if _NO_REF.search(failed.text):
                    return False
                raise classify(failed) from failed
        return True

    async def _fetch(self, refs: Iterable[str]) -> None:
        await self._make()
        pairs = [f"+{ref}:{local(ref)}" for ref in refs]
        options = ["--no-tags", "--no-write-fetch-head", self._filter]
        try:
            await self._remote("fetch", *options, "--", "origin", *pairs, timeout=FETCH_SECONDS)
        except GitFailed as failed:
            if not _NO_FILTER.search(failed.text) or self._filter == "--no-filter":
                raise
            self._filter = "--no-filter"
            await self._fetch(refs)

    async def _tidy(self) -> None:
        """Each fetch leaves a pack; what a rewrite left behind stays known."""
        if len(list((self._directory / "objects" / "pack").glob("*.pack"))) > MAX_PACKS:
            with suppress(GitFailed):
                await self._git.run("repack", "-adkq", timeout=FETCH_SECONDS, offline=True)

    async def push(self, lease: str, pair: str) -> str:
        options = ["--porcelain", "--no-thin", "--no-verify", lease]
        return await self._remote("push", *options, "--", "origin", pair, timeout=PUSH_SECONDS)

    async def read(self, *arguments: str) -> str:
        return await self._git.run(*arguments, offline=True)

    async def _remote(self, *arguments: str, timeout: float) -> str:  # noqa: ASYNC109
        settings = (f"remote.origin.url={self._url}", *_SETTINGS)
        flags = (part for setting in settings for part in ("-c", setting))
        return await self._git.run(*flags, *arguments, timeout=timeout)

    async def _make(self) -> None:
        if (self._directory / _MADE).exists():
            return
        self._discard()
        draft = self._beside("new")
        shutil.rmtree(draft, ignore_errors=True)
        await self._outside.run("init", "--quiet", "--bare", "--template=", "--", str(draft))
        (draft / _MADE).touch()
        draft.rename(self._directory)

    def _discard(self) -> None:
        """It can be fetched again."""
        if self._directory.exists():
            old = self._beside("old")
            shutil.rmtree(old, ignore_errors=True)
            self._directory.rename(old)
            shutil.rmtree(old, ignore_errors=True)

    def _beside(self, what: str) -> Path:
        return self._directory.with_name(f"{self._directory.name}.{what}")

    async def _is_damaged(self, failed: GitFailed) -> bool:
        """The remote can be the one in trouble: then what is known here must stay."""
        if _DAMAGED.search(failed.text):
            return True
        try:
            await self.read("rev-list", "--all", "--max-count=1")
        except GitFailed as here:
            return here.code == _UNKNOWN
        return False


class GitSourceControl:
    """One queue's ref of one remote, and the promotion ref beside it."""

    def __init__(self, mirror: Mirror, settings: QueueSettings) -> None:
        self._mirror = mirror
        self._ref = check_ref(settings.ref)
        self._target = None if settings.promote is None else check_ref(settings.promote)

    async def latest(self) -> Head:
        if not await self._mirror.fetch(self._ref):
            raise self._no_ref()
        tip = local(self._ref) + "^{commit}"
        try:
            text = await self._mirror.read("log", "-1", "--format=%H%x00%ct", tip, "--")
        except GitFailed as failed:
            raise SourceControlOut(failed.text) from failed
        uri, made_at = text.split("\0")
        return Head(commit_uri(uri), _time(made_at))

    async def is_ancestor(self, older: str, newer: str) -> Ancestry:
        if not all(map(COMMIT.fullmatch, (older, newer))):
            return Ancestry.UNKNOWN
        if (answer := await self._descends(older, newer)) is Ancestry.UNKNOWN:
            await self._mirror.fetch(self._ref)
            answer = await self._descends(older, newer)
        return answer

    async def promoted(self) -> str | None:
        if self._target is None:
            return None
        return (await self._mirror.listed(self._target)).get(self._target)

    async def promote(self, uri: str, expected: str | None) -> Promoted:
        if self._target is None:
            return Promoted.NO_TARGET
        there = await self._mirror.listed(self._ref, self._target)
        if self._ref not in there:
            raise self._no_ref()
        if not await self._mirror.fetch(*there):
            return Promoted.MOVED_MEANWHILE
        is_commit = COMMIT.fullmatch(uri)
        if not is_commit or await self._descends(uri, local(self._ref)) is not Ancestry.YES:
            raise NotFound(f"{uri[:64]} is not on {self._ref} of {self._mirror.name}")
        if there.get(self._target) == uri:
            return Promoted.SAME
        if there.get(self._target) != expected:
            return Promoted.MOVED_MEANWHILE
        return await self._push(uri, self._target, expected)

    async def _push(self, uri: str, target: str, expected: str | None) -> Promoted:
        lease = f"--force-with-lease={target}:{expected or ''}"
        try:
            answer = await self._mirror.push(lease, f"{uri}:{target}")
        except GitFailed as failed:
            if _RACED.search(failed.text):
                return Promoted.MOVED_MEANWHILE
            if _REFUSED.search(failed.text):
                raise Refused(f"{target} of {self._mirror.name}: {failed.text}") from failed
            raise classify(failed) from failed
        return Promoted.SAME if re.search("^=", answer, re.MULTILINE) else Promoted.MOVED

    async def commits_between(
        self,
        base: str | None,
        head: str,
        *,
        cursor: str | None = None,
        limit: int = 500,
        first_parent: bool = False,
    ) -> Page:
        sides = (head,) if base is None else (head, base)
        skip = 0 if cursor is None else int(cursor) if _CURSOR.fullmatch(cursor) else None
        span = [f"--skip={skip or 0}", f"--max-count={limit + 1}", *sides[:1]]
        span += ["^" + s for s in sides[1:]] + ["--first-parent"] * first_parent
        found = (await self._known(sides, "rev-list", "--date-order", *span, "--")).split()
        if skip is None or (skip and not found):
            raise NotFound(f"cursor {str(cursor)[:40]!r} is not one of these commits'")
        return Page(tuple(found[:limit]), str(skip + limit) if len(found) > limit else None)

    async def change_info(self, uri: str) -> Change:
        text = await self._known((uri,), "log", "-1", "--format=%ct%x00%an%x00%s", uri, "--")
        made_at, name, title = (part.strip() for part in text.split("\0", 2))
        return Change(uri, _time(made_at) or 1, clean(name, MAX_AUTHOR), clean(title, MAX_TITLE))

    async def _descends(self, older: str, newer: str) -> Ancestry:
        try:
            await self._mirror.read("merge-base", "--is-ancestor", older, newer)
        except GitFailed as failed:
            if failed.code not in _ANSWERS:
                raise classify(failed) from failed
            return _ANSWERS[failed.code]
        return Ancestry.YES

    async def _known(self, uris: Iterable[str], *arguments: str) -> str:
        """What git says of these commits, after a fetch where it knows one of them not yet."""
        if strange := [uri for uri in uris if not COMMIT.fullmatch(uri)]:
            raise NotFound(f"{strange[0][:64]!r} is no commit of git")
        for may_fetch in (True, False):
            try:
                return await self._mirror.read(*arguments)
            except GitFailed as failed:
                if failed.code != _UNKNOWN:
                    raise classify(failed) from failed
            if may_fetch:
                await self._mirror.fetch(self._ref)
        raise NotFound(f"{self._mirror.name} has not all of {', '.join(uris)}")

    def _no_ref(self) -> NotFound:
        return NotFound(f"{self._mirror.name} has no ref {self._ref}; push it or correct `ref`")


def local(ref: str) -> str:
    """Where the mirror keeps it; ``main`` and a tag ``main`` stay two."""
    return f"refs/remotes/origin/{ref.removeprefix('refs/')}"


def _time(text: str) -> float | None:
    return float(text) if text.isdecimal() and int(text) else None


@asynccontextmanager
async def _alone(lock: Path) -> AsyncIterator[None]:
    """Across processes; polled, so that waiting can be cancelled."""
    lock.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    file = os.open(lock, os.O_CREAT | os.O_RDWR, 0o600)
    try:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                await asyncio.sleep(0.05)
        yield
    finally:
        os.close(file)
