"""Answers a sink that asks what an event is about, as it is now."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from domain.errors import NotFound, SourceControlOut
from domain.event import HookEvent
from domain.settings import QueueSettings
from extensions.hooks.contract import About, Commit
from extensions.queueconfig.contract import QueueConfig
from extensions.sourcecontrol.contract import SourceControl
from extensions.text import clean
from stores.contract import Reader
from stores.rows import Request

COVERED: Final = 100
IN_WORDS: Final = 10
LINES: Final = 8
READ: Final = 200_000
_FAILS: Final = re.compile(
    r"\b(error|fail|failed|failure|fatal|exception|traceback|assert\w*)\b", re.IGNORECASE
)


@dataclass(frozen=True)
class StoreDesk:
    store: Reader
    config: QueueConfig
    source_control: Callable[[str], SourceControl]

    async def about(self, event: HookEvent) -> About:
        request = await self.store.request(event.queue, event.request)
        fact = await self.store.fact(request.queue, request.uri)
        builds = await self.store.builds(request.queue, request.number)
        url = builds[-1].url if builds else None
        uris = await self._range(request)
        return About(
            request.state,
            request.cause or "",
            request.uri,
            fact.verdict if fact else None,
            url,
            uris[1:],
            tuple([await self._commit(request.queue, uri) for uri in uris[:IN_WORDS]]),
            _failing(Path(url)) if url and url.startswith("/") else (),
            self._command(request.queue),
            await self._culprit(request),
        )

    async def _range(self, request: Request) -> tuple[str, ...]:
        """The commit itself, and what is between it and the green one before."""
        green = (await self.store.covers(request.queue, request.uri)).prior_green
        with suppress(NotFound, SourceControlOut):
            if green is not None:
                source = self.source_control(request.queue)
                limit = COVERED + 1
                page = await source.commits_between(green.uri, request.uri, limit=limit)
                return page.uris or (request.uri,)
        return (request.uri,)

    async def _commit(self, queue: str, uri: str) -> Commit:
        with suppress(NotFound, SourceControlOut):
            change = await self.source_control(queue).change_info(uri)
            return Commit(uri, change.author, change.title)
        return Commit(uri, "?", "?")

    async def _culprit(self, request: Request) -> Commit | None:
        found = await self.store.bisection(request.queue, request.number)
        uri = found.culprit_uri if found else None
        return await self._commit(request.queue, uri) if uri else None

    def _command(self, queue: str) -> str:
        with suppress(NotFound):
            return _shown(self.config.get(queue))
        return ""


def _shown(settings: QueueSettings) -> str:
    return settings.command[0] if settings.shell else shlex.join(settings.command)


def _failing(log: Path) -> tuple[str, ...]:
    """The first lines that look like it, else the last; nothing where the log is elsewhere."""
    try:
        with log.open("rb") as file:
            lines = clean(file.read(READ).decode(errors="replace"), READ).splitlines()
    except OSError:
        return ()
    first = next((at for at, line in enumerate(lines) if _FAILS.search(line)), len(lines) - LINES)
    return tuple(lines[max(first, 0) :][:LINES])
