"""`up`: everything on this machine, for one queue or for those of a file."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final

import structlog
import typer
from temporalio.runtime import (
    LogForwardingConfig,
    LoggingConfig,
    Runtime,
    TelemetryConfig,
    TelemetryFilter,
)

from cli.output import Board, say, show
from cli.verb import Here
from domain.errors import Malformed, Misconfigured, NotFound, SourceControlOut
from domain.fact import Exit
from domain.settings import QueueSettings, check_together, normal_ref
from extensions.gitcommand import check_ref, check_url, redact
from wiring.embedded import Machine, Ports, machine, owned
from wiring.recover import start_queues
from wiring.settings import Settings
from wiring.temporal import TemporalOut

NEAR: Final[dict[str, Any]] = {"watch_interval": 2}
"""A look at a repository on this machine costs nothing."""


@dataclass(frozen=True)
class One:
    """A queue without a file."""

    repository: Annotated[str | None, typer.Option(help="Path or URL of a git repository")] = None
    ref: Annotated[str, typer.Option(help="Whose heads are validated")] = "main"
    command: Annotated[str | None, typer.Option(help="What validates a commit: 0 is green")] = None
    shell: Annotated[bool, typer.Option("--shell", help="Run it by /bin/sh -c")] = False
    promote: Annotated[str | None, typer.Option(help="Ref that follows the last green")] = None
    queue: Annotated[str | None, typer.Option(help="Its name; default: <repository>/<ref>")] = None


@dataclass(frozen=True)
class Listen:
    port: Annotated[int | None, typer.Option(help="Of Temporal; default: a free one")] = None
    ui_port: Annotated[int | None, typer.Option(help="Of its UI; default: a free one")] = None


async def up(here: Here, one: One, listen: Listen) -> int:
    """Validate on this machine: a Temporal server with its UI, and the workers."""
    settings = here.settings
    if one.repository is None and one.command is not None:
        raise Malformed("--command needs --repository; or put both into lastgreen.toml")
    wanted = None if one.repository is None else wanted_queue(one, one.repository)
    for queue in [wanted] if wanted else settings.queues().list():
        check_queue(queue)
    with owned(settings.data), logged(settings.data):
        if wanted:
            settings = settings.model_copy(update={"config": write_queue(settings, wanted)})
        config, ports = settings.queues(), Ports(listen.port, listen.ui_port)
        async with machine(settings, config, ports, say) as running:
            await preflight(running)
            return await _work(here, running)


async def _work(here: Here, running: Machine) -> int:
    queues = running.parts.config.list()
    show(here, {"ui": running.ui, "queues": queues}, "")
    say(f"Temporal UI  {running.ui}")
    for queue in queues:
        target = f", promotes to {queue.promote}" if queue.promote else ""
        say(f"queue {queue.name}  {queue.ref} of {redact(queue.repository)}{target}")
    board = Board(running.parts.store, [queue.name for queue in queues])
    running.parts.waker.happened = board.happened
    async with board.shown():
        await start_queues(running.client, running.parts, running.fence, alone=True)
        try:
            await asyncio.wait({running.server_ended})
        except asyncio.CancelledError:
            board.say("stopping")
            return Exit.GREEN
    code = running.server_ended.result()
    raise TemporalOut(f"the Temporal server ended with {code}: see temporal.log in the data folder")


def write_queue(settings: Settings, queue: QueueSettings) -> Path:
    """Into the data folder, where a person can read it and other verbs find it."""
    names = ("name", "repository", "ref", "promote", "watch_interval", "rewind_confirm")
    keys = {name: getattr(queue, name) for name in names}
    keys["command"] = queue.command[0] if queue.shell else [*queue.command]
    lines = [
        f"{key} = {json.dumps(value, ensure_ascii=False)}"
        for key, value in keys.items()
        if value is not None
    ]
    text = "\n".join(["version = 1", "[[queue]]", *lines, ""])
    settings.written_config.write_text(text, encoding="utf-8")
    return settings.written_config


def wanted_queue(one: One, repository: str) -> QueueSettings:
    if not one.command:
        raise Malformed("--repository needs --command: what validates a commit")
    url = check_url(repository)
    try:
        argv = (one.command,) if one.shell else tuple(shlex.split(one.command))
    except ValueError as error:
        raise Malformed(f"--command {one.command!r}: {error}") from error
    place = re.split("[/:]", url.rstrip("/").removesuffix("/.git").removesuffix(".git"))[-1]
    made_up = f"{place}/{one.ref.removeprefix('refs/heads/')}"
    name = one.queue or re.sub("[^A-Za-z0-9._/-]", "-", made_up)
    options: dict[str, Any] = {"command": argv, "shell": one.shell, "promote": one.promote}
    queue = QueueSettings(name, url, one.ref, **options, **({} if ":" in url else NEAR))
    check_together({queue.name: queue})
    return queue


def check_queue(queue: QueueSettings) -> None:
    """What only git would find wrong, before git is asked."""
    try:
        _ = check_url(queue.repository), check_ref(queue.ref)
        _ = queue.promote and check_ref(queue.promote)
    except Malformed as error:
        raise Malformed(f"queue {queue.name}: {error}") from error


async def preflight(running: Machine) -> None:
    """A repository that cannot be read is told at once; a ref may still come."""
    for queue in running.parts.config.list():
        about = f"queue {queue.name}"
        try:
            refs = await running.parts.extensions.remotes(queue.repository).refs()
        except SourceControlOut as error:
            say(f"{about}: does not answer, is asked again: {error}")
        except NotFound as error:
            raise NotFound(f"{about}: no such repository: {error}; correct it") from error
        except Misconfigured as error:
            raise Misconfigured(f"{about}: {error}") from error
        else:
            if (ref := normal_ref(queue.ref)) not in refs:
                say(
                    f"{about}: {redact(queue.repository)} has no {ref} (yet): push it, or correct "
                    f"--ref; it is looked for every {queue.watch_interval:g} s"
                )


@contextmanager
def logged(data: Path) -> Iterator[None]:
    """What is for those who look into it later goes to a file, not between the lines."""
    handler = logging.FileHandler(data / "lastgreen.log", delay=True, encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s %(message)s"))
    logging.getLogger().addHandler(handler)
    logging.getLogger("lastgreen").setLevel(logging.INFO)
    structlog.configure(
        processors=[structlog.processors.KeyValueRenderer(key_order=["event"])],
        logger_factory=structlog.stdlib.LoggerFactory(),
    )
    # Temporal's core would warn on stdout.
    forward = LogForwardingConfig(logging.getLogger("temporalio.core"))
    level = TelemetryFilter(core_level="WARN", other_level="ERROR")
    core = TelemetryConfig(logging=LoggingConfig(level, forwarding=forward))
    Runtime.set_default(Runtime(telemetry=core), error_if_already_set=False)
    try:
        yield
    finally:
        logging.getLogger().removeHandler(handler)
        handler.close()
        structlog.reset_defaults()
