"""What one idle queue costs on this machine, how soon it acts, and how soon a store of 100,000
commits answers (``make bench``, 3 minutes).

Exits with 1 when a head costs more events than it may. Times depend on the machine, so one that is
over its budget is only marked.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median, quantiles
from typing import Final

import structlog
from rich.console import Console
from rich.table import Table

from benchmarks import reading
from benchmarks.floor import Floor, floor
from benchmarks.real import PATIENCE, QUEUE, Real, real_trunk
from stores.rows import Request
from workflows import ids

HEADS: Final = 1_000
REPETITIONS: Final = 16
EVENTS_SUPERSEDED: Final = 0.2
EVENTS_VALIDATED: Final = 75
TIMES_FLOOR: Final = 3.0
BUILD_SECONDS: Final = 1.0


@dataclass
class Measured:
    superseded: Counter[str] = field(default_factory=Counter)
    """Events of the whole burst."""
    looks: int = 0
    burst_seconds: float = 0.0
    validated: list[Counter[str]] = field(default_factory=list)
    to_start: list[float] = field(default_factory=list)
    to_next: list[float] = field(default_factory=list)
    floor: list[float] = field(default_factory=list)


class Stamps:
    """Written by the command: ``start|end <commit> <ns since 1970>`` a line."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def command(self) -> str:
        """It ends when a file of its commit's name is there."""
        say = f'echo "$1 $LASTGREEN_COMMIT $(date +%s%N)" >> {self._path}'
        gate = f"while [ ! -e {self._path}.$LASTGREEN_COMMIT ]; do sleep 0.05; done"
        return f"say() {{ {say}; }}; say start; {gate}; say end"

    def let_end(self, commit: str) -> None:
        self._path.with_name(f"{self._path.name}.{commit}").touch()

    async def at(self, what: str, commit: str) -> float:
        """Seconds since 1970."""
        limit = time.monotonic() + PATIENCE
        while time.monotonic() < limit:
            for line in self._path.read_text().splitlines() if self._path.exists() else ():
                if line.startswith(f"{what} {commit} "):
                    return int(line.split()[2]) / 1e9
            await asyncio.sleep(0.01)
        raise TimeoutError(f"no {what} of {commit}")


async def events_of(real: Real, request: Request) -> Counter[str]:
    """Of all its workflows but the queue's; the command runner's own apart."""
    number = request.number
    (build,) = await real.parts.store.builds(QUEUE, number)
    found = {
        "build": ids.build(QUEUE, number),
        "buildsignal": ids.buildsignal(QUEUE, number, build.attempt),
        "record": ids.record(QUEUE, number),
        "hook": ids.hooks(QUEUE, number),
        "command": build.id,
    }
    return Counter({kind: await real.events(workflow_id) for kind, workflow_id in found.items()})


async def quiet(real: Real) -> int:
    """Events of the queue once it has nothing to do."""
    seen = -1
    while (now := await real.events(ids.queue(QUEUE))) != seen:
        seen = now
        await asyncio.sleep(0.3)
    return seen


async def idle_head(real: Real, stamps: Stamps, measured: Measured) -> None:
    """One head on an idle queue, found by the watch."""
    before = await quiet(real)
    (commit,) = real.repository.write(1)
    real.repository.land(commit)
    await real.parts.waker.head_moved(real.fence, QUEUE)
    await stamps.at("start", commit)
    await asyncio.sleep(0.5)
    stamps.let_end(commit)
    request = await real.recorded(commit)
    events = Counter({"queue": await quiet(real) - before})
    measured.validated.append(events + await events_of(real, request))


async def pair(real: Real, stamps: Stamps, least: Floor, measured: Measured) -> None:
    """One head on an idle queue, and one that waits for it to end."""
    await quiet(real)
    measured.floor.append(await least.measure())
    first, second = real.repository.write(2)
    real.repository.land(first)
    began = time.time()
    report = await real.report()
    assert report.request, report
    measured.to_start.append(await stamps.at("start", first) - began)
    real.repository.land(second)
    report = await real.report()
    assert report.request, report
    await asyncio.sleep(BUILD_SECONDS)
    stamps.let_end(second)
    stamps.let_end(first)
    ended = await stamps.at("end", first)
    measured.to_next.append(await stamps.at("start", second) - ended)
    await real.recorded(second)


