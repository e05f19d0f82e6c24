"""What a person asks of a queue; each needs a reason, and is in the audit with who asked."""

from __future__ import annotations

import asyncio
import getpass
import socket
import time
from dataclasses import asdict, dataclass
from typing import Annotated, Final
from uuid import uuid4

import typer

from cli.output import say, show, show_rows, when
from cli.verb import Here
from cli.verbs.act import client_of
from cli.verbs.ask import AnyQueue, QueueName, known
from domain.act import Act, Verb
from domain.advice import advice
from domain.fact import Exit
from domain.identity import RequestId
from domain.request import State
from extensions.text import clean
from stores.rows import DeadLetter, Happening, Request, Stamp
from wiring.asking import Asking, allowed
from wiring.settings import reading, writing
from wiring.temporal import TemporalOut
from wiring.wake import Waker

RequestName = Annotated[
    str, typer.Argument(metavar="REQUEST", help="Such as request/monorepo/main/7")
]
LetterId = Annotated[str, typer.Argument(metavar="ID", help="As `dead-letters list` shows it")]
LATE: Final = 30.0
"""Seconds that the end of a cancelled build may be late."""


def _me() -> str:
    return f"{getpass.getuser()}@{socket.gethostname()}"


@dataclass(frozen=True)
class Why:
    reason: Annotated[str, typer.Option(help="Why; others will read it")]
    by: Annotated[str, typer.Option("--as", help="Who asks; default: you, on this machine")] = ""
    once: Annotated[str, typer.Option("--id", help="Asked twice under one id, it happens once")] = (
        ""
    )

    def act(self, verb: Verb, target: str = "") -> Act:
        actor, reason = clean(self.by or _me(), 200), clean(self.reason, 1_000)
        return Act(self.once or uuid4().hex, verb, actor, reason, target)


@dataclass(frozen=True)
class Waiting:
    wait: Annotated[bool, typer.Option(help="Until it has ended")] = True


async def pause(here: Here, queue: QueueName, why: Why) -> int:
    """Admit nothing more; heads are still ingested, and builds in flight end."""
    return await _by_the_store(here, queue, why.act(Verb.PAUSE))


async def resume(here: Here, queue: QueueName, why: Why) -> int:
    """Admit again, the newest head first of all."""
    return await _by_the_store(here, queue, why.act(Verb.RESUME))


async def retry(here: Here, request: RequestName, why: Why) -> int:
    """Validate an ended request's commit once more, as a new request."""
    parsed = RequestId.parse(request)
    done = await by_the_queue(here, parsed.queue, why.act(Verb.RETRY, str(parsed.number)))
    made = done.detail.partition(":")[0]
    show(here, {"request": made, "audit": done}, made)
    return Exit.GREEN


async def cancel(
    here: Here,
    request: RequestName,
    why: Why,
    how: Waiting,
) -> int:
    """End a request that waits or is built: no verdict, and its slot is free."""
    parsed = RequestId.parse(request)
    done = await by_the_queue(here, parsed.queue, why.act(Verb.CANCEL, str(parsed.number)))
    ended = await _ended(here, parsed, wait=how.wait)
    state = f"{ended.state} ({ended.cause})" if ended.cause else "is being cancelled"
    show(here, {"request": ended, "audit": done}, f"{request} {state}")
    if ended.state is State.CANCELLED or not how.wait:
        return Exit.GREEN
    return Exit.NOT_ALLOWED if ended.cause else Exit.PENDING


@dataclass(frozen=True)
class Ending:
    cancel: Annotated[bool, typer.Option("--cancel", help="End the search instead")] = False


async def bisect(here: Here, request: RequestName, why: Why, how: Ending) -> int:
    """Find the commit that broke a red request, by builds inside its range."""
    parsed = RequestId.parse(request)
    verb = Verb.CANCEL_BISECT if how.cancel else Verb.BISECT
    done = await by_the_queue(here, parsed.queue, why.act(verb, str(parsed.number)))
    show(here, done, f"{done.kind}: {done.detail}; `lastgreen show {request}` says how it goes")
    return Exit.GREEN


