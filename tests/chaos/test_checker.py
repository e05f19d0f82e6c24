"""A checker that cannot fail is worthless: each rule, and something that breaks it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import replace
from typing import Any, Final

import pytest
import pytest_asyncio

from domain.act import Act, Verb
from domain.event import EventType, HookEvent
from domain.request import Cause
from domain.settings import Route
from stores.rows import Delivering, Failure
from tests.chaos.checker import Evidence, Ran, Violated, check, rows_of, violations
from tests.stores.story import Backend, Story

SINK: Final = "log"


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
    """A is green, B red, C superseded, D never triggered, E cancelled, F green."""
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
        yield Evidence(story.queue, rows, ["A", "F"], "F", heard, ran, "F", 1, 1, [rows])


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
    "a head that nobody validated": ("no_request_is_lost", lambda e: replace(e, tip="G")),
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
    back = {"uri": "A", "number": 7, "order": 7}
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
