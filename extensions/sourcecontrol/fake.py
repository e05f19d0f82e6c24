"""A small trunk with state, scripted by tests; it knows every failure a remote has."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Mapping
from typing import Final

from domain.errors import NotFound, Refused, SourceControlOut
from domain.gate import Ancestry
from domain.identity import commit_uri
from extensions.sourcecontrol.contract import Change, Head, Page, Promoted
from extensions.text import clean

FIRST: Final = 1_700_000_000.0


class FakeSourceControl:
    def __init__(self, *uris: str, has_target: bool = True) -> None:
        self.parents: dict[str, str | None] = {}
        self.times: dict[str, float | None] = {}
        self.texts: dict[str, tuple[str, str]] = {}
        self.tip: str | None = None
        self.promotion: str | None = None
        self.has_target = has_target
        self.protected = ""
        self.pushes: list[str] = []
        self.asked: Counter[str] = Counter()
        self.out = False
        self.errors: deque[Exception] = deque()
        self.latest_answers: deque[str] = deque()
        self.before_push: Callable[[], None] = lambda: None
        self.lose_answer = False
        self.answering = asyncio.Event()
        self.answering.set()
        self.land(*uris)

    def land(self, *uris: str) -> None:
        for uri in uris:
            self.parents[uri] = self.tip
            self.times.setdefault(uri, FIRST + 60 * len(self.parents))
            self.texts.setdefault(uri, ("Ada", f"Change {uri[:80]}"))
            self.tip = uri

    def rewrite(self, base: str | None, *uris: str) -> None:
        """A force-push: back to ``base``, and on from there."""
        self.tip = base
        self.land(*uris)

    def hang(self) -> None:
        """No answer until ``answering`` is set again."""
        self.answering.clear()

    async def latest(self) -> Head:
        await self.answer("latest")
        uri = self.latest_answers.popleft() if self.latest_answers else self.tip
        if uri is None:
            raise NotFound("the trunk has no such ref; push it or correct `ref`")
        return Head(commit_uri(uri), self.times.get(uri))

    async def is_ancestor(self, older: str, newer: str) -> Ancestry:
        await self.answer("is_ancestor")
        if older not in self.parents or newer not in self.parents:
            return Ancestry.UNKNOWN
        return Ancestry.YES if older in self.line(newer) else Ancestry.NO

    async def promoted(self) -> str | None:
        await self.answer("promoted")
        return self.promotion if self.has_target else None

    async def promote(self, uri: str, expected: str | None) -> Promoted:
        await self.answer("promote")
        if not self.has_target:
            return Promoted.NO_TARGET
        if uri not in self.line(self.tip):
            raise NotFound(f"{uri} is not on the ref")
        if self.promotion == uri:
            return Promoted.SAME
        self.before_push()
        if self.promotion != expected:
            return Promoted.MOVED_MEANWHILE
        if self.protected:
            raise Refused(self.protected)
        self.promotion = uri
        self.pushes.append(uri)
        if self.lose_answer:
            self.lose_answer = False
            raise SourceControlOut("the answer was lost")
        return Promoted.MOVED

    async def commits_between(
        self,
        base: str | None,
        head: str,
        *,
        cursor: str | None = None,
        limit: int = 500,
        first_parent: bool = False,
    ) -> Page:
        _ = first_parent  # nothing is merged here
        await self.answer("commits_between")
        if not {head, base or head} <= self.parents.keys():
            raise NotFound("a side is not known")
        seen = set(self.line(base))
        found = [uri for uri in self.line(head) if uri not in seen]
        if cursor is not None and cursor not in found[:-1]:
            raise NotFound(f"cursor {cursor!r} is not known")
        start = 0 if cursor is None else found.index(cursor) + 1
        page = tuple(found[start : start + limit])
        return Page(page, page[-1] if len(found) > start + limit else None)

    async def change_info(self, uri: str) -> Change:
        await self.answer("change_info")
        if uri not in self.parents:
            raise NotFound(f"{uri} is not known")
        author, title = self.texts[uri]
        return Change(uri, self.times[uri] or 1, clean(author, 200), clean(title, 300))

    def line(self, tip: str | None) -> list[str]:
        """The commit and its ancestors, newest first."""
        found = []
        while tip is not None:
            found.append(tip)
            tip = self.parents[tip]
        return found

    async def answer(self, method: str) -> None:
        self.asked[method] += 1
        await self.answering.wait()
        if self.errors:
            raise self.errors.popleft()
        if self.out:
            raise SourceControlOut("the remote gives no answer")


class FakeRemotes:
    """The same trunks, as the watch sees them; a full ref name each."""

    def __init__(self, trunks: Mapping[str, FakeSourceControl]) -> None:
        self._trunks = trunks

    async def refs(self) -> dict[str, str]:
        for trunk in self._trunks.values():
            await trunk.answer("refs")
        return {ref: trunk.tip for ref, trunk in self._trunks.items() if trunk.tip is not None}
