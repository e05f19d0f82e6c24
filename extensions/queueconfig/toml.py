"""Queues from ``lastgreen.toml``; read again when the file changes."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from domain.errors import Malformed, Misconfigured, NotFound
from domain.event import EventType
from domain.settings import QueueSettings, Route, check_together
from domain.sinks import ON_EDGES, SOURCE, SinkSettings


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class HookTable(_Model):
    sink: str
    types: list[Annotated[EventType, Field(strict=False)]] = []
    edges: bool | None = None

    def route(self, sinks: Mapping[str, SinkSettings]) -> Route:
        own = sinks.get(self.sink)
        usual = own is not None and own.kind in ON_EDGES
        return Route(self.sink, (*self.types,), usual if self.edges is None else self.edges)


class HooksTable(_Model):
    source: str = Field(default=SOURCE, min_length=1)


class SinkTable(_Model):
    name: str
    kind: str
    hook_budget: float = 72 * 3600
    url: str = ""
    url_variable: str = ""
    secrets: list[str] = []
    allow: list[str] = []
    command: list[str] = []
    environment: list[str] = []
    repository: str = ""
    token: str = ""
    app: str = ""
    installation: str = ""
    key: str = ""
    target: str = ""
    covered: bool = False

    def settings(self) -> SinkSettings:
        given: dict[str, Any] = {
            key: (*value,) if isinstance(value, list) else value
            for key, value in self.model_dump().items()
        }
        return SinkSettings(**given)


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

    def settings(self, sinks: Mapping[str, SinkSettings]) -> QueueSettings:
        given: dict[str, Any] = self.model_dump(exclude_unset=True, exclude={"hooks", "command"})
        shell = isinstance(self.command, str)
        given["command"] = (self.command,) if isinstance(self.command, str) else (*self.command,)
        given["environment"] = tuple(self.environment)
        given["infrastructure_codes"] = tuple(self.infrastructure_codes)
        given["hooks"] = tuple(hook.route(sinks) for hook in self.hooks)
        return QueueSettings(**given, shell=shell)


class ConfigFile(_Model):
    """The whole file; its JSON Schema is the reference."""

    version: Literal[1]
    queue: list[QueueTable] = Field(min_length=1)
    sink: list[SinkTable] = []
    hooks: HooksTable = HooksTable()


@dataclass
class Configured:
    queues: dict[str, QueueSettings] = field(default_factory=dict[str, QueueSettings])
    sinks: dict[str, SinkSettings] = field(default_factory=dict[str, SinkSettings])
    source: str = SOURCE


class TomlConfig:
    """``get`` and ``list`` refuse a file that cannot be read, with file, line and key."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read_at: int | None = None
        self._read = Configured()

    def get(self, queue: str) -> QueueSettings:
        try:
            return self._current().queues[queue]
        except KeyError:
            known = ", ".join(sorted(self._read.queues)) or "none"
            raise NotFound(f"queue {queue!r} is not configured in {self._path}: {known}") from None

    def list(self) -> list[QueueSettings]:
        return [settings for _, settings in sorted(self._current().queues.items())]

    def sinks(self) -> Mapping[str, SinkSettings]:
        return self._current().sinks

    def source(self) -> str:
        return self._current().source

    def _current(self) -> Configured:
        try:
            changed = self._path.stat().st_mtime_ns
            if changed != self._read_at:
                self._read, self._read_at = parse(self._path), changed
        except OSError as error:
            raise Misconfigured(
                f"{self._path}: {error.strerror}; name a configuration with --config, or start "
                "one queue with --repository, --ref and --command"
            ) from error
        return self._read


def parse(path: Path) -> Configured:
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
    read = Configured(source=file.hooks.source)
    for index, sink in enumerate(file.sink):
        with _explained(path, text, ("sink", index)):
            own = sink.settings()
            _check_new("sink", own.name, read.sinks)
            read.sinks[own.name] = own
    for index, queue in enumerate(file.queue):
        with _explained(path, text, ("queue", index)):
            settings = queue.settings(read.sinks)
            _check_new("queue", settings.name, read.queues)
            repository = _absolute(path.parent, queue.repository)
            read.queues[settings.name] = replace(settings, repository=repository)
    try:
        check_together(read.queues)
    except Malformed as error:
        raise Malformed(f"{path}: {error}") from error
    return read


@contextmanager
def _explained(path: Path, text: str, where: tuple[str, int]) -> Iterator[None]:
    """What a table is refused for begins with its key."""
    try:
        yield
    except Malformed as error:
        key = re.split(r"\W", str(error).replace("queue name", "name"), maxsplit=1)[0]
        raise Malformed(f"{path}:{_line(text, *where, key)}: {error}") from error


def _absolute(folder: Path, repository: str) -> str:
    """A path is meant from where the file is; an address (a scheme, or host:path) stays."""
    is_path = ":" not in repository.split("/", 1)[0] and not repository.startswith("-")
    return str((folder / repository).absolute()) if is_path else repository


def _check_new(kind: str, name: str, known: Mapping[str, object]) -> None:
    if name in known:
        raise Malformed(f"name: {kind} {name!r} is configured twice")


def _explain(path: Path, text: str, error: ValidationError) -> str:
    lines = []
    for problem in error.errors():
        where = problem["loc"]
        index = next((part for part in where if isinstance(part, int)), None)
        table = str(where[0]) if index is not None else ""
        names = [str(part) for part in where if isinstance(part, str) and part != table]
        key = names[0] if names else table or "queue"
        reason = "unknown key" if problem["type"] == "extra_forbidden" else problem["msg"]
        lines.append(f"{path}:{_line(text, table, index, key)}: {key}: {reason}")
    return "\n".join(dict.fromkeys(lines))


def _line(text: str, table: str, index: int | None, key: str) -> int:
    """Where the key stands, else where its table begins."""
    header, start, in_table = -1, 1, index is None
    for number, line in enumerate(text.splitlines(), 1):
        if index is not None and line.lstrip().startswith("["):
            own = re.match(rf"\s*\[\[\s*{table}\s*\]\]", line) is not None
            header += own
            in_table = own and header == index
            start = number if in_table else start
        if in_table and re.match(rf"\s*\"?{re.escape(key)}\"?\s*=", line):
            return number
    return start
