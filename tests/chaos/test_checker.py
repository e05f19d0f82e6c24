"""A checker that cannot fail is worthless: each rule, and something that breaks it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import replace
from typing import Any, Final

import pytest
import pytest_asyncio

from domain.act import Act, Verb
from domain.bisect import Probe
from domain.event import EventType, HookEvent
from domain.fact import Exit, Require
from domain.request import Cause
from domain.settings import Route
from stores.ranges import RangePage
from stores.rows import Delivering, Failure
from tests.chaos.checker import Violated, check, violations
from tests.chaos.evidence import Evidence, Ran, answers_of, rows_of
from tests.stores.story import Backend, Story

SINK: Final = "log"
LINE: Final = "ABCDEFGH"
ENDS: Final = frozenset(Cause)


async def told(story: Story) -> list[HookEvent]:
    """All that is to be delivered, delivered."""
    heard = []
    for request in reversed(await story.store.requests(story.queue)):
        for delivery in await story.store.pending(story.queue, request.number):
            heard.append(delivery.event)
            done = replace(delivery, state=Delivering.DELIVERED)
            await story.store.delivered(story.stamp(), done)
    return heard


async def a_history(story: Story) -> None:
    """A is green, B red, C superseded, D never triggered, E cancelled, F green; then a search."""
    await story.validate("A")
    await story.validate("B", "failed")
    await story.report("C", "D")
    await story.turn()
    failure = Failure(4, Cause.TRIGGER_FAILED, "refused")
    await story.store.fail(story.stamp(), failure, story.settings)
    await story.report("E")
    cancel = Act("1", Verb.CANCEL, "ada", "because", "5")
    await story.store.act(story.stamp(), cancel, story.settings)
    await story.validate("F")
    await a_search(story)


async def a_search(story: Story) -> None:
    """H is red, G below it green, H red once more: it is what broke the trunk."""
    red = await story.report("H")
    await story.turn()
    await verdict(story, red, "failed", "H", "G")
    for number, (uri, said) in enumerate((("G", "succeeded"), ("H", "failed")), red + 1):
        await story.store.probe(story.stamp(), red, Probe(uri, "F", "H"), None)
        await story.turn()
        await verdict(story, number, said, uri)
    await story.store.end_bisection(story.stamp(), red, "H", "Ada", story.settings)


async def verdict(story: Story, number: int, said: str, *covers: str) -> None:
    await story.trigger(number)
    await story.answer(number, said)
    assert await story.store.facts(story.stamp(), number, bisects=True)
    await story.store.cover(story.stamp(), number, RangePage(covers, 0, is_last=True))
    await story.store.announce(story.stamp(), number, story.settings, None)


@pytest_asyncio.fixture(scope="module")
async def good(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Evidence]:
    store = tmp_path_factory.mktemp("checker") / "store.db"
    async with Backend(f"sqlite+aiosqlite:///{store}").story() as story:
        story.settings = replace(story.settings, hooks=(Route(SINK),))
        await a_history(story)
        heard = {SINK: await told(story)}
        rows = await rows_of(story.engine, story.queue)
        uris = {r["number"]: r["uri"] for r in rows["requests"]}
        ran = [
            Ran(b["id"], f"key/{b['id']}", uris[b["request"]], b["status"]) for b in rows["builds"]
        ]
        yield Evidence(
            *(story.queue, rows, ["A", "F"], "F", heard, ran, "H", 1, 1, [rows]),
            parents=dict(zip(LINE, [None, *LINE], strict=False)),
            answers=await answers_of(story.store, story.queue, LINE),
        )


def changed(e: Evidence, table: str, which: Mapping[str, Any], **values: Any) -> Evidence:
    """With other values in the rows of which that is true."""
    rows = [{**row, **values} if which.items() <= row.items() else row for row in e.rows[table]]
    assert rows != e.rows[table]
    return replace(e, rows={**e.rows, table: rows})


def without(e: Evidence, table: str, **which: Any) -> Evidence:
    rows = [row for row in e.rows[table] if not which.items() <= row.items()]
    assert len(rows) < len(e.rows[table])
    return replace(e, rows={**e.rows, table: rows})


def doubled(e: Evidence, table: str, **which: Any) -> Evidence:
    twice = [row for row in e.rows[table] if which.items() <= row.items()]
    assert twice
    return replace(e, rows={**e.rows, table: [*e.rows[table], *twice]})


def sounds(e: Evidence, hear: Callable[[list[HookEvent]], list[HookEvent]]) -> Evidence:
    return replace(e, heard={SINK: hear(list(e.heard[SINK]))})


def ran(e: Evidence, build: str, **values: Any) -> Evidence:
    return replace(e, ran=[replace(r, **values) if r.id == build else r for r in e.ran])


def number(n: int) -> dict[str, int]:
    return {"number": n}


def never_ended(e: Evidence) -> Evidence:
    return changed(e, "requests", number(6), state="processing", cause=None, recorded_at=None)


def waits(e: Evidence) -> Evidence:
    accepted = {"state": "accepted", "cause": None}
    return changed(e, "requests", number(5), **accepted)


def overlap(e: Evidence) -> Evidence:
    """The sixth was admitted before the fourth had ended."""
    ended = next(h["seq"] for h in e.rows["history"] if h["kind"] == "trigger_failed")
    return changed(e, "history", {"kind": "admitted", "subject": "6"}, seq=ended - 1)


def two_probes(e: Evidence) -> Evidence:
    """The ninth was made before the eighth had ended."""
    ended = next(h["seq"] for h in e.rows["history"] if h["subject"] == "8" and h["kind"] in ENDS)
    return changed(e, "history", {"kind": "accepted", "subject": "9"}, seq=ended - 1)


def says(e: Evidence, uri: str, exact: Exit, covered: Exit) -> Evidence:
    said = {Require.EXACT: exact, Require.COVERED: covered}
    return replace(e, answers={**e.answers, uri: said})


BROKEN: Final[Mapping[str, tuple[str, Callable[[Evidence], Evidence]]]] = {
    "the ref went back": ("the_ref", lambda e: replace(e, pushes=["F", "A"], ref="A")),
    "the ref at a red commit": ("the_ref", lambda e: replace(e, pushes=["A", "B", "F"])),
    "the ref at a commit nobody built": (
        "the_ref",
        lambda e: replace(e, pushes=["A", "C", "F"]),
    ),
    "the ref stayed behind": ("the_ref", lambda e: replace(e, pushes=["A"], ref="A")),
    "the ref moved by itself": ("the_ref", lambda e: replace(e, ref="A")),
    "two held the only slot": ("the_slots", overlap),
    "two builds ran": ("the_slots", lambda e: replace(e, most_open=2)),
    "a fact twice": ("the_facts", lambda e: doubled(e, "facts", uri="A")),
    "a fact that changed": (
        "nothing_is_taken_back",
        lambda e: changed(e, "facts", {"uri": "A"}, created_at=1),
    ),
    "an admission that changed": (
        "nothing_is_taken_back",
        lambda e: changed(e, "requests", number(1), deadline_at=1),
    ),
    "a request that is gone": (
        "nothing_is_taken_back",
        lambda e: without(e, "requests", **number(3)),
    ),
    "a fact that is gone": ("nothing_is_taken_back", lambda e: without(e, "facts", uri="B")),
    "a fact by a stranger": ("the_facts", lambda e: changed(e, "facts", {"uri": "A"}, request=2)),
    "a green fact of a red build": ("the_facts", lambda e: ran(e, "b/1/1", status="failed")),
    "a green fact of another's build": ("the_facts", lambda e: ran(e, "b/1/1", uri="B")),
    "a green fact of a red request": (
        "the_facts",
        lambda e: changed(e, "facts", {"uri": "B"}, degree=0.0),
    ),
    "a red fact of a build that was cancelled": (
        "the_facts",
        lambda e: ran(e, "b/2/1", status="cancelled"),
    ),
    "a slot that is held": ("no_request_is_lost", never_ended),
    "an old one that waits": ("no_request_is_lost", waits),
    "a record that is owed": (
        "no_request_is_lost",
        lambda e: changed(e, "requests", number(1), recorded_at=None),
    ),
    "a head that nobody validated": ("no_request_is_lost", lambda e: replace(e, tip="Z")),
    "an event that was not heard": ("the_events", lambda e: sounds(e, lambda h: h[:-1])),
    "an event that is pending": (
        "the_events",
        lambda e: changed(e, "hook_deliveries", {"request": 1}, state="pending"),
    ),
    "an event that nobody wrote": (
        "the_events",
        lambda e: sounds(e, lambda h: [*h, replace(h[0], request=3)]),
    ),
    "an event that changed": (
        "the_events",
        lambda e: sounds(e, lambda h: [*h, replace(h[0], timestamp_ms=7)]),
    ),
    "an end before its start": ("the_events", lambda e: sounds(e, lambda h: [h[1], h[0], *h[2:]])),
    "two kinds of end": (
        "the_events",
        lambda e: changed(e, "hook_deliveries", {"request": 6}, type=EventType.CANCELLED),
    ),
    "no event of a start": (
        "the_events",
        lambda e: without(e, "hook_deliveries", type="validation.repository.started", request=1),
    ),
    "a line twice": ("the_history", lambda e: doubled(e, "history", kind="admitted")),
    "no line of an admission": (
        "the_history",
        lambda e: without(e, "history", kind="admitted", subject="1"),
    ),
    "no line of an end": ("the_history", lambda e: without(e, "history", kind="build_failed")),
    "no line of a supersession": (
        "the_history",
        lambda e: without(e, "history", kind="superseded_by_newer_head"),
    ),
    "no line of a record": ("the_history", lambda e: without(e, "history", kind="recorded")),
    "no line of a fact": ("the_history", lambda e: without(e, "history", kind="fact_recorded")),
    "no line of a build": ("the_history", lambda e: without(e, "history", kind="build_triggered")),
    "two dead letters": ("what_is_left", lambda e: doubled(e, "dead_letters", kind="request")),
    "no dead letter": ("what_is_left", lambda e: without(e, "dead_letters", kind="request")),
    "a last green without a fact": ("what_is_left", lambda e: without(e, "facts", uri="F")),
    "two builds of one key": ("the_builds", lambda e: ran(e, "b/1/1", key="key/b/2/1")),
    "a build nobody made": ("the_builds", lambda e: replace(e, ran=e.ran[1:])),
    "a cover of another's commit": (
        "the_covers",
        lambda e: changed(e, "coverage", {"uri": "G"}, uri="A"),
    ),
    "a cover above its verdict": (
        "the_covers",
        lambda e: changed(e, "coverage", {"uri": "G"}, uri="H"),
    ),
    "a cover that no verdict gave": (
        "the_covers",
        lambda e: changed(e, "coverage", {"uri": "H"}, degree=0.0),
    ),
    "a cover in another's place": (
        "the_covers",
        lambda e: changed(e, "coverage", {"uri": "H"}, offset=-1),
    ),
    "a cover that is told as a fact": (
        "the_answers",
        lambda e: says(e, "C", Exit.GREEN, Exit.GREEN),
    ),
    "a broken commit that is green where covers count": (
        "the_answers",
        lambda e: says(e, "B", Exit.BROKEN, Exit.GREEN),
    ),
    "a green cover that nobody wrote": (
        "the_answers",
        lambda e: says(e, "C", Exit.UNKNOWN, Exit.GREEN),
    ),
    "a probe in the green log": (
        "the_probes",
        lambda e: changed(e, "requests", number(8), green_at=9),
    ),
    "a probe that was superseded": (
        "the_probes",
        lambda e: changed(e, "requests", number(8), cause=Cause.SUPERSEDED_BY_NEWER_HEAD),
    ),
    "a probe of a green request": (
        "the_probes",
        lambda e: changed(e, "requests", number(8), probe_of=6),
    ),
    "a probe on a broken commit": (
        "the_probes",
        lambda e: changed(e, "requests", number(8), base_uri="B"),
    ),
    "two probes at one time": ("one_probe_at_a_time", two_probes),
    "a probe that is last green": (
        "the_ref",
        lambda e: replace(e, pushes=["A", "F", "G"], ref="G"),
    ),
    "a search that never ends": (
        "the_searches",
        lambda e: changed(e, "bisections", {}, state="running"),
    ),
    "a search that nobody hears of": (
        "the_searches",
        lambda e: changed(e, "bisections", {}, state="inconclusive"),
    ),
    "a culprit that nobody told": (
        "the_searches",
        lambda e: without(e, "history", kind="culprit_found"),
    ),
    "a culprit that was red once": ("the_searches", lambda e: without(e, "facts", request=9)),
    "a culprit on top of a commit that was never green": (
        "the_searches",
        lambda e: without(e, "facts", uri="G"),
    ),
}  # fmt: skip


def test_a_good_run_is_believed(good: Evidence) -> None:
    check(good)
    assert {r["cause"] for r in good.requests} == {
        Cause.BUILD_SUCCEEDED,
        Cause.BUILD_FAILED,
        Cause.SUPERSEDED_BY_NEWER_HEAD,
        Cause.TRIGGER_FAILED,
        Cause.CANCELLED_BY_PERSON,
    }


@pytest.mark.parametrize("what", BROKEN)
def test_what_breaks_a_rule_is_found_by_that_rule(good: Evidence, what: str) -> None:
    rule, doctor = BROKEN[what]
    bad = doctor(good)
    assert rule in {text.partition(":")[0] for text in violations(bad)}
    with pytest.raises(Violated, match=f"{rule}: "):
        check(bad)


def test_a_second_copy_of_an_event_is_no_lie(good: Evidence) -> None:
    check(sounds(good, lambda heard: [*heard, *heard]))


def test_a_commit_that_is_green_again_may_hold_the_ref_again(good: Evidence) -> None:
    """Adopted: the request is newer, and so is what it holds."""
    back = {"uri": "A", "number": 20, "order": 20}
    newer = [{**good.requests[0], **back, "admitted_at": None, "cause": "adopted_fact"}]
    rows = {**good.rows, "requests": [*good.requests, *newer]}
    bad = replace(good, rows=rows, pushes=["A", "F", "A"], ref="A", tip="A")
    assert not [text for text in violations(bad) if text.startswith("the_ref")]


def test_more_builds_than_slots_are_excused_by_the_history_alone(good: Evidence) -> None:
    bad = replace(good, most_open=2, earlier=())
    assert violations(bad)
    told = changed(bad, "history", {"kind": "build_finished"}, kind="late_verdict")
    assert not violations(told)


def test_a_paused_queue_may_hold_what_waits(good: Evidence) -> None:
    paused = changed(waits(good), "queues", {}, paused_reason="because")
    assert not [text for text in violations(paused) if text.startswith("no_request_is_lost")]
