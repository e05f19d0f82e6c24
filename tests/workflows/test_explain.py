"""Nothing stands still without saying why: the store's part, the workflows', and both together."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import pytest
import pytest_asyncio
import sqlalchemy as sa
from temporalio.client import Client

from domain import gate
from domain.act import Verb
from domain.errors import NoSuchBuild, ProjectsOut, Refused, RefusedForNow, RunnerOut
from domain.errors import SourceControlOut as Out
from domain.explain import Line
from domain.gate import clock, due_again
from domain.request import State
from stores import tables
from stores.engine import begin
from tests.trunk import Trunk, running_trunk
from wiring import explaining
from wiring.explaining import explain
from wiring.temporal import connect
from workflows import ids

MINUTES = 60_000
SECRET = "s3cret"  # noqa: S105 - what must not be seen


class Running(Protocol):
    def __call__(self, **settings: Any) -> AbstractAsyncContextManager[Trunk]: ...


@pytest.fixture
def running(client: Client, tmp_path: Path) -> Running:
    return partial(running_trunk, client, tmp_path)


@pytest_asyncio.fixture
async def two(running: Running) -> AsyncIterator[Trunk]:
    async with running(max_concurrent=2) as trunk:
        yield trunk


def request(trunk: Trunk, number: int) -> str:
    return f"request/{trunk.queue}/{number}"


async def explained(trunk: Trunk, uri: str | None = None) -> list[Line]:
    """Whatever else is told: of a queue, every request that has not ended, and since when."""
    lines = await trunk.explain(uri)
    if uri is None:
        state = await trunk.state()
        told = {line.request for line in lines if line.since}
        assert {request(trunk, r.number) for r in (*state.waiting, *state.in_flight)} <= told
    return lines


async def line(trunk: Trunk, kind: str, *parts: str, uri: str | None = None) -> Line:
    """Once it is told, in these words."""
    found: list[Line] = []

    async def told() -> bool:
        found[:] = [
            line
            for line in await explained(trunk, uri)
            if line.kind == kind and all(part in line.sentence for part in parts)
        ]
        return bool(found)

    try:
        await trunk.until(told)
    except AssertionError as error:
        lines = "\n".join(f"{one.kind}: {one.sentence}" for one in await trunk.explain(uri))
        raise AssertionError(f"{kind} {parts} is not told:\n{lines}") from error
    return found[0]


async def alike(trunk: Trunk, told: Line) -> None:
    """The current details say it in the same words."""

    async def same() -> bool:
        return told.sentence in await trunk.details()

    await trunk.until(same)


async def flies(trunk: Trunk, number: int) -> None:
    await trunk.triggered(number)
    await trunk.tells(number, "build_running")


@pytest.mark.spec("V419")
async def test_a_head_that_waits_for_a_slot_says_who_holds_it_and_what_that_one_waits_for(
    trunk: Trunk,
) -> None:
    await trunk.report("A")
    await flies(trunk, 1)
    await trunk.report("B")
    a, b = await trunk.request("A"), await trunk.request("B")
    waits = await line(trunk, "no_free_slot", request(trunk, 1))
    assert (waits.request, waits.uri) == (request(trunk, 2), "B")
    assert (waits.who, waits.since) == ((request(trunk, 1),), b.accepted_at)
    (build,) = await trunk.store.builds(trunk.queue, 1)
    verdict = f"the verdict of build {build.url} of fake, running"
    holds = await line(trunk, "in_flight", f"{request(trunk, 1)} (head A)", verdict)
    assert (holds.since, holds.until) == (a.admitted_at, a.deadline_at)
    assert f"at {clock(a.deadline_at or 0)} at the latest" in holds.sentence
    await alike(trunk, waits)
    await alike(trunk, holds)


@pytest.mark.spec("V419")
async def test_a_slot_that_a_probe_holds_is_said_to_be_a_probes(running: Running) -> None:
    async with running(bisect="auto") as trunk:
        await trunk.report("G")
        await trunk.succeeds("G")
        trunk.source.land("B", "C", "D")
        await trunk.report("D")
        await trunk.fails("D")
        await flies(trunk, 3)
        await trunk.report("E")
        waits = await line(trunk, "no_free_slot")
        assert (waits.uri, waits.who) == ("E", (request(trunk, 3),))
        probe = await trunk.store.request(trunk.queue, 3)
        holds = await line(trunk, "in_flight", f"{request(trunk, 3)} (probe {probe.uri})")
        await alike(trunk, waits)
        await alike(trunk, holds)
        searched = await line(trunk, "bisection", "running", uri="D")
        assert f"in (G, D]; {request(trunk, 3)} probes {probe.uri}" in searched.sentence


@pytest.mark.spec("V420")
async def test_a_paused_queue_says_who_paused_it_and_which_head_waits(trunk: Trunk) -> None:
    await trunk.act(Verb.PAUSE, by="ada")
    paused = (await trunk.state()).paused
    assert paused
    why = f"the queue is paused by ada since {clock(paused.at)} (because)"
    idle = await line(trunk, "paused", why)
    assert (idle.who, idle.since) == (("ada",), paused.at)
    await alike(trunk, idle)
    await trunk.report("A")
    waits = await line(trunk, "paused", why, "`lastgreen resume` admits it")
    assert (waits.request, waits.uri, waits.who) == (request(trunk, 1), "A", ("ada",))
    await alike(trunk, waits)
    await trunk.act(Verb.RESUME)
    await trunk.is_in("A", State.PROCESSING)


@pytest.mark.spec("V420")
async def test_a_queue_that_is_not_configured_says_that(trunk: Trunk) -> None:
    await trunk.report("A", "B")
    trunk.config.remove(trunk.queue)
    await trunk.handle.signal("slot_freed")
    held = await line(trunk, "not_configured", "the queue is not configured")
    await alike(trunk, held)
    await line(trunk, "waits", f"{request(trunk, 2)} (B)", "until the queue is configured")


@pytest.mark.spec("V421")
@pytest.mark.parametrize(("back_to", "doubt"), [(None, ""), ("A", "named it before")])
async def test_a_second_look_says_what_is_doubtful_and_the_gate_goes_on(
    running: Running, back_to: str | None, doubt: str
) -> None:
    async with running(rewind_confirm=30) as trunk:
        await trunk.report("A", "B")
        head = back_to or "X"
        trunk.source.rewrite(back_to, *([] if back_to else ["X"]))
        await trunk.poke()
        looks = await line(trunk, "second_look", f"sees {head}", "does not descend from B", doubt)
        assert ("named it before" in looks.sentence) is bool(back_to)
        assert looks.uri == head
        assert looks.until
        assert f"looks again at {clock(looks.until)}" in looks.sentence
        assert "what waits is admitted meanwhile" in looks.sentence
        await alike(trunk, looks)
        await trunk.succeeds("A")
        await trunk.is_in("B", State.PROCESSING)
        assert looks in await explained(trunk)


def without_git(trunk: Trunk) -> None:
    trunk.source.out = True
    trunk.source.errors.extend([Out(f"no answer of https://ada:{SECRET}@host/trunk")] * 1000)


def is_out(trunk: Trunk, told: Line) -> None:
    """What every question to a remote that is out says."""
    assert told.since
    assert told.until
    assert told.until > told.since
    assert f"since {clock(told.since)}" in told.sentence
    assert f"asked again at {clock(told.until)}" in told.sentence
    assert "its last answer: SourceControlOut: no answer of https://***@host/trunk" in told.sentence
    assert "nothing fails for it at the gate" in told.sentence
    _ = trunk


@pytest.mark.spec("V422")
async def test_source_control_that_is_out_for_the_look(trunk: Trunk) -> None:
    await trunk.report("A", "B")
    without_git(trunk)
    await trunk.poke()
    is_out(trunk, await line(trunk, "source_control_out", "what the head is", "asked again at"))
    asks = await line(trunk, "asks_look", "asks source control since", "what the head is")
    await alike(trunk, asks)
    await trunk.fails("A")
    await trunk.stays("A fai, B pro")


@pytest.mark.spec("V422")
async def test_source_control_that_is_out_at_the_gate(trunk: Trunk) -> None:
    await trunk.report("A")
    await trunk.succeeds("A")
    await trunk.report("B", "C")
    await _forget(trunk)
    without_git(trunk)
    await trunk.build_ends("B", "failed")
    what = "what the head at the gate descends from"
    is_out(trunk, await line(trunk, "source_control_out", what, "asked again at"))
    waits = await line(trunk, "source_control", "(C)", "to say what it descends from")
    assert waits.since == (await trunk.request("C")).accepted_at
    await alike(trunk, waits)
    await alike(trunk, await line(trunk, "asks_ancestry", what))
    await trunk.stays("A suc, B fai, C acc")


async def _forget(trunk: Trunk) -> None:
    """A new run of the queue, which knows nothing of the look that brought the head."""
    looks = trunk.source.asked["latest"]
    await trunk.terminate(ids.queue(trunk.queue))
    await trunk.start()

    async def has_looked() -> bool:
        return trunk.source.asked["latest"] > looks

    await trunk.until(has_looked)


@pytest.mark.spec("V422", "V427")
async def test_source_control_that_is_out_for_the_ref(trunk: Trunk) -> None:
    await trunk.report("A", "B")
    without_git(trunk)
    await trunk.build_ends("A", "succeeded")
    out = await line(trunk, "source_control_out", "to move the promotion ref", "asked again at")
    assert out.request == request(trunk, 1)
    assert "s of 600 s are spent" in out.sentence
    is_out(trunk, out)
    owes = await line(trunk, "owes_record", "its record is under way")
    assert (owes.request, owes.since) == (out.request, (await trunk.request("A")).ended_at)
    behind = await line(trunk, "promotion", "verified-main is at no commit that is known")
    newest = f"the newest green commit is A by {request(trunk, 1)}"
    assert f"{newest}: the record of {request(trunk, 1)} is under way since" in behind.sentence
    await trunk.stays("A suc, B pro")
    record = trunk.client.get_workflow_handle(ids.record(trunk.queue, 1))
    details = (await record.query("__temporal_workflow_metadata")).current_details
    assert "asks source control" in details


TRIGGERS = (
    ("find", RunnerOut("502"), "RunnerOut: 502", ""),
    ("trigger", RefusedForNow("429: slow down"), "RefusedForNow: 429", "s of 600 s are spent"),
)


@pytest.mark.spec("V423")
@pytest.mark.parametrize(("method", "error", "said", "spent"), TRIGGERS)
async def test_a_runner_that_starts_no_build_says_what_it_answers(
    trunk: Trunk, method: str, error: Exception, said: str, spent: str
) -> None:
    trunk.runner.fail(method, error, 1000)
    await trunk.report("A")
    out = await line(trunk, "runner_out", "for a build", said, "asked again at")
    await _is_waited_for(trunk, out, spent)
    await line(trunk, "in_flight", "the build runner to start build 1 of it")


STATUSES = (
    (RunnerOut("502"), "RunnerOut: 502", ""),
    (NoSuchBuild("fake/1"), "NoSuchBuild: fake/1", "s of 600 s are spent"),
)


@pytest.mark.spec("V423")
@pytest.mark.parametrize(("error", "said", "spent"), STATUSES)
async def test_a_runner_that_knows_no_build_or_is_out_says_what_it_answers(
    trunk: Trunk, error: Exception, said: str, spent: str
) -> None:
    trunk.runner.fail("status", error, 1000)
    await trunk.report("A")
    out = await line(trunk, "runner_out", "for the verdict of a build", said, "asked again at")
    await _is_waited_for(trunk, out, spent)


@pytest.mark.spec("V423")
async def test_a_build_that_was_lost_says_so_until_there_is_another(trunk: Trunk) -> None:
    await trunk.report("A")
    await flies(trunk, 1)
    trunk.runner.lose("fake/1")
    trunk.runner.fail("find", RunnerOut("502"), 1000)
    assert trunk.runner.wake
    await trunk.runner.wake(trunk.runner.builds["fake/1"].order.wake)
    lost = await line(trunk, "in_flight", "its build to be started anew: memory:fake/1", "lost at")
    (told,) = [r for r in await trunk.store.history(trunk.queue, 1) if r.kind == "build_lost"]
    assert f"lost at {clock(told.at)}" in lost.sentence
    await _is_waited_for(trunk, await line(trunk, "runner_out", "502", "asked again at"), "")
    trunk.runner._errors.clear()
    await line(trunk, "in_flight", "the verdict of build memory:fake/2")


async def _is_waited_for(trunk: Trunk, out: Line, spent: str) -> None:
    assert ("are spent" in out.sentence) is bool(spent)
    assert spent in out.sentence
    assert out.request == request(trunk, 1)
    assert out.since
    assert out.until
    assert f"since {clock(out.since)}" in out.sentence
    deadline = (await trunk.request("A")).deadline_at or 0
    assert f"`validation_timeout` acts at {clock(deadline)}" in out.sentence


@pytest.mark.spec("V424")
@pytest.mark.parametrize("forgotten", [False, True])
async def test_a_head_after_a_rewrite_says_which_request_is_no_ancestor(
    two: Trunk, *, forgotten: bool
) -> None:
    await two.report("A")
    await flies(two, 1)
    if forgotten:
        del two.source.parents["A"]
    two.source.rewrite(None, "X")
    await two.look()
    said = "may be no ancestor of it" if forgotten else "is no ancestor of it"
    held = await line(two, "not_on_top", f"{request(two, 1)} (A) {said}")
    assert (held.request, held.who) == (request(two, 2), (request(two, 1),))
    assert "until nothing is in flight that it is not on top of" in held.sentence
    await alike(two, held)


@pytest.mark.spec("V425")
async def test_a_head_whose_commit_is_under_way_names_that_attempt_and_is_named_by_who_waits_behind(
    two: Trunk,
) -> None:
    await two.report("A", "B")
    await flies(two, 1)
    await flies(two, 2)
    two.source.rewrite("A")
    await two.look()
    await two.report("C")
    held = await line(two, "same_commit", "an attempt at the same commit that is in flight")
    assert (held.request, held.uri, held.who) == (request(two, 3), "A", (request(two, 1),))
    assert held.sentence.endswith("its fact is adopted")
    behind = await line(two, "waits", f"{request(two, 4)} (C)", f"behind {request(two, 3)}")
    assert behind.who == (request(two, 3),)
    await alike(two, held)
    await alike(two, behind)
    two.projects.out = ProjectsOut("503")
    await two.runner.finish("A", "succeeded")
    await two.is_in("C", State.ACCEPTED)
    owes = await line(two, "same_commit", "an attempt at the same commit that owes its record")
    assert (owes.who, owes.uri) == (held.who, "A")
    await alike(two, owes)
    two.projects.out = None


@pytest.mark.spec("V426")
async def test_a_latest_head_without_a_verdict_says_when_it_is_tried_again(
    trunk: Trunk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gate, "AGAIN_FIRST_MS", 200)
    trunk.runner.fail("find", Refused("401"), 2)
    await trunk.report("A")

    async def again() -> bool:
        return len(await trunk.store.attempts(trunk.queue, "A")) == 2

    await trunk.until(again)
    monkeypatch.setattr(gate, "AGAIN_FIRST_MS", 10 * MINUTES)
    ended = await trunk.is_in("A", State.FAILED)
    told = await line(trunk, "no_verdict", "(A) ended without a verdict", "trigger_failed")
    due = due_again(ended.ended_at or 0, 2)
    assert (told.request, told.since, told.until) == (request(trunk, 2), ended.ended_at, due)
    assert f"tries it again by itself at {clock(due)}, after 1 such retries" in told.sentence
    await trunk.act(Verb.PAUSE)
    told = await line(
        trunk, "no_verdict", "does not try it again by itself, as the queue is paused"
    )
    assert told.until is None
    assert f"`lastgreen retry {request(trunk, 2)}` would make an attempt" in told.sentence


@pytest.mark.spec("V426")
async def test_what_is_not_tried_again_says_why(trunk: Trunk) -> None:
    trunk.runner.fail("find", Refused("401"), 1)
    await trunk.report("A")
    await trunk.is_in("A", State.FAILED)
    await trunk.report("B")
    await trunk.triggered(2)
    await trunk.act(Verb.CANCEL, 2)
    await trunk.is_in("B", State.CANCELLED)
    decides = f"after cancelled_by_person a person decides; `lastgreen retry {request(trunk, 2)}`"
    assert (await line(trunk, "no_verdict", "(B)", decides)).until is None
    newer = f"as {request(trunk, 2)} is the latest; `lastgreen retry {request(trunk, 1)}` would"
    assert (await line(trunk, "no_verdict", newer, uri="A")).until is None


@pytest.mark.spec("V427")
async def test_a_queue_without_a_promotion_ref_says_so(running: Running) -> None:
    async with running(promote=None) as trunk:
        await trunk.report("A")
        await trunk.succeeds("A")
        told = await line(trunk, "promotion", "the queue has no `promote`")
        assert f"the newest green commit is A by {request(trunk, 1)}" in told.sentence


@pytest.mark.spec("V427")
@pytest.mark.parametrize("how", ["rewritten", "refused"])
async def test_a_ref_that_was_not_moved_says_why_where_it_is_and_where_it_belongs(
    trunk: Trunk, how: str
) -> None:
    await trunk.report("A")
    await trunk.succeeds("A")
    assert not [one for one in await explained(trunk) if one.kind == "promotion"]
    await trunk.report("B")
    if how == "rewritten":
        trunk.source.rewrite("A", "X")
    else:
        trunk.source.protected = "protected branch hook declined"
    await trunk.succeeds("B")
    told = await line(trunk, "promotion", f"newest green commit is B by {request(trunk, 2)}")
    assert told.sentence.startswith("verified-main is at A, ")
    assert (told.uri, trunk.source.promotion) == ("A", "A")
    text = "not_on_ref: B" if how == "rewritten" else "failed: protected branch hook declined"
    assert text in told.sentence


@pytest.mark.spec("V427")
async def test_a_last_green_whose_fact_is_not_written_says_so(trunk: Trunk) -> None:
    await trunk.report("A")
    await trunk.succeeds("A")
    trunk.projects.out = ProjectsOut("503")
    await trunk.report("B")
    await trunk.build_ends("B", "succeeded")
    missing = f"the fact of last green, {request(trunk, 2)} (B), is not written"
    told = await line(trunk, "promotion", missing)
    assert told.sentence.startswith("verified-main is at A, the newest green commit is A by")
    await line(trunk, "owes_record", f"{request(trunk, 2)} (B) succeeded")
    await line(trunk, "runner_out", "for the results of a build's projects", "ProjectsOut: 503")
    trunk.projects.out = None


@pytest.mark.spec("V428")
async def test_of_any_commit_is_told_what_is_known(trunk: Trunk) -> None:
    await trunk.report("A")
    await trunk.succeeds("A")
    trunk.source.land("B")
    await trunk.report("C")
    await trunk.fails("C")
    await trunk.report("D")
    await trunk.succeeds("D")
    trunk.source.land("E")
    await trunk.report("F", "G", "H")
    own = await line(trunk, "fact", "A is green (degree 0) by its own fact", uri="A")
    assert (own.request, bool(own.since)) == (request(trunk, 1), True)
    cover = await line(trunk, "cover", f"{request(trunk, 3)} at D covers it: green", uri="B")
    assert "B has no fact" in cover.sentence
    assert cover.sentence.endswith("(degree 0), built: no")
    assert (await line(trunk, "prior_green", request(trunk, 1), uri="B")).uri == "A"
    assert (await line(trunk, "next_green", request(trunk, 3), uri="B")).uri == "D"
    gone = await line(trunk, "superseded", f"by {request(trunk, 6)}", uri="G")
    assert (gone.request, gone.who) == (request(trunk, 5), (request(trunk, 6),))
    flying = await line(trunk, "in_flight", f"{request(trunk, 4)} (head F)", uri="F")
    assert {one.request for one in await explained(trunk, "F")} <= {None, flying.request}
    waits = await line(trunk, "no_free_slot", "(H)", uri="H")
    assert waits.request == request(trunk, 6)
    unknown = await line(trunk, "unknown", "nothing is known of E", uri="E")
    assert f"reported as head (`lastgreen report {trunk.queue}`)" in unknown.sentence


@pytest.mark.spec("V428")
async def test_of_a_commit_below_a_red_one_the_bisection_is_told(running: Running) -> None:
    async with running(bisect="ask") as trunk:
        await trunk.report("A")
        await trunk.succeeds("A")
        trunk.source.land("B", "C")
        await trunk.report("D")
        await trunk.fails("D")
        cover = await line(trunk, "cover", f"{request(trunk, 2)} at D covers it: broken", uri="B")
        assert cover.sentence.endswith("(degree 1), built: no")
        assert (await line(trunk, "next_green", "none", uri="B")).uri is None
        await trunk.act(Verb.BISECT, 2)
        await flies(trunk, 3)
        search = await line(trunk, "bisection", "running: the culprit is in (A, D]", uri="C")
        assert search.request == request(trunk, 2)


@pytest.mark.spec("V259")
async def test_every_request_that_has_not_ended_says_what_it_waits_for_and_since_when(
    two: Trunk,
) -> None:
    two.runner.fail("find", RunnerOut("502"), 3)
    await two.report("A", "B")
    await line(two, "in_flight", request(two, 1), "waits for the build runner to start build 1")
    await flies(two, 1)
    await flies(two, 2)
    await two.report("C", "D")
    await line(two, "in_flight", request(two, 2), "waits for the verdict of build")
    first = await line(two, "no_free_slot", request(two, 3), "for a slot held by")
    await line(two, "waits", request(two, 4), f"behind {first.request}")
    two.runner.is_deaf = True
    await two.act(Verb.CANCEL, 1)
    ending = await line(two, "in_flight", request(two, 1), "waits for its build to end")
    a = await two.request("A")
    assert f"cancelled since {clock(a.ending_at or 0)} (person)" in ending.sentence


async def test_what_runs_for_nobody_is_said_and_the_store_answers_all_the_same(
    trunk: Trunk,
) -> None:
    await trunk.report("A")
    await flies(trunk, 1)
    await trunk.handle.terminate("by a test")
    await line(trunk, "not_asked", "workflow does not run", "`lastgreen doctor --fix` starts it")
    await line(trunk, "in_flight", request(trunk, 1))


async def test_without_temporal_the_store_answers_and_the_rest_is_said_to_be_missing(
    trunk: Trunk,
) -> None:
    await trunk.report("A")
    await flies(trunk, 1)
    settings = trunk.config.get(trunk.queue)
    nowhere = partial(connect, "127.0.0.1:1")
    found = await explain(trunk.store, settings, nowhere, queue=trunk.queue)
    assert [one.kind for one in found.lines] == ["nothing_waits", "in_flight", "not_asked"]
    assert "Temporal does not answer at 127.0.0.1:1" in found.lines[-1].sentence


async def test_a_temporal_that_never_answers_holds_nobody_up(
    trunk: Trunk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(explaining, "PATIENCE", timedelta(seconds=0.1))
    await trunk.report("A")
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        nowhere = partial(connect, f"127.0.0.1:{deaf.getsockname()[1]}")
        found = await explain(trunk.store, None, nowhere, queue=trunk.queue)
    kinds = [one.kind for one in found.lines]
    assert kinds == ["not_configured", "in_flight", "not_asked"]
    assert "Temporal gives no answer" in found.lines[-1].sentence


async def test_with_more_requests_than_can_be_named_the_details_stay_short(
    running: Running,
) -> None:
    async with running(max_concurrent=14) as trunk:
        heads = [f"A{number}" for number in range(15)]
        await trunk.report(*heads)
        held = await line(trunk, "no_free_slot", "and 4 more")
        await alike(trunk, held)
        flying = [one for one in await explained(trunk) if one.kind == "in_flight"]
        assert len(flying) == 14
        details = await trunk.details()
        assert details.count("is in flight since") == 10
        assert f"and 4 more: `lastgreen explain {trunk.queue}`" in details


async def test_the_workflow_of_another_store_is_not_taken_for_the_queues_own(
    trunk: Trunk,
) -> None:
    await trunk.report("A")
    async with begin(trunk.parts.engine) as connection:
        await connection.execute(sa.update(tables.installation).values(id="f" * 32))
    await line(trunk, "not_asked", f"belongs to installation {trunk.fence.installation}")