async def burst(real: Real, stamps: Stamps, measured: Measured) -> None:
    """Heads land as fast as git moves a ref, each followed by a poke, while a build runs."""
    running, *heads = real.repository.write(HEADS + 1)
    real.repository.land(running)
    await real.report()
    await stamps.at("start", running)
    before = await quiet(real)
    number = (await real.parts.store.attempts(QUEUE, running))[0].number
    began = time.monotonic()
    with real.repository.moving() as move:
        for head in heads:
            move(head)
            _ = real.parts.waker.head_moved(real.fence, QUEUE)
            await asyncio.sleep(0)
    await real.report()
    measured.burst_seconds = time.monotonic() - began
    measured.superseded["queue"] = await quiet(real) - before
    (newest,) = await real.parts.store.attempts(QUEUE, heads[-1])
    measured.looks = newest.number - number
    for head in (running, heads[-1]):
        stamps.let_end(head)
    await real.recorded(heads[-1])
    admitted = [r.uri for r in await real.parts.store.requests(QUEUE, limit=HEADS) if r.admitted_at]
    assert admitted[:2] == [heads[-1], running], "the newest head alone is built next"


async def measure(folder: Path) -> Measured:
    measured = Measured()
    stamps = Stamps(folder / "stamps")
    async with real_trunk(folder, stamps.command()) as real, floor(real.client) as least:
        first = await real.land()
        stamps.let_end(first)
        await real.recorded(first)
        for _ in range(3):
            await least.measure()
            await idle_head(real, stamps, measured)
        for _ in range(REPETITIONS):
            await pair(real, stamps, least, measured)
        await burst(real, stamps, measured)
    return measured


def verdict(within: bool) -> str:
    return "[green]within[/green]" if within else "[bold red]OVER BUDGET[/bold red]"


def events_table(measured: Measured) -> tuple[Table, bool]:
    kinds = list(dict.fromkeys(kind for head in measured.validated for kind in head))
    each = {kind: median(head[kind] for head in measured.validated) for kind in kinds}
    ours = sum(count for kind, count in each.items() if kind != "command")
    superseded = measured.superseded["queue"] / HEADS
    table = Table("events per head", "measured", "budget", "", title="History")
    for kind, count in each.items():
        note = "the runner's own, apart" if kind == "command" else ""
        table.add_row(f"validated: {kind}", f"{count:g}", "", note)
    is_cheap = ours <= EVENTS_VALIDATED
    table.add_row("validated: all", f"{ours:g}", f"{EVENTS_VALIDATED}", verdict(is_cheap))
    is_free = superseded <= EVENTS_SUPERSEDED
    table.add_section()
    table.add_row(
        f"superseded: queue, {HEADS} heads in {measured.burst_seconds:.1f} s",
        f"{superseded:.3f}",
        f"{EVENTS_SUPERSEDED}",
        verdict(is_free),
    )
    table.add_row("superseded: looks of that burst", f"{measured.looks}", "", "")
    return table, is_cheap and is_free


def times_table(measured: Measured) -> Table:
    least = median(measured.floor)
    table = Table("ms", "median", "p95", "from", "to", "x floor", "budget", "", title="Latency")

    def row(name: str, times: Sequence[float], budget: float | None) -> None:
        ratio = median(times) / least
        p95 = quantiles(times, n=20, method="inclusive")[-1]
        shown = [f"{1000 * time:.0f}" for time in (median(times), p95, min(times), max(times))]
        judged = verdict(ratio <= budget) if budget else ""
        table.add_row(name, *shown, f"{ratio:.2f}", f"{budget:g}" if budget else "", judged)

    row("floor: workflow, child, activity", measured.floor, None)
    row("report -> command started", measured.to_start, TIMES_FLOOR)
    row("command ended -> next command started", measured.to_next, TIMES_FLOOR)
    table.caption = f"{len(measured.to_start)} repetitions"
    return table


def main() -> int:
    argparse.ArgumentParser(description=__doc__).parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    with tempfile.TemporaryDirectory() as folder:
        read = asyncio.run(reading.measure(Path(folder)))
        measured = asyncio.run(measure(Path(folder)))
    events, is_within = events_table(measured)
    console = Console()
    console.print(events, times_table(measured), reading.table(read, verdict), sep="\n")
    return 0 if is_within else 1


if __name__ == "__main__":
    sys.exit(main())
