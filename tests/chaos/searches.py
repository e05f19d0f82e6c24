"""Proves of covers, of probes, and of searches: what they may say, and what they may never move."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from domain.fact import GREEN, Exit, Require
from domain.request import NOT_OF_A_PROBE, Cause, Origin, State, Strategy
from stores.ranges import Searching
from tests.chaos.evidence import Evidence, Row

ENDED_AS: Final = "the search of {request} ended as {state}"
FACT_SAYS: Final = {True: Exit.GREEN, False: Exit.BROKEN}


def the_covers(e: Evidence) -> Iterator[str]:
    """Each is of a verdict, and of a commit in its range; it stands where an attempt has it."""
    by_number = {r["number"]: r for r in e.requests}
    own = {f["request"]: f["degree"] for f in e.rows["facts"] if not f["project"]}
    for row in e.rows["coverage"]:
        what, by = f"the cover of {row['uri']}", by_number[row["request"]]
        if own.get(by["number"]) != row["degree"]:
            yield f"{what} says {row['degree']}, its verdict {own.get(by['number'])}"
        below = set(e.line(by["base_uri"])) if by["base_uri"] else set[str]()
        if row["uri"] not in e.line(by["uri"]) or row["uri"] in below:
            yield f"{what} is by {by['number']}, of ({by['base_uri']}, {by['uri']}]"
        lines = [e.line(r["uri"]) for r in e.requests if r["order"] == row["order"]]
        if not any(row["uri"] in line[-row["offset"] : 1 - row["offset"]] for line in lines):
            yield f"{what} is at {row['offset']} of {row['order']}, where no attempt has it"


def the_answers(e: Evidence) -> Iterator[str]:
    """A fact decides, whatever covers its commit; a cover is never given as a fact."""
    covered = {row["uri"]: row["degree"] for row in e.rows["coverage"]}
    for uri, said in e.answers.items():
        exact, loose, fact = said[Require.EXACT], said[Require.COVERED], e.fact(uri)
        if fact is None and exact in (Exit.GREEN, Exit.BROKEN):
            yield f"{uri} is said to be {exact.name}, and has no fact"
        if fact is None and loose is Exit.GREEN and covered.get(uri) != GREEN:
            yield f"{uri} is said to be covered green, and its cover is {covered.get(uri)}"
        if fact is not None and {exact, loose} != {FACT_SAYS[e.is_green(uri)]}:
            yield f"{uri} is said to be {exact.name}, covered {loose.name}; its fact is {fact}"


def the_probes(e: Evidence) -> Iterator[str]:
    """Each is on a green commit, in the place of a red request; none is green, or superseded."""
    by_number = {r["number"]: r for r in e.requests}
    probes = {str(r["number"]): r for r in e.requests if r["origin"] == Origin.PROBE}
    for number, probe in probes.items():
        red = by_number[probe["probe_of"]]
        if red["cause"] != Cause.BUILD_FAILED or red["order"] != probe["order"]:
            yield f"{number} is a probe of {red['number']}, which ended as {red['cause']}"
        if probe["green_at"] is not None or probe["cause"] in NOT_OF_A_PROBE:
            yield f"probe {number} is in the green log, or ended as {probe['cause']}"
        if probe["admitted_at"] and (
            probe["strategy"] != Strategy.INCREMENTAL or not e.is_green(probe["base_uri"])
        ):
            yield f"probe {number} was built on {probe['base_uri']}, which is not green"


def one_probe_at_a_time(e: Evidence) -> Iterator[str]:
    """Waiting or in flight, by the order of the transactions."""
    probes = {str(r["number"]) for r in e.requests if r["origin"] == Origin.PROBE}
    at_work = set[str]()
    for row in sorted(e.rows["history"], key=lambda h: h["seq"]):
        if row["subject"] in probes and row["kind"] == "accepted":
            at_work.add(row["subject"])
        elif row["kind"] in set(Cause):
            at_work.discard(row["subject"])
        if row["kind"] == "accepted" and len(at_work) > 1:
            yield f"probes {sorted(at_work)} were there at one time"


def the_searches(e: Evidence) -> Iterator[str]:
    """Each of them has ended, and whom it names was red twice, on top of a green commit."""
    letters = {(d["kind"], d["subject"]) for d in e.rows["dead_letters"]}
    for search in e.rows["bisections"]:
        number, state = search["request"], search["state"]
        ended = ENDED_AS.format(**search)
        if state == Searching.RUNNING:
            yield f"the search of {number} still runs"
        if e.told(number)["culprit_found"] != (state == Searching.FOUND):
            yield f"{ended}, and its history is {e.told(number)}"
        if state == Searching.INCONCLUSIVE and ("bisect", str(number)) not in letters:
            yield f"{ended}, without a dead letter"
        if state == Searching.FOUND:
            yield from (f"{ended}: {text}" for text in _named(e, search))


def _named(e: Evidence, search: Row) -> Iterator[str]:
    culprit, number = search["culprit_uri"], search["request"]
    facts = [f for f in e.rows["facts"] if (f["uri"], f["project"]) == (culprit, "")]
    red = len([f for f in facts if f["degree"] != GREEN])
    has_probes = any(r["probe_of"] == number and r["state"] != State.ACCEPTED for r in e.requests)
    if red < (2 if has_probes else 1):
        yield f"{culprit} is named, and was red {red} times"
    parent = e.parents[culprit]
    if parent is None or not any(
        (f["uri"], f["project"], f["degree"]) == (parent, "", GREEN) for f in e.rows["facts"]
    ):
        yield f"{culprit} is named, and its parent {parent} was never green"
