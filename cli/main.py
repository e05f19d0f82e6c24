"""The command `lastgreen`, and what its exit codes mean."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

import typer
from typer.exceptions import Abort, TyperException

from cli.verb import Verb, add
from cli.verbs import act, ask, care, demo, green, hooks, people, up
from domain.errors import (
    Fenced,
    Malformed,
    Misconfigured,
    NotFound,
    Refused,
    SinkOut,
    SourceControlOut,
    StoreOut,
    WrongInstallation,
)
from domain.fact import Exit
from wiring.temporal import TemporalOut

CODES: Final[tuple[tuple[type[BaseException], int], ...]] = (
    (Malformed, Exit.USAGE),
    (NotFound, Exit.USAGE),
    (Misconfigured, Exit.USAGE),
    (Refused, Exit.NOT_ALLOWED),
    (WrongInstallation, Exit.NOT_ALLOWED),
    (Fenced, Exit.NOT_ALLOWED),
    (TemporalOut, Exit.UNREACHABLE),
    (StoreOut, Exit.UNREACHABLE),
    (SourceControlOut, Exit.UNREACHABLE),
    (SinkOut, Exit.UNREACHABLE),
    (KeyboardInterrupt, 130),
    (asyncio.CancelledError, 143),
    (Abort, 130),
)

PIPE_CLOSED: Final = 141

app = typer.Typer(
    help="At which commit is this trunk green?",
    epilog="Exit codes: 0 green or done, 1 broken, 2 usage, 3 unknown, 4 not allowed, 8 pending, "
    "69 store or Temporal unreachable, 70 internal error.",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
)
db = typer.Typer(help="The store's schema.", no_args_is_help=True)
told = typer.Typer(help="Who is told of what.", no_args_is_help=True)
letters = typer.Typer(help="What waits for a person.", no_args_is_help=True)
VERBS: Final[tuple[Verb, ...]] = (
    *(up.up, demo.demo, act.worker, act.check, act.report),
    *(people.pause, people.resume, people.retry, people.cancel, people.bisect),
    *(care.doctor, care.recover, care.restore, care.explain, ask.audit),
    *(
        ask.queues,
        ask.status,
        ask.requests,
        ask.show_request,
        green.last_green,
        green.is_green,
        green.covers,
    ),
)
NAMED: Final = {ask.show_request: "show"}
for verb in VERBS:
    add(app, verb, NAMED.get(verb))
add(db, act.upgrade)
app.add_typer(db, name="db")
for verb, name in (
    (people.letters, "list"),
    (people.show_letter, "show"),
    (people.retry_letter, "retry"),
    (people.drop_letter, "drop"),
):
    add(letters, verb, name)
app.add_typer(letters, name="dead-letters")
for verb, name in ((hooks.deliveries, "list"), (hooks.replay, "replay"), (hooks.test, "test")):
    add(told, verb, name)
app.add_typer(told, name="hooks")


def run(arguments: Sequence[str]) -> int:
    """The exit code: an internal error is 70, and never 1."""
    try:
        return int(app(list(arguments), prog_name="lastgreen", standalone_mode=False) or 0)
    except TyperException as error:
        return _say(error.format_message() or "see --help", error.exit_code)
    except SystemExit:
        return PIPE_CLOSED  # how typer ends when nobody reads on; its own code would say "broken"
    except BaseException as error:  # noqa: BLE001 - the last place that can say what happened
        for kind, code in CODES:
            if isinstance(error, kind):
                return _say(str(error), code)
        text = f"internal error: {type(error).__name__}: {error} (--debug shows where)"
        return _say(text, Exit.INTERNAL)


def main() -> None:
    code = run(sys.argv[1:])
    for stream in (sys.stdout, sys.stderr):
        with suppress(BrokenPipeError):
            stream.flush()
    # Not sys.exit: after a refused connection Temporal's threads can crash an ending interpreter.
    os._exit(code)


def _say(text: str, code: int) -> int:
    if text:
        print(f"lastgreen: {text}", file=sys.stderr)
    return code


if __name__ == "__main__":
    main()
