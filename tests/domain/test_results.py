from __future__ import annotations

import math

import pytest

from domain import results
from domain.errors import ResultsRefused
from domain.results import ProjectResult, check_results

GOOD = (ProjectResult("a", 0.0), ProjectResult("b", 0.5), ProjectResult("c", 1.0))


def test_results_that_can_be_meant_are_taken_as_they_are() -> None:
    assert check_results(GOOD) == GOOD
    assert check_results(()) == ()


@pytest.mark.spec("V168")
@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        (ProjectResult("", 0.0), "result 4, ''"),
        (ProjectResult("b", 0.0), "result 4: 'b' is there twice"),
        (ProjectResult("d", 1.1), "result 4, 'd'.*1.1"),
        (ProjectResult("d", -0.1), "result 4, 'd'"),
        (ProjectResult("d", math.nan), "result 4, 'd'.*nan"),
        (ProjectResult("d\n", 0.0), "result 4.*control characters"),
        (ProjectResult("d" * 256, 0.0), "result 4.*255 bytes"),
    ],
)
def test_one_wrong_result_refuses_all_and_is_named(wrong: ProjectResult, named: str) -> None:
    with pytest.raises(ResultsRefused, match=named):
        check_results((*GOOD, wrong))


@pytest.mark.spec("V168")
def test_too_many_results_are_refused() -> None:
    most = [ProjectResult(f"p{number}", 0.0) for number in range(results.MOST)]
    assert len(check_results(most)) == results.MOST
    with pytest.raises(ResultsRefused, match="10001 project results, at most 10000"):
        check_results([*most, ProjectResult("more", 0.0)])
