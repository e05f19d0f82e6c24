from __future__ import annotations

import math
import random
from collections.abc import Callable
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from domain.bisect import Found, Inconclusive, Observed, Probe, Said, search

GREEN, RED, NOTHING = Said


def line_of(length: int) -> list[str]:
    return [f"c{at}" for at in range(length)]


def head_red(line: list[str]) -> list[Observed]:
    return [Observed(line[-1], RED, is_probe=False)]


def run(
    line: list[str], build: Callable[[str], Said], known: list[Observed] | None = None
) -> tuple[Found | Inconclusive, list[str]]:
    """To its end; and what was built on the way."""
    observed = [*head_red(line), *(known or [])]
    built: list[str] = []
    while isinstance(step := search("base", line, observed), Probe):
        assert step.uri in line
        built.append(step.uri)
        assert len(built) < 100
        observed.append(Observed(step.uri, build(step.uri), is_probe=True))
    return step, built


@pytest.mark.spec("V408")
@given(st.integers(1, 200), st.data())
def test_the_first_bad_commit_is_found_at_every_place_in_few_builds(
    length: int, data: st.DataObject
) -> None:
    line = line_of(length)
    culprit = data.draw(st.integers(0, length - 1))
    end, built = run(line, lambda uri: RED if line.index(uri) >= culprit else GREEN)
    assert end == Found(line[culprit], line[culprit - 1] if culprit else "base")
    confirmations = 0 if length == 1 else 1
    assert len(built) <= math.ceil(math.log2(length)) + confirmations


@pytest.mark.spec("V405")
def test_a_range_of_one_commit_needs_no_build() -> None:
    assert run(["c0"], lambda _: RED) == (Found("c0", "base"), [])


@pytest.mark.spec("V407")
def test_facts_inside_the_range_narrow_it_first_and_may_decide_it() -> None:
    line = line_of(10)
    known = [Observed("c4", GREEN, is_probe=False), Observed("c5", RED, is_probe=False)]
    assert run(line, lambda _: RED, known) == (Found("c5", "c4"), [])
    known = [Observed("c2", GREEN, is_probe=False), Observed("c7", RED, is_probe=False)]
    end, built = run(line, lambda uri: RED if int(uri[1:]) >= 5 else GREEN, known)
    assert end == Found("c5", "c4")
    assert not {"c2", "c0", "c1", "c8", "c9"} & set(built)


def test_a_red_commit_below_a_green_one_was_repaired_and_is_not_looked_at() -> None:
    line = line_of(6)
    known = [Observed("c1", RED, is_probe=False), Observed("c3", GREEN, is_probe=False)]
    end, built = run(line, lambda uri: RED if int(uri[1:]) >= 5 else GREEN, known)
    assert end == Found("c5", "c4")
    assert set(built) <= {"c4", "c5"}


@pytest.mark.spec("V411")
def test_a_culprit_is_named_only_once_it_was_red_twice() -> None:
    line = line_of(2)
    _, built = run(line, lambda uri: RED if uri == "c1" else GREEN)
    assert built == ["c0", "c1"]


@pytest.mark.spec("V411")
def test_a_contradiction_starts_the_search_over_once_and_a_second_one_ends_it() -> None:
    line = line_of(8)
    said = {"c3": [RED, GREEN], "c5": [RED, GREEN]}

    def flaky(uri: str) -> Said:
        if said.get(uri):
            return said[uri].pop(0)
        return RED if int(uri[1:]) >= 7 else GREEN

    end, _ = run(line, flaky)
    assert isinstance(end, Inconclusive)
    said.update(c3=[RED, GREEN], c5=[])
    assert run(line, flaky)[0] == Found("c7", "c6")


@pytest.mark.spec("V411")
@pytest.mark.parametrize("flaking", ["every build", "one commit"])
def test_builds_that_fail_by_chance_rarely_name_the_wrong_commit(flaking: str) -> None:
    wrong = 0
    for seed in range(1_000):
        chance = random.Random(seed)
        line = line_of(chance.randint(2, 60))
        culprit, flake = chance.randrange(len(line)), chance.randrange(len(line))

        odds = dict.fromkeys(line, 0.05) if flaking == "every build" else {line[flake]: 0.5}
        end, _ = run(line, partial(_by_chance, chance, set(line[culprit:]), odds))
        wrong += isinstance(end, Found) and end.culprit != line[culprit]
    assert wrong <= 50, wrong


def _by_chance(chance: random.Random, bad: set[str], odds: dict[str, float], uri: str) -> Said:
    return RED if uri in bad or chance.random() < odds.get(uri, 0) else GREEN


@pytest.mark.spec("V414")
def test_a_probe_without_a_verdict_is_tried_once_more_then_another_commit_is() -> None:
    line = line_of(9)
    end, built = run(
        line, lambda uri: NOTHING if uri == "c3" else RED if int(uri[1:]) >= 6 else GREEN
    )
    assert end == Found("c6", "c5")
    assert built.count("c3") == 2
    end, built = run(line, lambda _: NOTHING)
    assert isinstance(end, Inconclusive)
    assert (end.good, end.bad) == ("base", "c8")
    assert sorted(built) == sorted([uri for uri in line[:-1] for _ in range(2)])


def test_a_head_that_turns_out_green_names_nobody() -> None:
    line = line_of(4)
    end, _ = run(line, lambda _: GREEN)
    assert end == Inconclusive("the red head turned out green", "c3", "c3")
