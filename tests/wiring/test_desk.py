"""What a sink is told when it asks: the truth of now."""

from __future__ import annotations

from pathlib import Path

from temporalio.client import Client

from domain.event import EventType, HookEvent
from tests.trunk import Trunk, running_trunk
from wiring.desk import LINES, StoreDesk, _failing


def desk_of(trunk: Trunk) -> StoreDesk:
    return StoreDesk(trunk.store, trunk.config, lambda _: trunk.source)


def event_of(trunk: Trunk, number: int) -> HookEvent:
    return HookEvent(trunk.fence.installation, EventType.RECORDED, trunk.queue, number, 1)


async def test_it_tells_of_the_commits_since_the_last_green_and_how_to_see_it(
    client: Client, tmp_path: Path
) -> None:
    async with running_trunk(client, tmp_path, command=("make", "all tests")) as trunk:
        await trunk.report("A")
        await trunk.succeeds("A")
        trunk.source.land("B")
        await trunk.report("C")
        await trunk.fails("C")
        about = await desk_of(trunk).about(event_of(trunk, 2))
        assert (about.state, about.cause, about.uri) == ("failed", "build_failed", "C")
        assert (about.verdict, about.covered) == ("broken", ("B",))
        assert [commit.uri for commit in about.commits] == ["C", "B"]
        assert all(commit.author and commit.title for commit in about.commits)
        assert about.command == "make 'all tests'"


def test_the_log_is_told_from_where_it_begins_to_fail(tmp_path: Path) -> None:
    log = tmp_path / "1.log"
    log.write_text("".join(f"ok {n}\n" for n in range(50)) + "E: error: no such file\nmore\n")
    assert _failing(log) == ("E: error: no such file", "more")
    log.write_text("".join(f"ok {n}\n" for n in range(50)))
    assert _failing(log) == tuple(f"ok {n}" for n in range(50 - LINES, 50))
    assert _failing(tmp_path / "elsewhere.log") == ()
