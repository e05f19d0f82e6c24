"""What every verb has in common: its options, its loop, and how it is told to end."""

from __future__ import annotations

import asyncio
import inspect
import signal
import traceback
from collections.abc import Callable, Coroutine
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from wiring.settings import Settings

Verb = Callable[..., Coroutine[Any, Any, int]]


@dataclass(frozen=True)
class Here:
    data: Annotated[
        Path | None, typer.Option(help="Folder of store, mirrors and logs; default: .lastgreen")
    ] = None
    config: Annotated[
        Path | None, typer.Option(help="File of the queues; default: lastgreen.toml")
    ] = None
    json: Annotated[bool, typer.Option("--json", help="Answer with one JSON document")] = False
    debug: Annotated[bool, typer.Option("--debug", help="Show where an error comes from")] = False

    @property
    def settings(self) -> Settings:
        given = {"data": self.data, "config": self.config}
        return Settings.model_validate(
            Settings().model_dump() | {key: path for key, path in given.items() if path}
        )


def add(app: typer.Typer, verb: Verb, name: str | None = None) -> None:
    """A verb's parameters that are dataclasses become one option for each of their fields."""
    hints = get_type_hints(verb, include_extras=True)
    hints.pop("return")
    groups: dict[str, Any] = {key: kind for key, kind in hints.items() if is_dataclass(kind)}
    flat = [
        inspect.Parameter(key, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)
        for parameter in inspect.signature(verb).parameters.values()
        for key, default, kind in _spread(parameter, hints[parameter.name])
    ]

    def call(**given: Any) -> int:  # noqa: ANN401 - whatever the verb takes
        for group, kind in groups.items():
            given[group] = kind(**{field.name: given.pop(field.name) for field in fields(kind)})
        try:
            return asyncio.run(_until_told(verb(**given)))
        except Exception:
            if given["here"].debug:
                traceback.print_exc()
            raise

    call.__dict__["__signature__"] = inspect.Signature(flat)
    app.command(name or verb.__name__.replace("_", "-"), help=inspect.getdoc(verb))(call)


def _spread(parameter: inspect.Parameter, kind: Any) -> list[tuple[str, Any, Any]]:  # noqa: ANN401 - a type
    if not is_dataclass(kind):
        return [(parameter.name, parameter.default, kind)]
    hints = get_type_hints(kind, include_extras=True)
    return [(field.name, _default_of(field), hints[field.name]) for field in fields(kind)]


def _default_of(field: Field[Any]) -> Any:  # noqa: ANN401 - whatever it is
    return inspect.Parameter.empty if field.default is MISSING else field.default


async def _until_told(work: Coroutine[Any, Any, int]) -> int:
    """SIGTERM ends it as Ctrl-C does, in order."""
    task = asyncio.ensure_future(work)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    return await task
