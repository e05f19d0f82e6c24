"""For whoever is called at night: what disagrees, and how everything is started anew."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Annotated

import typer

from cli.output import say, short, show, show_rows
from cli.verb import Here
from cli.verbs.act import client_of
from cli.verbs.ask import QueueName, configured_queues, known
from cli.verbs.people import Why
from domain.act import Verb
from domain.fact import Exit
from domain.identity import commit_uri
from wiring.doctor import Doctor
from wiring.embedded import opened
from wiring.explaining import explain as explained
from wiring.recover import recover as start_anew
from wiring.settings import reading

Commit = Annotated[str | None, typer.Argument(metavar="[COMMIT]", help="Its full hash")]


@dataclass(frozen=True)
class Cure:
    fix: Annotated[bool, typer.Option("--fix", help="Apply the cures, which do no harm")] = False


async def doctor(here: Here, cure: Cure) -> int:
    """Compare states, what is owed and what runs; exit code 1 when something disagrees."""
    client = await client_of(here)
    async with opened(here.settings, client) as parts:
        ward = Doctor(client, parts, await parts.store.fence(), int(time.time() * 1000))
        found = await ward.findings()
        wrong = [finding for finding in found if not finding.is_note]
        if cure.fix and wrong:
            await ward.fix()
            say("cured what can be; this is what was found")
    rows = [(finding.queue, finding.what, finding.cure) for finding in found]
    show_rows(here, found, ("queue", "what", "cure"), rows)
    say(f"{len(wrong)} disagreements" if wrong else "all agrees")
    return Exit.BROKEN if wrong and not cure.fix else Exit.GREEN


async def explain(here: Here, queue: QueueName, commit: Commit = None) -> int:
    """Why a queue stands as it does, or what is known of a commit: every condition, in words."""
    async with reading(here.settings) as reader:
        name = await known(here, reader, queue)
        own, uri = configured_queues(here).get(name), commit_uri(commit) if commit else None
        found = await explained(reader, own, lambda: client_of(here), queue=name, uri=uri)
    show(here, found, "\n".join(short(line.sentence) for line in found.lines))
    return Exit.GREEN


async def recover(here: Here, why: Why) -> int:
    """After Temporal's namespace was lost: start everything from the store. Safe to repeat."""
    return await _start_anew(here, why, Verb.RECOVER)


async def restore(here: Here, why: Why) -> int:
    """After an older copy of the store was put in place: recover, with numbers never used."""
    return await _start_anew(here, why, Verb.RESTORE)


async def _start_anew(here: Here, why: Why, verb: Verb) -> int:
    client = await client_of(here)
    async with opened(here.settings, client) as parts:
        done = await start_anew(client, parts, why.act(verb), int(time.time() * 1000))
    text = f"epoch {done.epoch}: {len(done.terminated)} terminated, {len(done.started)} started"
    show(here, done, text)
    return Exit.GREEN
