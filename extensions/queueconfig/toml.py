"""Queues from ``lastgreen.toml``; read again when the file changes."""

from __future__ import annotations

import re
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from domain.errors import Malformed, Misconfigured, NotFound
from domain.event import EventType
from domain.settings import QueueSettings, Route, check_together


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class HookTable(_Model):
    sink: str
    types: list[Annotated[EventType, Field(strict=False)]] = []


def _as_table(value: object) -> object:
    return {"sink": value} if isinstance(value, str) else value


class QueueTable(_Model):
    name: str
    repository: str
    ref: str
    command: list[str] | str = []
    environment: list[str] = []
    infrastructure_codes: list[int] = []
    projects: str = "none"
    report: str | None = None
    promote: str | None = None
    runner: str = "command"
    hooks: list[Annotated[HookTable, BeforeValidator(_as_table)]] = []
    max_concurrent: int | None = None
    gate_wait: float | None = None
    rewind_confirm: float | None = None
    confirm_failures: int | None = None
    start_timeout: float | None = None
    validation_timeout: float | None = None
    slot_grace: float | None = None
    cancel_grace: float | None = None
    watch_interval: float | None = None
    bisect: str = "off"

    def settings(self) -> QueueSettings:
        given: dict[str, Any] = self.model_dump(exclude_unset=True, exclude={"hooks", "command"})
        shell = isinstance(self.command, str)
        given["command"] = (self.command,) if isinstance(self.command, str) else (*self.command,)
        given["environment"] = tuple(self.environment)
        given["infrastructure_codes"] = tuple(self.infrastructure_codes)
        given["hooks"] = tuple(Route(hook.sink, tuple(hook.types)) for hook in self.hooks)
        return QueueSettings(**given, shell=shell)


class ConfigFile(_Model):
    """The whole file; its JSON Schema is the reference."""

    version: Literal[1]
    queue: list[QueueTable] = Field(min_length=1)


_HEADER: Final = re.compile(r"^\s*\[\[\s*queue\s*\]\]")


class TomlConfig:
    """``get`` and ``list`` refuse a file that cannot be read, with file, line and key."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read_at: int | None = None
        self._queues: dict[str, QueueSettings] = {}

    def get(self, queue: str) -> QueueSettings:
        try:
            return self._current()[queue]
        except KeyError:
            known = ", ".join(sorted(self._queues)) or "none"
            raise NotFound(f"queue {queue!r} is not configured in {self._path}: {known}") from None

    def list(self) -> list[QueueSettings]:
        return [settings for _, settings in sorted(self._current().items())]

    def _current(self) -> dict[str, QueueSettings]:
        try:
            changed = self._path.stat().st_mtime_ns
            if changed != self._read_at:
                self._queues, self._read_at = parse(self._path), changed
        except OSError as error:
            raise Misconfigured(
                f"{self._path}: {error.strerror}; name a configuration with --config, or start "
                "one queue with --repository, --ref and --command"
            ) from error
        return self._queues


def parse(path: Path) -> dict[str, QueueSettings]:
    text = path.read_text(encoding="utf-8", errors="replace")
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise Malformed(f"{path}: {error}") from error
    if not table:
        raise Malformed(f"{path}: is empty; it needs `version = 1` and a [[queue]] table")
    try:
        file = ConfigFile.model_validate(table)
    except ValidationError as error:
        raise Malformed(_explain(path, text, error)) from error
    return _queues(path, text, file)


def _queues(path: Path, text: str, file: ConfigFile) -> dict[str, QueueSettings]:
    queues: dict[str, QueueSettings] = {}
    for index, queue in enumerate(file.queue):
        try:
            settings = replace(
                queue.settings(), repository=_absolute(path.parent, queue.repository)
            )
            _check_new(settings.name, queues)
        except Malformed as error:
            key = re.split(r"\W", str(error).replace("queue name", "name"), maxsplit=1)[0]
            raise Malformed(f"{path}:{_line(text, index, key)}: {error}") from error
        queues[settings.name] = settings
    try:
        check_together(queues)
    except Malformed as error:
        raise Malformed(f"{path}: {error}") from error
    return queues


def _absolute(folder: Path, repository: str) -> str:
    """A path is meant from where the file is; an address (a scheme, or host:path) stays."""
    is_path = ":" not in repository.split("/", 1)[0] and not repository.startswith("-")
    return str((folder / repository).absolute()) if is_path else repository


def _check_new(name: str, queues: dict[str, QueueSettings]) -> None:
    if name in queues:
        raise Malformed(f"name: queue {name!r} is configured twice")


def _explain(path: Path, text: str, error: ValidationError) -> str:
    lines = []
    for problem in error.errors():
        where = problem["loc"]
        index = next((part for part in where if isinstance(part, int)), None)
        names = [str(part) for part in where if isinstance(part, str) and part != "queue"]
        key = names[0] if names else "queue"
        reason = "unknown key" if problem["type"] == "extra_forbidden" else problem["msg"]
        lines.append(f"{path}:{_line(text, index, key)}: {key}: {reason}")
    return "\n".join(dict.fromkeys(lines))


def _line(text: str, index: int | None, key: str) -> int:
    """Where the key stands, else where its table begins."""
    header, start = -1, 1
    for number, line in enumerate(text.splitlines(), 1):
        if _HEADER.match(line):
            header += 1
            start = number if header == index else start
        in_table = header == index if index is not None else True
        if in_table and re.match(rf"\s*\"?{re.escape(key)}\"?\s*=", line):
            return number
    return start
