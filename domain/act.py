"""What a person asks of a queue."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from domain.errors import Malformed

MAX_REASON: Final = 1_000
MAX_ACTOR: Final = 200
ITSELF: Final = "lastgreen"
"""Who signs what the queue does in a person's place."""


class Verb(StrEnum):
    PAUSE = "pause"
    RESUME = "resume"
    RETRY = "retry"
    CANCEL = "cancel"
    RETRY_LETTER = "retry_letter"
    DROP_LETTER = "drop_letter"
    BISECT = "bisect"
    CANCEL_BISECT = "cancel_bisect"
    REPLAY = "replay"
    RECOVER = "recover"
    RESTORE = "restore"


@dataclass(frozen=True, slots=True)
class Act:
    """Sent twice under one ``id``, it happens once and is answered alike.

    ``target`` is a request's number, a dead letter's id, or an event's id (``<id> to <sink>``
    where only one is meant); of all others empty.
    """

    id: str
    verb: Verb
    actor: str
    reason: str
    target: str = ""

    def __post_init__(self) -> None:
        if not self.reason.strip():
            raise Malformed(f"{self.verb} needs a reason: others will read it")
        for name, text, most in (
            ("reason", self.reason, MAX_REASON),
            ("actor", self.actor, MAX_ACTOR),
        ):
            if len(text) > most:
                raise Malformed(f"{name}: {len(text)} characters, at most {most}")
        if not (self.id and self.actor):
            raise Malformed("an action needs an id and who asks for it")
