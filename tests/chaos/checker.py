"""Proves of a queue, after whatever happened to it, that nothing was lost and nothing lies."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from domain.event import EventType, HookEvent
from domain.request import ABANDONED, ENDINGS, Cause, State
from tests.chaos.evidence import Evidence, Row, newest
from tests.chaos.searches import (
    one_probe_at_a_time,
    the_answers,
    the_covers,
    the_probes,
    the_searches,
)

ENDS: Final = frozenset({EventType.RECORDED, EventType.CANCELLED, EventType.ABANDONED})
EXCUSED: Final = frozenset({"cancel_unconfirmed", "late_verdict"})
"""What the history says of a build that may outlive its request's slot."""

CREATE_ONLY: Final = ("facts", "history")
KEPT: Final = (
    *("number", "order", "line", "uri", "origin", "retry_of", "strategy", "base_uri", "cause"),
    *("deadline_at", "accepted_at", "admitted_at", "ended_at", "green_at", "terminal_build_id"),
)


class Violated(AssertionError):
    pass


def the_ref(e: Evidence) -> Iterator[str]:
    """It moved forward only, and only to green commits; at the end it is where it should be."""
    at = 0
    for uri in e.pushes:
        if not e.is_green(uri):
            yield f"the ref was pushed to {uri}, which has no green fact"
        held = sorted(r["order"] for r in e.requests if r["uri"] == uri and r["green_at"])
        ahead = [order for order in held if order >= at]
        if not ahead:
            yield f"the ref went back to {uri} (orders {held}), after order {at}"
        at = next(iter(ahead), at)
    holder = newest([r for r in e.requests if r["green_at"]])
    if holder is not None and e.ref != holder["uri"] and not _left_out(e, holder):
        yield f"the ref is at {e.ref}, and its holder is {holder['uri']}"
    if e.pushes and e.ref != e.pushes[-1]:
        yield f"the ref is at {e.ref}, and was last pushed to {e.pushes[-1]}"


def _left_out(e: Evidence, holder: Row) -> bool:
    return "promotion_left_out" in e.told(holder["number"])


def the_slots(e: Evidence) -> Iterator[str]:
    """By the order of the transactions: two workflows' clocks may differ."""
    processing = set[str]()
    for row in sorted(e.rows["history"], key=lambda h: h["seq"]):
        if row["kind"] == "admitted":
            processing.add(row["subject"])
        elif row["kind"] in set(Cause):
            processing.discard(row["subject"])
        if row["kind"] == "admitted" and len(processing) > e.cap:
            yield f"{sorted(processing)} held a slot at one time, of {e.cap}"
    excused = any(row["kind"] in EXCUSED for row in e.rows["history"])
    if e.most_open > e.cap and not excused:
        yield f"{e.most_open} builds ran at one time, of {e.cap}, and no history says why"


def the_facts(e: Evidence) -> Iterator[str]:
    keys = [(f["uri"], f["project"], f["request"]) for f in e.rows["facts"]]
    yield from (f"two facts are {key}" for key, n in Counter(keys).items() if n > 1)
    by_number = {r["number"]: r for r in e.requests}
    status = {ran.id: (ran.uri, ran.status) for ran in e.ran}
    for fact in e.rows["facts"]:
        owner = by_number.get(fact["request"])
        if owner is None or owner["uri"] != fact["uri"]:
            yield f"the fact of {fact['uri']} is by request {fact['request']}, no attempt at it"
            continue
        said = "succeeded" if fact["degree"] == 0 else "failed"
        if fact["cause"] != f"build_{said}" or owner["cause"] != fact["cause"]:
            yield f"the fact {fact} is of a request that ended as {owner['cause']}"
        if status.get(owner["terminal_build_id"]) != (fact["uri"], said):
            ended = status.get(owner["terminal_build_id"])
            yield f"the fact of {fact['uri']} says {said}, its build {ended}"


def nothing_is_taken_back(e: Evidence) -> Iterator[str]:
    """Facts and history are create-only; what a request has been given once it keeps."""
    by_number = {r["number"]: r for r in e.requests}
    now = {table: {frozenset(row.items()) for row in e.rows[table]} for table in CREATE_ONLY}
    for rows in e.earlier:
        for table in CREATE_ONLY:
            gone = {frozenset(row.items()) for row in rows[table]} - now[table]
            yield from (f"{table} had {dict(row)}" for row in gone)
        for before in rows["requests"]:
            after = by_number.get(before["number"], {})
            for column in KEPT:
                if before[column] is not None and before[column] != after.get(column):
                    yield f"{column} was {before[column]!r}, and the request is now {after}"


def no_request_is_lost(e: Evidence) -> Iterator[str]:
    top = newest(e.requests)
    paused = any(queue["paused_reason"] for queue in e.rows["queues"])
    if e.tip is not None and (top is None or top["uri"] != e.tip):
        yield f"the newest head is {e.tip}, the newest request {top and top['uri']}"
    for r in e.requests:
        if r["state"] == State.PROCESSING:
            yield f"request {r['number']} still holds a slot"
        if r["state"] == State.ACCEPTED and r is not top and not paused:
            yield f"request {r['number']} still waits, and is not the newest"
        if r["cause"] and Cause(r["cause"]).has_verdict and r["recorded_at"] is None:
            yield f"request {r['number']} owes its record"


