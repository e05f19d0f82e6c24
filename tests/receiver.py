"""A real HTTP server that keeps what it was sent, and answers as it is told."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections import deque
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

HANG = "hang"
RESET = "reset"


@dataclass(frozen=True)
class Got:
    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass(frozen=True)
class Says:
    status: int = 200
    body: bytes = b"ok"
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass
class Receiver:
    port: int = 0
    scheme: str = "http"
    got: list[Got] = field(default_factory=list)
    answers: deque[Says | str] = field(default_factory=deque)
    """What it says next; then ``usual``."""
    usual: Says | str = field(default_factory=Says)
    by_path: dict[str, Says] = field(default_factory=dict)

    @property
    def url(self) -> str:
        return f"{self.scheme}://127.0.0.1:{self.port}/hook"

    @property
    def events(self) -> list[Any]:
        return [got.json for got in self.got]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            got = await _read(reader)
            self.got.append(got)
            usual = self.by_path.get(got.path, self.usual)
            says = self.answers.popleft() if self.answers else usual
            if says == HANG:
                await reader.read()
            elif isinstance(says, Says):
                await _write(writer, says)
            if says == RESET:
                writer.transport.abort()
        writer.close()


async def _read(reader: asyncio.StreamReader) -> Got:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    method, path, _ = head[0].split(" ", 2)
    pairs = (line.split(": ", 1) for line in head[1:] if line)
    headers = {name.lower(): value for name, value in pairs}
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    return Got(method, path, headers, body)


async def _write(writer: asyncio.StreamWriter, says: Says) -> None:
    headers = {"content-length": str(len(says.body)), "connection": "close", **says.headers}
    lines = [f"HTTP/1.1 {says.status} x", *(f"{n}: {v}" for n, v in headers.items()), "", ""]
    writer.write("\r\n".join(lines).encode("latin-1") + says.body)
    await writer.drain()


@asynccontextmanager
async def receiving(tls: ssl.SSLContext | None = None) -> AsyncIterator[Receiver]:
    receiver = Receiver(scheme="https" if tls else "http")
    server = await asyncio.start_server(receiver._serve, "127.0.0.1", 0, ssl=tls)
    receiver.port = server.sockets[0].getsockname()[1]
    async with server:
        yield receiver
