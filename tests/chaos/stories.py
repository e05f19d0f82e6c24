"""What a queue lives through while its worker dies, and the end that it must come to."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from temporalio.client import Client

from domain.act import Act, Verb
from domain.request import State
from tests.chaos.checker import check
from tests.chaos.evidence import Evidence
from tests.chaos.gate import Plan, Point
from tests.chaos.world import World, a_world

Plot = Callable[[World], Awaitable[None]]
OnDeath = Callable[[World], Awaitable[Act | None]]
PERIODIC: Final = frozenset({"remotes.refs"})
"""As often as the clock has it: once is enough."""


@dataclass(frozen=True)
class Story:
    """``claims``: the scenarios that killing at these effects proves."""

    plot: Plot
    claims: Mapping[str, tuple[str, ...]]
    prelude: Plot | None = None
    settings: Mapping[str, Any] = field(default_factory=dict[str, Any])
    refused: frozenset[int] = frozenset()
    again_ms: int = 600_000

    @property
    def claimed(self) -> frozenset[str]:
        return frozenset(name for names in self.claims.values() for name in names)


@dataclass(frozen=True)
class Told:
    """How a run ended, and what it passed on the way."""

    end: Mapping[str, Any]
    points: tuple[Point, ...]
    deaths: int
    at_death: tuple[Any, ...]


async def validate(w: World, uri: str, status: str = "succeeded") -> None:
    if uri not in w.source.parents:
        w.source.land(uri)
        await w.poke()
    await w.until(lambda: w.runs(uri), f"a build of {uri}")
    await w.runner.finish(uri, status)


async def green(w: World) -> None:
    w.source.land("A")
    await validate(w, "A")


async def flake(w: World) -> None:
    """The failure is confirmed by a second build, which succeeds."""
    w.source.land("A")
    await validate(w, "A", "failed")

    async def again() -> bool:
        builds = await w.store.builds(w.queue, 1)
        return len(builds) == 2 and builds[-1].status == "running"

    await w.until(again, "the confirming build")
    await w.runner.finish("A", "succeeded")


async def backlog(w: World) -> None:
    """Three heads land while one builds: only the newest of them is built."""
    w.source.land("A")
    await w.until(lambda: w.runs("A"), "a build of A")
    for uri in "BCD":
        w.source.land(uri)
        await w.poke()
        await w.until(lambda uri=uri: w.has(uri, State.ACCEPTED), uri)  # type: ignore[misc]
    await w.runner.finish("A", "succeeded")
    await validate(w, "D")


async def asked_twice(w: World, verb: Verb, target: int | str = "") -> None:
    """The caller, who had no answer, asks again: it happened once, and is answered alike."""
    first = await w.ask(verb, target, once=verb)
    assert await w.ask(verb, target, once=verb) == first


async def cancel(w: World) -> None:
    w.source.land("A")
    await w.until(lambda: w.runs("A"), "a build of A")
    await asked_twice(w, Verb.CANCEL, 1)
    await w.until(lambda: w.has("A", State.CANCELLED), "its end")


async def refused(w: World) -> None:
    w.source.land("A")
    await w.until(lambda: w.has("A", State.FAILED), "its end")


async def again(w: World) -> None:
    await refused(w)
    await validate(w, "A")


async def two_greens(w: World) -> None:
    for uri in "AB":
        await validate(w, uri)
        await w.until(w.is_quiet, uri)


async def rewind(w: World) -> None:
    """Back to a commit that is known to be green: no build, only a record."""
    w.source.rewrite("A")

    async def adopted() -> bool:
        latest = (await w.store.queue(w.queue)).latest
        return latest is not None and latest.number == 3

    await w.until(adopted, "the adoption")


async def pause(w: World) -> None:
    await asked_twice(w, Verb.PAUSE)
    w.source.land("A")
    await w.poke()
    await w.until(lambda: w.has("A", State.ACCEPTED), "A")
    await asked_twice(w, Verb.RESUME)
    await validate(w, "A")


async def red(w: World) -> None:
    w.source.land("A")
    await validate(w, "A", "failed")
    await w.until(w.is_quiet, "red")


async def retry(w: World) -> None:
    await asked_twice(w, Verb.RETRY, 1)
    await validate(w, "A")


STORIES: Final[Mapping[str, Story]] = {
    "green": Story(
        green,
        {
            "V322": ("store.ingest",),
            "V325": ("store.turn",),
            "V326": ("child BuildWorkflow",),
            "V327": ("start HookWorkflow wake",),
            "V328": ("runner.trigger 1",),
            "V329": ("store.build_row",),
            "V330": ("store.observe running",),
            "V332": ("store.observe succeeded",),
            "V334": ("store.facts",),
            "V336": ("source.promote",),
            "V337": ("store.announce",),
            "V338": ("sink.deliver",),
            "V339": ("store.delivered",),
            "V343": ("start QueueWorkflow head_moved of the watch",),
        },
    ),
    "backlog": Story(
        backlog, {"V323": ("store.ingest",), "V333": ("start QueueWorkflow slot_freed",)}
    ),
    "flake": Story(flake, {"V331": ("runner.trigger 2",)}, settings={"confirm_failures": 1}),
    "cancel": Story(
        cancel,
        {"V341": ("runner.cancel",), "V342": ("store.act cancel",), "V401": ("store.act cancel",)},
    ),
    "refused": Story(refused, {"V340": ("store.fail trigger_failed",)}, refused=frozenset({1})),
    "again": Story(again, {"V402": ("store.turn",)}, refused=frozenset({1}), again_ms=300),
    "rewind": Story(
        rewind, {"V324": ("child BuildWorkflow", "child RecordWorkflow")}, prelude=two_greens
    ),
    "pause": Story(pause, {"V342": ("store.act pause", "store.act resume")}),
    "retry": Story(retry, {"V342": ("store.act retry",)}, prelude=red),
}


def end_of(e: Evidence) -> dict[str, Any]:
    """All that must be the same, whatever died on the way."""
    own = ("number", "order", "uri", "origin", "state", "cause", "strategy", "base_uri")
    letters = [d for d in e.rows["dead_letters"] if d["resolved_at"] is None]
    return {
        "requests": sorted([r[name] for name in own] for r in e.requests),
        "facts": sorted((f["uri"], f["request"], f["degree"]) for f in e.rows["facts"]),
        "ref": e.ref,
        "events": sorted({(event.type, event.request) for h in e.heard.values() for event in h}),
        "builds": sorted((ran.key.partition(e.queue)[2], ran.uri, ran.status) for ran in e.ran),
        "dead letters": sorted((d["kind"], d["subject"], d["cause"]) for d in letters),
    }


async def tell(
    client: Client, url: str, story: Story, plan: Plan | None, on_death: OnDeath | None = None
) -> Told:
    """One run: whatever the plan does on the way, everything is proven at its end."""
    async with a_world(client, url, **story.settings) as w:
        w.runner.refused, w.again_ms, w.on_death = story.refused, story.again_ms, on_death
        w.patience += 2 * plan.store_out if plan else 0  # starting many of them takes long, too
        if story.prelude is not None:
            w.start()
            await story.prelude(w)
            await w.kill()
            (w.folder / "effects").unlink()
        w.start(plan)
        await story.plot(w)
        await w.until(w.is_quiet, "the end")
        if plan is not None and not plan.store_out:
            await _given_time(w)
        evidence = await w.evidence()
        check(evidence)
        return Told(end_of(evidence), tuple(w.passed()), w.deaths, tuple(w.at_death))


async def _given_time(w: World) -> None:
    """The last effects come after all that a reader of the store can wait for."""
    for _ in range(20):
        if w.deaths:
            break
        await asyncio.sleep(0.05)
        await w.look_after()
    await w.until(w.is_quiet, "the end, after the last death")
