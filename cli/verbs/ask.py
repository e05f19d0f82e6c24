"""What the store can tell: no server and no worker is needed."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from cli.output import NONE, plain, request_id, say, short, show, show_rows, when
from cli.verb import Here
from domain.errors import Malformed, Misconfigured, NotFound, StoreOut
from domain.fact import Exit, Require, verdict
from domain.gate import Hold, asked, sentence
from domain.identity import RequestId, commit_uri, queue_name
from domain.request import State
from domain.settings import QueueSettings
from extensions.gitcommand import redact
from stores.contract import Reader
from stores.rows import Build, Covers, QueueState, Request
from wiring.settings import reading

QueueName = Annotated[str, typer.Argument(metavar="QUEUE", help="Such as monorepo/main")]
AnyQueue = Annotated[str | None, typer.Argument(metavar="[QUEUE]", help="Default: all of them")]
Only = Annotated[State | None, typer.Option("--state", help="Only those in this state")]
Limit = Annotated[int, typer.Option(min=1, max=10_000, help="At most so many, newest first")]


CommitArgument = Annotated[str, typer.Argument(metavar="COMMIT", help="Its full hash")]


Project = Annotated[str, typer.Option(help="One project's own fact, in place of the repository's")]


@dataclass(frozen=True)
class Requiring:
    require: Annotated[
        Require, typer.Option(help="Its own fact, or else the verdict that covers it")
    ] = Require.EXACT
    project: Project = ""


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


async def show_request(
    here: Here,
    request: Annotated[str, typer.Argument(help="Such as request/monorepo/main/7")],
) -> int:
    """One request: its builds, its commit's fact, and all that happened, in order."""
    parsed = RequestId.parse(request)
    async with reading(here.settings) as reader:
        found = await reader.request(parsed.queue, parsed.number)
        builds = await reader.builds(parsed.queue, parsed.number)
        fact = await reader.fact(parsed.queue, found.uri)
        history = await reader.history(parsed.queue, parsed.number)
        attempts = await reader.attempts(parsed.queue, found.uri)
    if not here.json:
        cause, base = found.cause or "not ended", found.base_uri or "nothing"
        print(f"{request}  {found.state} ({cause})\ncommit  {found.uri}")
        print(f"build   {found.strategy or 'none yet'}, on {base}")
        print(f"fact    {f'{fact.verdict}, by request {fact.request}' if fact else 'none'}")
        for build in builds:
            print(f"attempt {build.attempt}  {build.status}  {build.url or build.id}")
        for other in attempts:
            if other.number != found.number:
                print(f"also    {request_id(other)}  {other.state} ({other.cause or 'not ended'})")
    data = {"request": found, "builds": builds, "fact": fact, "history": history}
    data["attempts"] = [request_id(attempt) for attempt in attempts]
    rows = [(when(row.at), row.kind, short(row.detail)) for row in history]
    show_rows(here, data, ("at", "what", "why"), rows)
    return Exit.GREEN


async def explain(here: Here, queue: QueueName) -> int:
    """In plain words: what every request that has not ended waits for, and since when."""
    async with reading(here.settings) as reader:
        name = await known(here, reader, queue)
        state = await reader.queue(name)
        held = await reader.held(name, configured_queues(here).get(name))
        builds = {r.number: await reader.builds(name, r.number) for r in state.in_flight}
    lines = [sentence(name, held if isinstance(held, Hold) else asked(held))]
    lines += [_waits(request, builds[request.number]) for request in state.in_flight]
    lines += [f"{request_id(r)} waits since {when(r.accepted_at)}" for r in state.waiting]
    show(here, {"queue": name, "held": lines[0], "requests": lines[1:]}, "\n".join(lines))
    return Exit.GREEN


async def last_green(here: Here, queue: QueueName, project: Project = "") -> int:
    """The newest green commit of a queue, or of a project; exit code 3 when there is none."""
    async with reading(here.settings) as reader:
        name = await known(here, reader, queue)
        green = (
            await reader.last_green_of(name, project)
            if project
            else (await reader.queue(name)).last_green
        )
    uri = green.uri if green else None
    found = {"queue": name, "project": project, "uri": uri, "request": green and request_id(green)}
    show(here, found, uri or "")
    if green is None:
        say(f"{f'project {project} of ' if project else ''}queue {name} has no green commit yet")
    return Exit.GREEN if green else Exit.UNKNOWN


