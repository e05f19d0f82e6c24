"""Verbs that answer about commits: which is green, and what is known of any."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import typer

from cli.output import request_id, say, short, show, when
from cli.verb import Here
from cli.verbs.ask import QueueName, known
from domain.fact import Exit, Require, verdict
from domain.identity import RequestId, commit_uri
from stores.ranges import Covers
from wiring.settings import reading

CommitArgument = Annotated[str, typer.Argument(metavar="COMMIT", help="Its full hash")]


Project = Annotated[str, typer.Option(help="One project's own fact, in place of the repository's")]


@dataclass(frozen=True)
class Requiring:
    require: Annotated[
        Require, typer.Option(help="Its own fact, or else the verdict that covers it")
    ] = Require.EXACT
    project: Project = ""


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
