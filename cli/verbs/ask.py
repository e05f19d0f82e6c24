"""What the store can tell: no server and no worker is needed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from cli.output import NONE, plain, request_id, short, show_rows, when
from cli.verb import Here
from domain.errors import Malformed, Misconfigured, NotFound, StoreOut
from domain.fact import Exit, Fact
from domain.identity import RequestId, queue_name
from domain.request import State
from domain.settings import QueueSettings
from extensions.gitcommand import redact
from stores.contract import Reader
from stores.ranges import Bisection
from stores.rows import Build, Happening, QueueState, Request
from wiring.settings import reading

QueueName = Annotated[str, typer.Argument(metavar="QUEUE", help="Such as monorepo/main")]
AnyQueue = Annotated[str | None, typer.Argument(metavar="[QUEUE]", help="Default: all of them")]
Only = Annotated[State | None, typer.Option("--state", help="Only those in this state")]
Limit = Annotated[int, typer.Option(min=1, max=10_000, help="At most so many, newest first")]


async def queues(here: Here) -> int:
    """Queues that are configured, or known from before."""
    configured, stored = configured_queues(here), set[str]()
    with suppress(*([StoreOut] if configured else [])):
        async with reading(here.settings) as reader:
            stored = set(await reader.queues())
    found = [_about(name, configured.get(name)) for name in sorted(stored | configured.keys())]
    rows = [tuple(text or NONE for text in queue.values()) for queue in found]
    show_rows(here, found, ("queue", "repository", "ref", "promotes to"), rows)
    return Exit.GREEN


async def status(here: Here, queue: AnyQueue = None) -> int:
    """Where a queue stands: its head, its last green, what runs and what waits."""
    async with reading(here.settings) as reader:
        names = [await known(here, reader, queue)] if queue else await reader.queues()
        states = [await reader.queue(name) for name in names]
    columns = ("queue", "latest", "state", "last green", "in flight", "waiting", "paused")
    show_rows(here, [_state(state) for state in states], columns, [_state_row(s) for s in states])
    return Exit.GREEN


async def requests(here: Here, queue: QueueName, state: Only = None, limit: Limit = 20) -> int:
    """Requests of a queue, newest first."""
    async with reading(here.settings) as reader:
        name = await known(here, reader, queue)
        found = await reader.requests(name, state=state, limit=limit)
    columns = ("request", "commit", "state", "cause", "strategy", "base", "accepted", "ended")
    show_rows(here, found, columns, [_request_row(request) for request in found])
    return Exit.GREEN


@dataclass(frozen=True)
class About:
    """All that is known of one request."""

    request: Request
    builds: Sequence[Build]
    fact: Fact | None
    history: Sequence[Happening]
    others: Sequence[Request]
    bisection: Bisection | None

    def lines(self) -> Iterator[str]:
        found, fact = self.request, self.fact
        yield f"{request_id(found)}  {found.state} ({found.cause or 'not ended'})"
        yield f"commit  {found.uri}"
        yield f"build   {found.strategy or 'none yet'}, on {found.base_uri or 'nothing'}"
        yield f"fact    {f'{fact.verdict}, by request {fact.request}' if fact else 'none'}"
        for build in self.builds:
            yield f"attempt {build.attempt}  {build.status}  {build.url or build.id}"
        for other in self.others:
            yield f"also    {request_id(other)}  {other.state} ({other.cause or 'not ended'})"
        yield from _search(self.bisection) if self.bisection else ()


async def show_request(
    here: Here,
    request: Annotated[str, typer.Argument(help="Such as request/monorepo/main/7")],
) -> int:
    """One request: its builds, its commit's fact, and all that happened, in order."""
    parsed = RequestId.parse(request)
    queue, number = parsed.queue, parsed.number
    async with reading(here.settings) as reader:
        found = await reader.request(queue, number)
        about = About(
            found,
            await reader.builds(queue, number),
            await reader.fact(queue, found.uri),
            await reader.history(queue, number),
            [r for r in await reader.attempts(queue, found.uri) if r.number != number],
            await reader.bisection(queue, number),
        )
    if not here.json:
        print("\n".join(about.lines()))
    rows = [(when(row.at), row.kind, short(row.detail)) for row in about.history]
    show_rows(here, about, ("at", "what", "why"), rows)
    return Exit.GREEN


async def audit(here: Here, queue: QueueName) -> int:
    """Who did what, when and why, refusals included; oldest first."""
    async with reading(here.settings) as reader:
        name = await known(here, reader, queue)
        told = await reader.audit(name)
    rows = [(when(r.at), r.actor or NONE, r.kind, r.subject, short(r.detail)) for r in told]
    show_rows(here, told, ("at", "who", "what", "about", "why"), rows)
    return Exit.GREEN


def configured_queues(here: Here) -> dict[str, QueueSettings]:
    """Without a file none; a file that is wrong is told."""
    with suppress(Misconfigured):
        return {queue.name: queue for queue in here.settings.queues().list()}
    return {}


async def known(here: Here, reader: Reader, queue: str) -> str:
    """``NotFound`` for a queue that neither the store nor the configuration has."""
    name, stored = queue_name(queue), await reader.queues()
    configured: dict[str, QueueSettings] = {}
    with suppress(*([Malformed] if name in stored else [])):
        configured = configured_queues(here)
    if name in stored or name in configured:
        return name
    there = ", ".join(sorted({*stored, *configured})) or "none"
    raise NotFound(f"there is no queue {name!r}; there is: {there}")


def _about(name: str, queue: QueueSettings | None) -> dict[str, str | None]:
    about = (redact(queue.repository), queue.ref, queue.promote) if queue else (None,) * 3
    return dict(zip(("name", "repository", "ref", "promote"), (name, *about), strict=True))


def _state(state: QueueState) -> dict[str, Any]:
    """Under the names of the process seed, with the rows behind them."""
    return {
        "name": state.name,
        "latest_request_id": state.latest and request_id(state.latest),
        "last_green_uri": state.last_green and state.last_green.uri,
        "in_flight_count": len(state.in_flight),
        **plain(state),
    }


def _state_row(state: QueueState) -> tuple[str, ...]:
    def numbers(requests: tuple[Request, ...]) -> str:
        return " ".join(str(request.number) for request in requests) or NONE

    latest, green = state.latest, state.last_green
    return (
        state.name,
        f"{latest.number} {short(latest.uri)}" if latest else NONE,
        latest.state if latest else NONE,
        f"{green.number} {short(green.uri)}" if green else NONE,
        numbers(state.in_flight),
        numbers(state.waiting),
        state.paused_reason or NONE,
    )


def _request_row(request: Request) -> tuple[str, ...]:
    return (
        request_id(request),
        short(request.uri),
        request.state,
        request.cause or NONE,
        request.strategy or NONE,
        short(request.base_uri) if request.base_uri else NONE,
        when(request.accepted_at),
        when(request.ended_at),
    )


def _search(found: Bisection) -> Iterator[str]:
    """Its state, its culprit, and the path of its probes."""
    ends = f"({short(found.good_uri)}, {short(found.bad_uri)}]"
    yield f"bisect  {found.state}, in {ends}  {short(found.culprit_uri or '')}  {found.detail}"
    for probe in found.probes:
        verdict_ = probe.cause or probe.state
        yield f"probe   {short(probe.uri)}  {verdict_}  {request_id(probe)}"