def the_events(e: Evidence) -> Iterator[str]:
    sent = defaultdict[tuple[str, str], list[HookEvent]](list)
    for sink, events in e.heard.items():
        for event in events:
            sent[sink, event.id].append(event)
    outbox = {(d["sink"], d["event_id"]): d for d in e.rows["hook_deliveries"]}
    yield from (f"{sink} heard {event}, which nobody wrote" for sink, event in sent.keys() - outbox)
    for key, row in outbox.items():
        if row["state"] == "pending" or (row["state"] == "delivered" and key not in sent):
            yield f"{row['sink']} never heard {row['event_id']}"
        for event in sent[key]:
            if event != sent[key][0] or _content(event) != _written(row):
                yield f"{row['sink']} heard {event} for {row['event_id']}"
    for sink, events in e.heard.items():
        yield from _out_of_order(sink, events)
        yield from _missing_events(e, sink)


def _content(event: HookEvent) -> tuple[Any, ...]:
    return event.type, event.queue, event.request, event.project, event.timestamp_ms


def _written(row: Row) -> tuple[Any, ...]:
    return row["type"], row["queue"], row["request"], row["project"], row["created_at"]


def _out_of_order(sink: str, events: Sequence[HookEvent]) -> Iterator[str]:
    ended = set[int]()
    first = {event.id: event for event in reversed(events)}
    for event in sorted(first.values(), key=events.index):
        if event.type is EventType.STARTED and event.request in ended:
            yield f"{sink} heard that request {event.request} started after it had ended"
        if event.type in ENDS:
            ended.add(event.request)


def _missing_events(e: Evidence, sink: str) -> Iterator[str]:
    for r in e.requests:
        mine = [d for d in e.rows["hook_deliveries"] if d["request"] == r["number"]]
        types = Counter(d["type"] for d in mine if d["sink"] == sink)
        said = sorted(kind for kind in types if kind in ENDS)
        if said != _end_events(r):
            yield f"request {r['number']} ended as {r['cause']}, and {sink} is told {said}"
        if types[EventType.STARTED] != (r["admitted_at"] is not None):
            yield f"request {r['number']} was admitted or not, and {sink} is told the opposite"


def _end_events(request: Row) -> list[str]:
    if not request["cause"]:
        return []
    cause = Cause(request["cause"])
    said = ENDINGS[cause].says or (EventType.RECORDED if cause.has_verdict else None)
    return [said] if said else []


def the_history(e: Evidence) -> Iterator[str]:
    keys = [(h["subject"], h["kind"], h["occurrence"]) for h in e.rows["history"]]
    yield from (f"the history has {key} {n} times" for key, n in Counter(keys).items() if n > 1)
    for r in e.requests:
        told = e.told(r["number"])
        causes = sorted(kind for kind in told if kind in set(Cause))
        if told["accepted"] != 1 or causes != ([r["cause"]] if r["cause"] else []):
            yield f"request {r['number']} is {r['state']} by {r['cause']}; its history is {told}"
        for column, kind in (("admitted_at", "admitted"), ("recorded_at", "recorded")):
            if told[kind] != (r[column] is not None):
                yield f"request {r['number']}: {column} is {r[column]}; its history is {told}"
    yield from _untold(e)


def _untold(e: Evidence) -> Iterator[str]:
    for fact in e.rows["facts"]:
        if e.told(fact["request"])["fact_recorded"] != 1:
            yield f"the fact of {fact['uri']} is not in the history of {fact['request']}"
    for build in e.rows["builds"]:
        told = e.told(build["request"])
        if told["build_triggered"] + told["build_found"] == 0:
            yield f"build {build['id']} is not in the history of {build['request']}"


def what_is_left(e: Evidence) -> Iterator[str]:
    letters = [d for d in e.rows["dead_letters"] if d["resolved_at"] is None]
    about = Counter((letter["kind"], letter["subject"]) for letter in letters)
    yield from (f"{n} open dead letters are about {which}" for which, n in about.items() if n > 1)
    ever = {(d["kind"], d["subject"]) for d in e.rows["dead_letters"]}
    for r in e.requests:
        abandoned = r["cause"] and ENDINGS[Cause(r["cause"])].says == ABANDONED
        if abandoned and ("request", str(r["number"])) not in ever:
            yield f"request {r['number']} ended as {r['cause']} without a dead letter"
        if r["green_at"] and not e.is_green(r["uri"]):
            yield f"request {r['number']} is green, and its commit has no green fact"
    green = newest([r for r in e.requests if r["state"] == State.SUCCEEDED])
    if green is not None and not e.is_green(green["uri"]):
        yield f"last green is {green['uri']}, which has no green fact"


def the_builds(e: Evidence) -> Iterator[str]:
    known = {ran.id: ran for ran in e.ran}
    for build in e.rows["builds"]:
        if build["id"] not in known:
            yield f"build {build['id']} is in the store, and its runner never made it"
    keys = Counter(ran.key for ran in e.ran if ran.status != "lost")
    for key, n in keys.items():
        if e.has_own_key and n > 1:
            yield f"{n} builds have the key {key}"


RULES: Final[Sequence[Callable[[Evidence], Iterator[str]]]] = (
    the_ref,
    the_slots,
    the_facts,
    nothing_is_taken_back,
    no_request_is_lost,
    the_events,
    the_history,
    what_is_left,
    the_builds,
    the_covers,
    the_answers,
    the_probes,
    one_probe_at_a_time,
    the_searches,
)


def violations(evidence: Evidence) -> list[str]:
    return [f"{rule.__name__}: {text}" for rule in RULES for text in rule(evidence)]


def check(evidence: Evidence) -> None:
    if found := violations(evidence):
        raise Violated(f"queue {evidence.queue}:\n  " + "\n  ".join(found))
