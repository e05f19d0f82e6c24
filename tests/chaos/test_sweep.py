"""A worker is killed before and after each effect of a story: the end is as if it never died."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pytest
from temporalio.client import Client

from domain.act import Act, Verb
from domain.request import State
from tests.chaos.evidence import Row
from tests.chaos.gate import Plan, Point
from tests.chaos.stories import PERIODIC, STORIES, OnDeath, Story, Told, tell
from tests.chaos.world import World
from tests.databases import KINDS, database

WHOLE: Final = os.environ.get("CHAOS") == "whole"
OUT: Final = 600.0 if WHOLE else 3.0
"""Seconds; even the short one outlasts the first tries of every step."""
pytestmark = pytest.mark.timeout(3600 if WHOLE else 900)
AT_ONCE: Final = int(os.environ.get("CHAOS_AT_ONCE", "4"))


@dataclass
class Swept:
    story: Story
    reference: Told
    runs: dict[Point, Told] = field(default_factory=dict[Point, Told])

    def killed(self, name: str, phase: str) -> list[Told]:
        mine = [p for p in self.runs if (p.name, p.phase) == (name, phase)]
        return [self.runs[point] for point in mine if self.runs[point].deaths]

    def must_end_alike(self) -> None:
        for point, told in self.runs.items():
            assert told.end == self.reference.end, f"at {point}"

    def must_hold(self) -> None:
        self.must_end_alike()
        for name in self.story.claimed:
            for phase in ("before", "after"):
                assert self.killed(name, phase), f"nothing died {phase} {name}"


async def sweep(
    client: Client,
    url: str,
    story: Story,
    points: Sequence[Point] | None = None,
    *,
    store_out: float = 0,
    on_death: OnDeath | None = None,
    is_thin: bool = False,
) -> Swept:
    """``is_thin``: after the first effect of each name only, unless the whole is asked for."""
    swept = Swept(story, await tell(client, url, story, None))
    if points is None:
        points = [p for p in swept.reference.points if p.name not in PERIODIC or p.nth == 1]
        if is_thin and not WHOLE:
            points = [p for p in points if (p.nth, p.phase) == (1, "after")]
        points = [p for p in points if WHOLE or story is STORIES["green"] or _is_claimed(story, p)]
    places = asyncio.Semaphore(len(points) if store_out else AT_ONCE)  # most of it is waiting

    async def run(point: Point) -> None:
        async with places:
            plan = Plan(point, store_out)
            swept.runs[point] = await tell(client, url, story, plan, on_death)

    # Not a task group: one failure leaves the others to be told, too.
    ended = await asyncio.gather(*map(run, points), return_exceptions=True)
    _print(swept)
    for point, error in zip(points, ended, strict=True):
        if error is not None:
            raise AssertionError(f"{error!r} when killed {point}") from error
    return swept


def _is_claimed(story: Story, point: Point) -> bool:
    return point.name in story.claimed


def _print(swept: Swept) -> None:
    (name,) = [name for name, story in STORIES.items() if story is swept.story]
    deaths = sum(told.deaths for told in swept.runs.values())
    points = len(swept.reference.points)
    print(f"{name}: {points} points, {len(swept.runs)} runs, {deaths} deaths")  # noqa: T201  # -s


@pytest.mark.spec(
    "V322", "V325", "V326", "V327", "V328", "V329", "V330", "V332", "V334", "V336", "V337",
    "V338", "V339", "V343", "V344",
)  # fmt: skip
@pytest.mark.parametrize("kind", KINDS)
async def test_a_green_validation_survives_a_death_at_every_step(
    client: Client, tmp_path: Path, kind: str
) -> None:
    async with database(kind, tmp_path) as url:
        swept = await sweep(client, url if kind == "postgresql" else "", STORIES["green"])
    swept.must_hold()
    turns = [t for phase in ("before", "after") for t in swept.killed("store.turn", phase)]
    seen = {_admission(rows["requests"], rows["builds"]) for t in turns for rows in t.at_death}
    assert seen >= {"waits", "holds a slot, and has no build"}


def _admission(requests: Sequence[Row], builds: Sequence[Row]) -> str:
    if not requests:
        return "none"
    if requests[0]["state"] == State.ACCEPTED:
        return "waits"
    return "has a build" if builds else "holds a slot, and has no build"


@pytest.mark.spec("V323", "V333")
async def test_a_new_head_never_stands_beside_older_ones_that_wait(client: Client) -> None:
    swept = await sweep(client, "", STORIES["backlog"])
    swept.must_hold()
    for told in swept.runs.values():
        for rows in told.at_death:
            assert len([r for r in rows["requests"] if r["state"] == State.ACCEPTED]) <= 1


@pytest.mark.spec("V402")
async def test_the_automatic_retry_is_made_once(client: Client) -> None:
    swept = await sweep(client, "", STORIES["again"])
    swept.must_hold()
    seen: dict[str, set[Any]] = {"before": set(), "after": set()}
    for point, told in swept.runs.items():
        for rows in told.at_death if point.name == "store.turn" else ():
            if rows["requests"] and rows["requests"][0]["state"] == State.FAILED:
                seen[point.phase].add((len(rows["requests"]), len(rows["builds"])))
    assert (1, 0) in seen["before"]
    assert (2, 0) in seen["after"]


@pytest.mark.spec("V324", "V331", "V340", "V341", "V342", "V401")
@pytest.mark.parametrize("name", ["flake", "cancel", "refused", "rewind", "pause", "retry"])
async def test_the_end_is_the_same_whatever_dies_on_the_way(client: Client, name: str) -> None:
    (await sweep(client, "", STORIES[name])).must_hold()


async def _namespace_too(w: World) -> Act:
    await w.lose_namespace()
    return Act(f"recover-{w.deaths}", Verb.RECOVER, "ada", "the namespace is gone")


@pytest.mark.spec("V345")
async def test_recover_comes_to_the_same_end_wherever_the_namespace_was_lost(
    client: Client,
) -> None:
    swept = await sweep(client, "", STORIES["green"], on_death=_namespace_too, is_thin=True)
    swept.must_end_alike()
    assert any(told.deaths for told in swept.runs.values())


@pytest.mark.spec("V346")
async def test_an_outage_of_the_store_at_any_step_only_delays_the_end(client: Client) -> None:
    """Three seconds after the first effect of each name; ten minutes at all where it is whole."""
    swept = await sweep(client, "", STORIES["green"], store_out=OUT, is_thin=True)
    swept.must_end_alike()
    assert not any(told.deaths for told in swept.runs.values())
