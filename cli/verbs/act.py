"""Verbs for whoever runs the pieces apart, and for a hook that reports a head."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from typing import Final

import structlog
from temporalio.client import (
    Client,
)

from cli.output import say, show, show_rows
from cli.verb import Here
from cli.verbs.ask import QueueName
from cli.verbs.up import check_queue
from domain.fact import Exit
from domain.identity import queue_name
from extensions.gitcommand import redact
from wiring import embedded
from wiring.asking import Asking
from wiring.parts import make_parts
from wiring.settings import reading
from wiring.settings import upgrade as upgrade_store
from wiring.temporal import connect

OF_KIND: Final = {
    "pending": Exit.PENDING,
    "NotFound": Exit.USAGE,
    "Malformed": Exit.USAGE,
    "Misconfigured": Exit.USAGE,
    "BudgetSpent": Exit.UNREACHABLE,
    "SourceControlOut": Exit.UNREACHABLE,
    "StoreOut": Exit.UNREACHABLE,
}


async def report(here: Here, queue: QueueName) -> int:
    """Have a queue look at its ref now; prints the request of the head."""
    settings = here.settings
    name = queue_name(queue)
    _ = settings.queues().get(name)
    async with reading(settings) as reader:
        fence = await reader.fence()
    answer = await Asking(await client_of(here), fence).report(name)
    show(here, answer, answer.request or "")
    if answer.request is None:
        say(f"lastgreen: {answer.error}")
    return Exit.GREEN if answer.request else OF_KIND.get(answer.kind, Exit.INTERNAL)


async def client_of(here: Here) -> Client:
    """The server named in the environment, else the one that `up` runs for this data folder."""
    note = embedded.noted(here.settings.data)
    own = note.address if note and "TEMPORAL_ADDRESS" not in os.environ else None
    return await connect(own, here.settings.namespace)


async def worker(here: Here) -> int:
    """Work for a Temporal server that runs elsewhere, until told to end."""
    settings = here.settings
    names = ", ".join(queue.name for queue in settings.queues().list())
    client = await connect(None, settings.namespace)
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    try:
        async with embedded.working(settings, client):
            say(f"works for {names} at {client.service_client.config.target_host}")
            await asyncio.Event().wait()
    finally:
        structlog.reset_defaults()
    return Exit.GREEN


async def check(here: Here) -> int:
    """Read the configuration and say what is wrong with it, by file, line and key."""
    settings = here.settings
    config = settings.queues()
    queues = config.list()
    unused = await Client.connect("127.0.0.1:1", lazy=True)
    parts = make_parts(unused, config, settings.data, settings.open_engine())
    for queue in queues:
        check_queue(queue)
        _ = parts.extensions.runners(queue.runner)
        _ = parts.extensions.projects(queue.projects)
        _ = [parts.extensions.sinks(route.sink) for route in queue.hooks]
    rows = [(q.name, redact(q.repository), q.ref, q.promote or "-", q.runner) for q in queues]
    show_rows(here, queues, ("queue", "repository", "ref", "promotes to", "runner"), rows)
    return Exit.GREEN


async def upgrade(here: Here) -> int:
    """Bring the store to the schema of this program, keeping every row."""
    version = await upgrade_store(here.settings, int(time.time() * 1000))
    show(here, {"schema": version}, f"the store's schema is {version}")
    return Exit.GREEN
