"""Data on stdout, talk on stderr; whatever a colour says, a word says too."""

from __future__ import annotations

import asyncio
import json
import re
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, fields, is_dataclass
from datetime import datetime
from typing import Any, Final

from rich.console import Console
from rich.live import Live
from rich.table import Table

from cli.verb import Here
from domain.identity import RequestId
from domain.request import State, Strategy
from stores.contract import Reader
from stores.rows import Happening, Request

NONE: Final = "-"
COLOURS: Final = {"succeeded": "green", "green": "green", "failed": "red", "broken": "red"}
QUIET: Final = frozenset({"build_running", "build_finished"})
"""Kinds that only repeat what the next line says."""
_COMMIT: Final = re.compile(r"\b[0-9a-f]{40}(?:[0-9a-f]{24})?\b")
_ROWS: Final = 12


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def show(here: Here, data: object, text: str) -> None:
    """The text, or the data as JSON."""
    if here.json:
        print(json.dumps(plain(data), indent=2))
    elif text:
        print(text)


def show_rows(
    here: Here, data: object, columns: Sequence[str], rows: Sequence[Sequence[str]]
) -> None:
    """Drawn for a person; for a pipe aligned, whole and without ornament."""
    if not here.json and sys.stdout.isatty():
        Console().print(_table(columns, rows))
        return
    sizes = [max(map(len, column)) for column in zip(columns, *rows, strict=True)]
    show(here, data, "\n".join(_aligned(row, sizes) for row in (columns, *rows)))


def plain(value: Any) -> Any:  # noqa: ANN401 - whatever is shown
    if is_dataclass(value):
        own = {"id": request_id(value)} if isinstance(value, Request) else {}
        return own | {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {key: plain(part) for key, part in value.items()}
    return [plain(part) for part in value] if isinstance(value, list | tuple) else value


def request_id(request: Request) -> str:
    return str(RequestId(request.queue, request.number))


def when(ms: int | None) -> str:
    return NONE if ms is None else f"{datetime.fromtimestamp(ms / 1000).astimezone():%F %T}"


def short(text: str) -> str:
    """Commits as a person writes them."""
    return _COMMIT.sub(lambda found: found[0][:10], text)


def _aligned(row: Sequence[str], sizes: Sequence[int]) -> str:
    return "  ".join(text.ljust(size) for text, size in zip(row, sizes, strict=True)).rstrip()


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    table = Table(*columns)
    for row in rows:
        styled = (f"[{COLOURS[text]}]{text}[/]" if text in COLOURS else text for text in row)
        table.add_row(*styled)
    return table


BOARD: Final = ("commit", "request", "state", "strategy", "base", "verdict", "promoted")


@dataclass
class Board:
    """What became of the newest requests of some queues, told while it happens."""

    reader: Reader
    queues: Sequence[str]
    name: Callable[[str], str] = short
    """How commits are called in a text."""

    def __post_init__(self) -> None:
        self._news = asyncio.Event()
        self._live: Live | None = None

    async def rows(self) -> list[tuple[str, ...]]:
        return [
            await self._row(request)
            for queue in self.queues
            for request in reversed(await self.reader.requests(queue, limit=_ROWS))
        ]

    async def _row(self, request: Request) -> tuple[str, ...]:
        fact = await self.reader.fact(request.queue, request.uri)
        happened = {row.kind for row in await self.reader.history(request.queue, request.number)}
        gone = "not moved" if happened & {"promotion_left_out", "promotion_failed"} else NONE
        strategies = {Strategy.FULL: "full", Strategy.INCREMENTAL: "incremental", None: NONE}
        shown_cause = request.cause if request.state is State.FAILED else None
        return (
            self.name(request.uri),
            request_id(request),
            f"{request.state}" + (f" ({shown_cause})" if shown_cause else ""),
            strategies[request.strategy],
            self.name(request.base_uri) if request.base_uri else NONE,
            fact.verdict if fact else NONE,
            "yes" if "promoted" in happened else gone,
        )

    def happened(self, row: Happening) -> None:
        self._news.set()
        if row.kind not in QUIET:
            about = f"request/{row.queue}/{row.subject}"
            at = datetime.now().astimezone()
            self.say(self.name(f"{at:%T}  {about}  {row.kind}  {row.detail}".rstrip()))

    def say(self, text: str) -> None:
        if self._live is None:
            say(text)
        else:
            self._live.console.print(text, markup=False, highlight=False)

    @asynccontextmanager
    async def shown(self) -> AsyncIterator[None]:
        """A table that follows for a person; otherwise lines alone."""
        if not sys.stderr.isatty():
            yield
            return
        with Live(console=Console(stderr=True), auto_refresh=False, transient=True) as live:
            self._live = live
            drawing = asyncio.create_task(self._draw(live))
            try:
                yield
            finally:
                drawing.cancel()
                with suppress(asyncio.CancelledError):
                    await drawing
                self._live = None

    async def _draw(self, live: Live) -> None:
        while True:
            self._news.clear()
            live.update(_table(BOARD, await self.rows()), refresh=True)
            await self._news.wait()
            await asyncio.sleep(0.1)
