"""What a person asks: one transaction and one line of the audit each, refused ones included."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Final

import sqlalchemy as sa

from domain.act import Act, Verb
from domain.errors import NotFound, Refused
from domain.request import Origin
from stores import bisecting
from stores import tables as t
from stores.queueing import again
from stores.read import read_letter, the_request
from stores.rows import REFUSED, DeadLetter, Delivering, Happening
from stores.transaction import Tx


async def act(tx: Tx, ask: Act) -> Happening:
    """The line of the audit, which is the answer: asked again under the same id, the same one."""
    subject = await _subject(tx, ask)
    if earlier := await _told(tx, subject, ask):
        return earlier
    try:
        await _DO[ask.verb](tx, ask)
    except Refused as refused:
        await tx.note(subject, REFUSED, f"{ask.verb}: {refused} ({ask.reason})", by=ask)
    if (answer := await _told(tx, subject, ask)) is None:
        raise AssertionError(f"{ask.verb} left no line in the history of {subject}")
    return answer


async def _subject(tx: Tx, ask: Act) -> str:
    """``NotFound`` where there is nothing of that name: then nothing is written."""
    match ask.verb:
        case Verb.RETRY | Verb.CANCEL | Verb.BISECT | Verb.CANCEL_BISECT:
            return str((await the_request(tx.connection, tx.queue, int(ask.target))).number)
        case Verb.RETRY_LETTER | Verb.DROP_LETTER:
            return (await read_letter(tx.connection, tx.queue, ask.target)).subject
        case Verb.REPLAY:
            return await _request_of(tx, ask)
        case _:
            return tx.itself


async def _told(tx: Tx, subject: str, ask: Act) -> Happening | None:
    h = t.history.c
    mine = (h.queue == tx.queue) & (h.subject == subject) & (h.occurrence == ask.id)
    query = sa.select(h.queue, h.subject, h.kind, h.occurrence, h.at, h.detail, h.actor)
    first = query.where(mine, h.actor == ask.actor).order_by(h.seq).limit(1)
    row = (await tx.connection.execute(first)).first()
    return None if row is None else Happening(*row)


async def _pause(tx: Tx, ask: Act) -> None:
    await _set_paused(tx, ask.reason)
    await tx.note(tx.itself, "paused", ask.reason, by=ask)


async def _resume(tx: Tx, ask: Act) -> None:
    await _set_paused(tx, None)
    tx.committed.wake_queue = True
    await tx.note(tx.itself, "resumed", ask.reason, by=ask)


async def _set_paused(tx: Tx, reason: str | None) -> None:
    mine = t.queues.c.name == tx.queue
    await tx.connection.execute(sa.update(t.queues).where(mine).values(paused_reason=reason))


async def _retry(tx: Tx, ask: Act) -> None:
    await again(tx, await the_request(tx.connection, tx.queue, int(ask.target)), Origin.RETRY, ask)


async def _cancel(tx: Tx, ask: Act) -> None:
    request = await the_request(tx.connection, tx.queue, int(ask.target))
    await bisecting.cancel_request(tx, request, ask)


async def _bisect(tx: Tx, ask: Act) -> None:
    await bisecting.start(tx, await the_request(tx.connection, tx.queue, int(ask.target)), ask)


async def _cancel_bisect(tx: Tx, ask: Act) -> None:
    await bisecting.cancel(tx, int(ask.target), ask)


async def _retry_letter(tx: Tx, ask: Act) -> None:
    letter = await _open_letter(tx, ask)
    if letter.kind == "request":
        request = await the_request(tx.connection, tx.queue, int(letter.subject))
        await again(tx, request, Origin.RETRY, ask)
        return
    await tx.note(letter.subject, "retried", f"{letter.id}: {ask.reason}", by=ask)
    tx.committed.wake_queue = True
    if letter.kind == "record":
        return  # owed all the time, and closed in the transaction that writes the fact
    if letter.kind == "promotion":
        await _record_again(tx, int(letter.subject))
    if letter.kind == "hook":
        await _deliver_again(tx, letter)
    await tx.resolve(letter.kind, letter.subject, ask)


async def _record_again(tx: Tx, number: int) -> None:
    """Owed once more: facts and event are there, so only the ref is left to move."""
    r = t.requests.c
    mine = (r.queue == tx.queue) & (r.number == number)
    await tx.connection.execute(sa.update(t.requests).where(mine).values(recorded_at=None))


async def _deliver_again(tx: Tx, letter: DeadLetter) -> None:
    mine = _deliveries(tx, letter.subject) & (t.hook_deliveries.c.state == Delivering.DEAD)
    await _pending_again(tx, mine)


async def _replay(tx: Tx, ask: Act) -> None:
    """Delivered or dead: once more, under the same id."""
    mine = _deliveries(tx, ask.target) & (t.hook_deliveries.c.state != Delivering.PENDING)
    sinks = await _pending_again(tx, mine)
    if not sinks:
        raise Refused(f"{ask.target} is being delivered already")
    event = ask.target.partition(" to ")[0]
    for sink in sinks:
        await tx.resolve("hook", f"{event} to {sink}", ask)
    detail = f"{event} to {', '.join(sinks)}: {ask.reason}"
    await tx.note(await _request_of(tx, ask), "replayed", detail, by=ask)


def _deliveries(tx: Tx, target: str) -> sa.ColumnElement[bool]:
    """Of an event, to one sink if one is named: ``<event> to <sink>``."""
    event, _, sink = target.partition(" to ")
    d = t.hook_deliveries.c
    mine = (d.queue == tx.queue) & (d.event_id == event)
    return mine & (d.sink == sink) if sink else mine


async def _request_of(tx: Tx, ask: Act) -> str:
    query = sa.select(t.hook_deliveries.c.request).where(_deliveries(tx, ask.target)).limit(1)
    number = (await tx.connection.execute(query)).scalar()
    if number is None:
        raise NotFound(f"queue {tx.queue} has told nobody of {ask.target}")
    return str(number)


async def _pending_again(tx: Tx, mine: sa.ColumnElement[bool]) -> list[str]:
    """To which sinks."""
    d = t.hook_deliveries.c
    again = sa.update(t.hook_deliveries).where(mine)
    values = {"state": Delivering.PENDING, "ended_at": None}
    rows = (await tx.connection.execute(again.values(values).returning(d.request, d.sink))).all()
    tx.committed.wake_hooks.update(row.request for row in rows)
    return sorted(row.sink for row in rows)


async def _drop_letter(tx: Tx, ask: Act) -> None:
    letter = await _open_letter(tx, ask)
    await tx.resolve(letter.kind, letter.subject, ask)


async def _open_letter(tx: Tx, ask: Act) -> DeadLetter:
    letter = await read_letter(tx.connection, tx.queue, ask.target)
    if letter.resolved_at is not None:
        raise Refused(f"dead letter {letter.id} was resolved by {letter.resolved_by}")
    return letter


_DO: Final[Mapping[Verb, Callable[[Tx, Act], Awaitable[None]]]] = {
    Verb.PAUSE: _pause,
    Verb.RESUME: _resume,
    Verb.RETRY: _retry,
    Verb.CANCEL: _cancel,
    Verb.BISECT: _bisect,
    Verb.CANCEL_BISECT: _cancel_bisect,
    Verb.RETRY_LETTER: _retry_letter,
    Verb.DROP_LETTER: _drop_letter,
    Verb.REPLAY: _replay,
}