async def is_green(here: Here, queue: QueueName, commit: CommitArgument, how: Requiring) -> int:
    """Whether a commit is green by its own fact: 0 green, 1 broken, 3 unknown, 8 pending."""
    async with reading(here.settings) as reader:
        name = await known(here, reader, queue)
        covers = await reader.covers(name, commit_uri(commit))
        if how.project:
            fact = await reader.fact(name, covers.uri, how.project)
            covers = Covers(covers.uri, fact, covers.attempts)
    code = covers.answer(how.require)
    answered = {"queue": name, "uri": covers.uri, "answer": code.name.lower(), "exit": int(code)}
    asked = {
        **answered,
        "require": how.require,
        "project": how.project,
        "request": _named_in(name, covers),
    }
    show(here, {**asked, "fact": covers.fact, "cover": _cover(covers)}, _told(name, covers))
    return code


async def covers(here: Here, queue: QueueName, commit: CommitArgument) -> int:
    """Which verdict covers a commit, built or not, and its green neighbours; 3 when none does."""
    async with reading(here.settings) as reader:
        name = await known(here, reader, queue)
        found = await reader.covers(name, commit_uri(commit))
    lines = [_told(name, found)]
    for what, green in (("prior green", found.prior_green), ("next green", found.next_green)):
        text = f"{green.uri} by {request_id(green)}" if green else "none"
        lines.append(f"{what:<12} {text}")
    data = {"queue": name, "uri": found.uri, "fact": found.fact, "cover": _cover(found)}
    greens = {"prior_green": found.prior_green, "next_green": found.next_green}
    show(here, data | greens, "\n".join(lines))
    return Exit.GREEN if found.cover or found.fact else Exit.UNKNOWN


def _told(queue: str, covers: Covers) -> str:
    """Its own fact, else what covers it, else that nothing is known."""
    if fact := covers.fact:
        request = RequestId(queue, fact.request)
        return f"{fact.verdict} by {request}, degree {fact.degree:g}, {when(fact.created_at)}"
    under_way = next((r for r in covers.attempts if not r.state.is_terminal), None)
    why = f"{request_id(under_way)} is {under_way.state}; " if under_way else ""
    if covers.cover is None or covers.by is None:
        last = covers.attempts[0] if covers.attempts else None
        why = why or (f"{request_id(last)} is {last.state}" if last else "no request named it")
        return f"{covers.answer().name.lower()}: no fact; {why.removesuffix('; ')}"
    by = f"{request_id(covers.by)} at {short(covers.by.uri)} ({verdict(covers.cover.degree)})"
    built = "yes" if any(attempt.admitted_at for attempt in covers.attempts) else "no"
    return f"{covers.answer().name.lower()}: {why}covered by {by}, built: {built}"


def _named_in(queue: str, covers: Covers) -> str | None:
    number = covers.fact.request if covers.fact else None
    number = number or (covers.attempts[0].number if covers.attempts else None)
    return str(RequestId(queue, number)) if number else None


def _cover(covers: Covers) -> dict[str, Any] | None:
    if covers.cover is None or covers.by is None:
        return None
    by = {"request": request_id(covers.by), "commit": covers.by.uri}
    return {**by, "degree": covers.cover.degree, "verdict": verdict(covers.cover.degree)}


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


def _waits(request: Request, builds: Sequence[Build]) -> str:
    named, until = request_id(request), when(request.deadline_at)
    if request.ending:
        return f"{named} is being ended ({request.ending}) since {when(request.ending_at)}"
    if not builds:
        since = when(request.admitted_at)
        return f"{named} waits since {since} for its runner to start a build, until {until}"
    build = builds[-1]
    about = f"build {build.url or build.id} of {build.runner}, {build.status}"
    return f"{named} waits since {when(build.triggered_at)} for {about}, until {until}"
