"""A sink that is a program: the event on its input, done when it exits with 0."""

from __future__ import annotations

import asyncio
import json
import os
from errno import EACCES, ENOENT, ENOEXEC, ENOTDIR
from tempfile import TemporaryFile
from typing import IO, Final

from domain.errors import Misconfigured, SinkOut
from domain.event import HookEvent
from domain.sinks import SinkSettings
from extensions.calling import hide
from extensions.hooks.envelope import cloud_event
from extensions.leash import end, handed_on
from extensions.text import clean

SHOWN: Final = 300
MOST: Final = 16 * 1024
_NEVER: Final = (ENOENT, ENOTDIR, EACCES, ENOEXEC)


class CommandSink:
    def __init__(self, settings: SinkSettings, source: str) -> None:
        self._settings = settings
        self._source = source

    async def deliver(self, event: HookEvent) -> None:
        # Files, not pipes: what a program leaves behind may hold a pipe for ever.
        with TemporaryFile() as given, TemporaryFile() as said:
            given.write(json.dumps(cloud_event(event, self._source)).encode() + b"\n")
            given.seek(0)
            process = await self._started(event, given, said)
            try:
                code = await process.wait()
            finally:
                end(process.pid)
                await process.wait()
            if code:
                raise SinkOut(f"exit code {code}: {self._last_words(said)}")

    async def _started(
        self, event: HookEvent, given: IO[bytes], said: IO[bytes]
    ) -> asyncio.subprocess.Process:
        argv = self._settings.command
        try:
            return await asyncio.create_subprocess_exec(
                *argv,
                stdin=given,
                stdout=said,
                stderr=said,
                env=handed_on(self._settings.environment) | {"LASTGREEN_EVENT_ID": event.id},
                start_new_session=True,
            )
        except OSError as error:
            if error.errno in _NEVER:
                raise Misconfigured(f"{argv[0]} cannot be started: {error.strerror}") from error
            raise

    def _last_words(self, said: IO[bytes]) -> str:
        said.seek(max(said.seek(0, os.SEEK_END) - MOST, 0))
        hidden = [os.environ.get(name, "") for name in self._settings.environment]
        return clean(hide(said.read().decode(errors="replace"), hidden)[-SHOWN:])