async def letters(here: Here, queue: AnyQueue = None) -> int:
    """What waits for a person, newest first."""
    async with reading(here.settings) as reader:
        names = [await known(here, reader, queue)] if queue else await reader.queues()
        found = [(name, letter) for name in names for letter in await reader.dead_letters(name)]
    columns = ("queue", "id", "kind", "cause", "since", "what to do")
    rows = [(name, letter.id, *_shown(letter)) for name, letter in found]
    show_rows(here, [{"queue": name, **_plain(letter)} for name, letter in found], columns, rows)
    return Exit.GREEN


async def show_letter(here: Here, queue: QueueName, letter: LetterId) -> int:
    """One dead letter in full: its stage, its cause, the last error, the attempts, the cure."""
    async with reading(here.settings) as reader:
        name = await known(here, reader, queue)
        found = await reader.dead_letter_of(name, letter)
        attempts = await reader.builds(name, int(found.subject)) if found.is_of_a_request else ()
    state = f"resolved by {found.resolved_by}" if found.resolved_by else "open"
    lines = (
        f"{found.id}  {state}",
        f"stage     {found.kind}",
        f"about     {_subject(name, found)}",
        f"cause     {found.cause}",
        f"since     {when(found.created_at)}",
        *(f"attempt   {b.attempt} {b.status} {b.url or b.id}" for b in attempts),
        f"error     {found.detail}",
        f"to do     {advice(found.kind, found.cause)}",
    )
    show(here, {"queue": name, **_plain(found), "builds": attempts}, "\n".join(lines))
    return Exit.GREEN


async def retry_letter(here: Here, queue: QueueName, letter: LetterId, why: Why) -> int:
    """Try again what it is about."""
    done = await by_the_queue(here, queue, why.act(Verb.RETRY_LETTER, letter))
    show(here, done, f"{done.kind}: {done.detail}")
    return Exit.GREEN


async def drop_letter(here: Here, queue: QueueName, letter: LetterId, why: Why) -> int:
    """Close it without doing anything."""
    return await _by_the_store(here, queue, why.act(Verb.DROP_LETTER, letter))


async def _by_the_store(here: Here, queue: str, act: Act) -> int:
    """Also while Temporal is out: the queue sees it with its next turn."""
    async with reading(here.settings) as reader:
        name = await known(here, reader, queue)
    async with writing(here.settings) as store:
        fence, at = await store.fence(), int(time.time() * 1000)
        done = allowed(await store.act(Stamp(fence, name, at), act, None))
    try:
        await Waker(await client_of(here)).queue(fence, name, "slot_freed")
    except TemporalOut as error:
        say(f"written; the queue is told when Temporal is back: {error}")
    show(here, done, f"{done.kind}: {done.detail}")
    return Exit.GREEN


async def by_the_queue(here: Here, queue: str, act: Act) -> Happening:
    async with reading(here.settings) as reader:
        name, fence = await known(here, reader, queue), await reader.fence()
    return await Asking(await client_of(here), fence).act(name, act)


async def _ended(here: Here, request: RequestId, *, wait: bool) -> Request:
    settings = here.settings.queues().get(request.queue)
    limit = time.monotonic() + settings.cancel_grace + LATE
    async with reading(here.settings) as reader:
        while True:
            found = await reader.request(request.queue, request.number)
            if found.cause or not wait or time.monotonic() > limit:
                return found
            await asyncio.sleep(0.2)


def _shown(letter: DeadLetter) -> tuple[str, ...]:
    return letter.kind, letter.cause, when(letter.created_at), advice(letter.kind, letter.cause)


def _plain(letter: DeadLetter) -> dict[str, object]:
    return {**asdict(letter), "advice": advice(letter.kind, letter.cause)}


def _subject(queue: str, letter: DeadLetter) -> str:
    return str(RequestId(queue, int(letter.subject))) if letter.is_of_a_request else letter.subject
