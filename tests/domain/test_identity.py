"""Names and ids: parsed once, compared as what they are."""

from __future__ import annotations

from itertools import combinations, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from domain.errors import Malformed
from domain.identity import (
    MAX_NUMBER,
    Fence,
    RequestId,
    build_id,
    commit_uri,
    idempotency_key,
    project_id,
    queue_name,
)
from workflows import ids

SEGMENTS = st.from_regex(r"[A-Za-z0-9._-]{1,12}", fullmatch=True).filter(
    lambda text: text not in (".", "..")
)
QUEUES = st.lists(SEGMENTS, min_size=1, max_size=4).map("/".join)
NUMBERS = st.integers(1, MAX_NUMBER)
LIKE_IDS = st.lists(
    st.sampled_from(["request", "queue", "hooks", "watch", "record", "buildsignal", "a", "1", "2"]),
    min_size=1,
    max_size=6,
).map("/".join)
"""Names of queues made to look like a part of somebody's id."""


@pytest.mark.spec("V1", "V2")
@pytest.mark.parametrize(("older", "newer"), [(7, 10), (9, 10), (1, MAX_NUMBER)])
def test_the_order_of_requests_is_numeric(older: int, newer: int) -> None:
    one, other = RequestId("main", older), RequestId("main", newer)
    assert one.is_older_than(other)
    assert not other.is_older_than(one)
    for each in (one, other):
        assert each == RequestId("main", each.number)
        assert not each.is_older_than(each)
    assert one != other


@pytest.mark.spec("V3")
def test_ids_of_two_queues_have_no_order() -> None:
    for one, other in (("a", "b"), ("b", "a"), ("a", "a/b")):
        with pytest.raises(Malformed):
            RequestId(one, 1).is_older_than(RequestId(other, 2))
    with pytest.raises(Malformed):
        RequestId.parse("request/a/b/3", queue="a")
    assert RequestId.parse("request/a/b/3", queue="a/b") == RequestId("a/b", 3)


BAD_NUMBERS = ["", "0", "-3", "+3", "007", "1.0", "1_000", " 7", "7 ", "\uff17", "abc", "7/x"]


@pytest.mark.spec("V4")
@pytest.mark.parametrize("number", [*BAD_NUMBERS, str(2**63)])
def test_a_number_that_is_not_canonical_is_refused(number: str) -> None:
    for _asked_twice in range(2):
        with pytest.raises(Malformed):
            RequestId.parse(f"request/main/{number}")


@pytest.mark.spec("V4")
def test_exactly_the_numbers_from_one_to_the_greatest_are_accepted() -> None:
    for number in (1, MAX_NUMBER):
        assert RequestId.parse(f"request/main/{number}").number == number
    assert MAX_NUMBER == 2**63 - 1
    for number in (-3, 0, 2**63):
        with pytest.raises(Malformed):
            RequestId("main", number)


@pytest.mark.parametrize("text", ["", "7", "main/7", "/main/7", "queue/main/7", "request/7", "x"])
def test_what_is_no_request_id_at_all_is_refused(text: str) -> None:
    with pytest.raises(Malformed):
        RequestId.parse(text)


@pytest.mark.spec("V5")
@given(queue=QUEUES | LIKE_IDS | st.just("a/3"), number=NUMBERS)
def test_an_id_that_is_written_and_parsed_is_the_same(queue: str, number: int) -> None:
    parsed = RequestId.parse(str(RequestId(queue, number)))
    assert (parsed.queue, parsed.number) == (queue, number)


@pytest.mark.spec("V6")
@pytest.mark.parametrize("name", ["main", "monorepo/main", "a.b/c-d_e", "a" * 200])
def test_good_queue_names(name: str) -> None:
    assert queue_name(name) == name


@pytest.mark.spec("V6")
@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("", "1 to 200 bytes"),
        ("a" * 201, "1 to 200 bytes"),
        ("ä" * 101, "1 to 200 bytes"),
        ("/a", "segment ''"),
        ("a/", "segment ''"),
        ("a//b", "segment ''"),
        ("a/../b", r"segment '\.\.'"),
        ("a/./b", r"segment '\.'"),
        ("a b", "segment 'a b'"),
        ("ä", "segment 'ä'"),
        ("a\n", "segment"),
    ],
)
def test_bad_queue_names_are_refused_with_the_reason(name: str, reason: str) -> None:
    with pytest.raises(Malformed, match=f"queue name .*{reason}"):
        queue_name(name)
    with pytest.raises(Malformed):
        RequestId(name, 1)


@pytest.mark.spec("V7")
@given(
    one=QUEUES | LIKE_IDS,
    other=QUEUES | LIKE_IDS,
    n=st.integers(1, 3),
    m=st.integers(1, 3),
    remote=st.from_regex(r"[0-9a-f]{16}", fullmatch=True),
)
def test_workflow_ids_of_different_kinds_differ(
    one: str, other: str, n: int, m: int, remote: str
) -> None:
    def kinds(queue: str, number: int) -> list[str]:
        return [
            ids.queue(queue),
            ids.build(queue, number),
            ids.buildsignal(queue, number, 1),
            ids.buildsignal(queue, number, 2),
            ids.record(queue, number),
            ids.hooks(queue, number),
            ids.watch(remote),
        ]

    made = [kinds(one, n), kinds(other, m)]
    for (i, a), (j, b) in product(enumerate(made[0]), enumerate(made[1])):
        assert i == j or a != b
    for mine in made:
        assert all(a != b for a, b in combinations(mine, 2))


@pytest.mark.spec("V10")
@pytest.mark.parametrize(
    "uri", ["", "x" * 1025, "ä" * 513, "a\nb", "a\x00", "a\x7f", "\x85", "\ud800"]
)
def test_a_uri_that_is_empty_too_long_or_holds_a_control_character_is_refused(uri: str) -> None:
    with pytest.raises(Malformed):
        commit_uri(uri)


def test_a_uri_may_have_1024_bytes() -> None:
    for uri in ("x", "x" * 1024, "ä" * 512):
        assert commit_uri(uri) == uri


@pytest.mark.spec("V9")
def test_uris_that_differ_only_a_little_are_different_commits() -> None:
    uris = ["https://h/A", "https://h/a", "https://h/a/", "h/\u00e4", "h/a\u0308"]
    assert len({commit_uri(uri) for uri in uris}) == len(uris)


@given(uri=st.text(st.characters(categories=["L", "N", "P", "S", "Zs"]), min_size=1, max_size=200))
def test_a_uri_is_never_normalised(uri: str) -> None:
    assert commit_uri(uri) == uri


def test_ids_of_builds_and_projects_have_limits() -> None:
    for parse in (build_id, project_id):
        assert parse("x" * 255) == "x" * 255
        for bad in ("", "x" * 256, "ä" * 128, "a\n"):
            with pytest.raises(Malformed):
                parse(bad)


@pytest.mark.parametrize("installation", ["", "xyz", "A" * 32, "0" * 31, "0" * 33, "0" * 32 + "\n"])
def test_an_installation_is_32_lower_case_hex_digits(installation: str) -> None:
    assert Fence("0123456789abcdef" * 2, 1).epoch == 1
    with pytest.raises(Malformed):
        Fence(installation, 1)


@pytest.mark.spec("V99")
def test_keys_of_attempts() -> None:
    request, own = RequestId("monorepo/main", 7), "0" * 32
    keys = [idempotency_key(own, request, attempt) for attempt in (1, 2, 3)]
    base = f"{own}/request/monorepo/main/7"
    assert keys == [base, f"{base}#2", f"{base}#3"]
