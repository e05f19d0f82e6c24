"""What every source control promises: the fake and git, by path and by file URL."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

import pytest

from domain.errors import Malformed, NotFound, Refused, SourceControlOut
from domain.gate import Ancestry
from domain.settings import QueueSettings
from extensions.sourcecontrol import git
from extensions.sourcecontrol.contract import Page, Promoted, Remotes, SourceControl
from extensions.sourcecontrol.fake import FakeRemotes, FakeSourceControl
from tests.extensions.remote import GREEN, MAIN, START, Remote

UNKNOWN = "f" * 40


class Stage(Protocol):
    """A source control and the hands that move its trunk."""

    @property
    def source(self) -> SourceControl: ...

    def land(self, *names: str, base: str | None = None) -> list[str]:
        """On top of the head, or a force-push on top of ``base``."""
        ...

    def land_elsewhere(self, name: str) -> None: ...
    def promotion(self) -> str | None: ...
    def point(self, uri: str | None) -> None: ...
    def protect(self, text: str) -> None: ...
    def go_out(self) -> None: ...
    def come_back(self) -> None: ...
    def before_push(self, action: Callable[[], None]) -> None: ...
    def land_dated(self, seconds: int) -> str: ...
    def land_written(self, author: str, message: str) -> str: ...
    def without_target(self) -> SourceControl: ...
    def answer_with(self, uri: str, monkeypatch: pytest.MonkeyPatch) -> None: ...
    def remotes(self) -> tuple[Remotes, Mapping[str, Callable[[], str]]]: ...


class FakeStage:
    def __init__(self) -> None:
        self.source = FakeSourceControl()

    def land(self, *names: str, base: str | None = None) -> list[str]:
        uris = [hashlib.sha1(name.encode()).hexdigest() for name in names]  # noqa: S324
        self.source.rewrite(base or self.source.tip, *uris)
        return uris

    def land_elsewhere(self, name: str) -> None:
        self.land(name)
        self.source.rewrite(None)

    def promotion(self) -> str | None:
        return self.source.promotion

    def point(self, uri: str | None) -> None:
        self.source.promotion = uri

    def protect(self, text: str) -> None:
        self.source.protected = text

    def go_out(self) -> None:
        self.source.out = True

    def come_back(self) -> None:
        self.source.out = False

    def before_push(self, action: Callable[[], None]) -> None:
        self.source.before_push = action

    def land_dated(self, seconds: int) -> str:
        (uri,) = self.land(f"at {seconds}")
        self.source.times[uri] = seconds if seconds > 0 else None
        return uri

    def land_written(self, author: str, message: str) -> str:
        (uri,) = self.land("written")
        self.source.texts[uri] = (author, message)
        return uri

    def without_target(self) -> SourceControl:
        self.source.has_target = False
        return self.source

    def answer_with(self, uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
        del monkeypatch
        self.source.latest_answers.append(uri)

    def remotes(self) -> tuple[Remotes, Mapping[str, Callable[[], str]]]:
        trunks = {f"refs/heads/{name}": FakeSourceControl() for name in "abc"}

        def moving(ref: str, trunk: FakeSourceControl) -> Callable[[], str]:
            def move() -> str:
                trunk.land(f"{ref} {len(trunk.parents)}")
                return str(trunk.tip)

            return move

        return FakeRemotes(trunks), {ref: moving(ref, trunk) for ref, trunk in trunks.items()}


class GitStage:
    def __init__(self, folder: Path, *, by_url: bool) -> None:
        self.folder = folder
        self.remote = Remote(folder / "remote.git")
        self.url = self.remote.path.as_uri() if by_url else str(self.remote.path)
        self.mirror = git.Mirror(self.url, [MAIN], folder / "mirrors" / "one")
        self.push = self.mirror.push
        self.source = self._bound(promote="green")

    def _bound(self, promote: str | None) -> git.GitSourceControl:
        settings = QueueSettings("q", self.url, "main", promote=promote)
        return git.GitSourceControl(self.mirror, settings)

    def land(self, *names: str, base: str | None = None) -> list[str]:
        return self.remote.land(*names, base=base)

    def land_elsewhere(self, name: str) -> None:
        self.remote.land(name, ref="refs/heads/other")

    def promotion(self) -> str | None:
        return self.remote.at(GREEN)

    def point(self, uri: str | None) -> None:
        self.remote.point(GREEN, uri)

    def protect(self, text: str) -> None:
        self.remote.protect(text)

    def go_out(self) -> None:
        self.remote.go_out()

    def come_back(self) -> None:
        self.remote.come_back()

    def before_push(self, action: Callable[[], None]) -> None:
        async def act_and_push(lease: str, pair: str) -> str:
            action()
            return await self.push(lease, pair)

        self.mirror.push = act_and_push  # type: ignore[method-assign]

    def land_dated(self, seconds: int) -> str:
        return self.remote.write(b"Ada", b"dated", seconds)

    def land_written(self, author: str, message: str) -> str:
        raw = message.encode(errors="surrogatepass")
        return self.remote.write(author.encode(errors="surrogatepass"), raw, START)

    def without_target(self) -> SourceControl:
        return self._bound(promote=None)

    def answer_with(self, uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
        async def read(*_: str) -> str:
            return f"{uri}\0{START}"

        monkeypatch.setattr(self.mirror, "read", read)

    def remotes(self) -> tuple[Remotes, Mapping[str, Callable[[], str]]]:
        names = [f"refs/heads/{name}" for name in "abc"]
        mirror = git.Mirror(self.url, names, self.folder / "mirrors" / "three")

        def moving(ref: str) -> Callable[[], str]:
            return lambda: self.remote.land(f"on {ref} at {self.remote.at(ref)}", ref=ref)[0]

        return mirror, {ref: moving(ref) for ref in names}


@pytest.fixture(params=["fake", "path", "url"])
def stage(request: pytest.FixtureRequest, tmp_path: Path) -> Stage:
    if request.param == "fake":
        return FakeStage()
    return GitStage(tmp_path, by_url=request.param == "url")


@pytest.mark.spec("V308")
async def test_latest_is_the_head_and_its_commit_time_in_one_answer(stage: Stage) -> None:
    *_, b = stage.land("a", "b")
    head = await stage.source.latest()
    assert head.uri == b
    assert head.committed_at == (await stage.source.change_info(b)).created_at
    (c,) = stage.land("c")
    assert (await stage.source.latest()).uri == c


@pytest.mark.spec("V308")
async def test_no_ref_or_an_empty_repository_is_not_found(stage: Stage) -> None:
    with pytest.raises(NotFound):
        await stage.source.latest()
    stage.land_elsewhere("x")
    with pytest.raises(NotFound):
        await stage.source.latest()
    with pytest.raises(NotFound):
        await stage.source.promote(UNKNOWN, None)


async def test_a_commit_without_a_plausible_time_is_answered_all_the_same(stage: Stage) -> None:
    future = stage.land_dated(4_102_444_800)
    assert (await stage.source.latest()).uri == future
    assert (await stage.source.latest()).committed_at == 4_102_444_800
    undated = stage.land_dated(0)
    head = await stage.source.latest()
    assert (head.uri, head.committed_at) == (undated, None)
    assert (await stage.source.change_info(undated)).created_at > 0


@pytest.mark.spec("V10")
@pytest.mark.parametrize("uri", ["u" * 1025, "", "a\x07b", "a\nb"], ids=["long", "none", "b", "n"])
async def test_a_uri_that_is_none_breaks_the_contract(
    stage: Stage, uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage.land("a")
    stage.answer_with(uri, monkeypatch)
    with pytest.raises(Malformed):
        await stage.source.latest()


@pytest.mark.spec("V309")
async def test_ancestry_is_yes_no_or_unknown(stage: Stage) -> None:
    a, b = stage.land("a", "b")
    assert await stage.source.is_ancestor(a, b) is Ancestry.YES
    assert await stage.source.is_ancestor(b, a) is Ancestry.NO
    assert await stage.source.is_ancestor(a, a) is Ancestry.YES
    for stranger in (UNKNOWN, "--help", "main", "", a[:8]):
        assert await stage.source.is_ancestor(a, stranger) is Ancestry.UNKNOWN
        assert await stage.source.is_ancestor(stranger, a) is Ancestry.UNKNOWN
        assert await stage.source.is_ancestor(stranger, stranger) is Ancestry.UNKNOWN


@pytest.mark.spec("V309")
async def test_a_remote_that_is_out_is_an_error_never_unknown(stage: Stage) -> None:
    (a,) = stage.land("a")
    await stage.source.latest()
    (b,) = stage.land("b")
    stage.go_out()
    with pytest.raises(SourceControlOut):
        await stage.source.is_ancestor(a, b)
    with pytest.raises(SourceControlOut):
        await stage.source.latest()
    with pytest.raises(SourceControlOut):
        await stage.source.promoted()
    with pytest.raises(SourceControlOut):
        await stage.source.promote(a, None)
    stage.come_back()
    assert await stage.source.is_ancestor(a, b) is Ancestry.YES


async def test_what_was_known_before_a_rewrite_is_known_after_it(stage: Stage) -> None:
    a, b = stage.land("a", "b")
    await stage.source.latest()
    (x,) = stage.land("x", base=a)
    assert (await stage.source.latest()).uri == x
    assert await stage.source.is_ancestor(b, x) is Ancestry.NO
    assert await stage.source.is_ancestor(a, b) is Ancestry.YES


@pytest.mark.spec("V310")
async def test_a_commit_on_the_ref_is_promoted_from_the_expected_value(stage: Stage) -> None:
    a, b, c = stage.land("a", "b", "c")
    assert await stage.source.promoted() is None
    assert await stage.source.promote(b, None) is Promoted.MOVED
    assert (stage.promotion(), await stage.source.promoted()) == (b, b)
    assert await stage.source.promote(c, b) is Promoted.MOVED
    assert await stage.source.promote(a, c) is Promoted.MOVED, "a is older"
    assert stage.promotion() == a
    assert await stage.source.promote(a, a) is Promoted.SAME


@pytest.mark.spec("V310")
async def test_promotion_moves_to_what_does_not_descend_from_its_value(stage: Stage) -> None:
    a, b = stage.land("a", "b")
    assert await stage.source.promote(b, None) is Promoted.MOVED
    (x,) = stage.land("x", base=a)
    assert await stage.source.promote(x, b) is Promoted.MOVED
    assert stage.promotion() == x


@pytest.mark.spec("V310")
async def test_what_is_off_the_ref_is_not_promoted(stage: Stage) -> None:
    a, b = stage.land("a", "b")
    await stage.source.promote(b, None)
    stage.land("x", base=a)
    for gone in (b, UNKNOWN, "--force", "main"):
        with pytest.raises(NotFound):
            await stage.source.promote(gone, b)
    assert stage.promotion() == b


@pytest.mark.spec("V310")
async def test_another_value_there_is_moved_meanwhile(stage: Stage) -> None:
    a, b, c = stage.land("a", "b", "c")
    stage.point(b)
    assert await stage.source.promote(c, a) is Promoted.MOVED_MEANWHILE
    assert await stage.source.promote(c, None) is Promoted.MOVED_MEANWHILE
    stage.before_push(lambda: stage.point(a))
    assert await stage.source.promote(c, b) is Promoted.MOVED_MEANWHILE
    assert stage.promotion() == a


@pytest.mark.spec("V310")
async def test_no_target_is_success(stage: Stage) -> None:
    (a,) = stage.land("a")
    source = stage.without_target()
    assert await source.promote(a, None) is Promoted.NO_TARGET
    assert await source.promoted() is None
    assert stage.promotion() is None


@pytest.mark.spec("V155")
async def test_a_slow_promoter_never_moves_the_ref_back(stage: Stage) -> None:
    a, b, c = stage.land("a", "b", "c")
    stage.point(a)
    stage.before_push(lambda: stage.point(c))
    assert await stage.source.promote(b, a) is Promoted.MOVED_MEANWHILE
    assert await stage.source.promoted() == c
    assert await stage.source.promote(c, c) is Promoted.SAME


@pytest.mark.spec("V374")
async def test_a_lease_on_a_value_that_is_back_holds_and_is_corrected(stage: Stage) -> None:
    a, b, c = stage.land("a", "b", "c")
    stage.point(a)

    def go_on_and_back() -> None:
        stage.point(c)
        stage.point(a)

    stage.before_push(go_on_and_back)
    assert await stage.source.promote(b, a) is Promoted.MOVED
    stage.before_push(lambda: None)
    assert await stage.source.promote(a, b) is Promoted.MOVED
    assert stage.promotion() == a


@pytest.mark.spec("V159")
async def test_a_protected_ref_is_refused_with_the_remotes_text(stage: Stage) -> None:
    (a,) = stage.land("a")
    stage.protect("only the release team moves green")
    with pytest.raises(Refused, match="only the release team moves green"):
        await stage.source.promote(a, None)
    assert stage.promotion() is None


@pytest.mark.spec("V161")
async def test_a_missing_promotion_ref_is_created_only_while_it_is_missing(stage: Stage) -> None:
    a, b = stage.land("a", "b")
    stage.before_push(lambda: stage.point(a))
    assert await stage.source.promote(b, None) is Promoted.MOVED_MEANWHILE
    assert stage.promotion() == a
    stage.point(None)
    stage.before_push(lambda: None)
    assert await stage.source.promote(b, None) is Promoted.MOVED
    assert stage.promotion() == b


async def pages(source: SourceControl, base: str | None, head: str, limit: int) -> list[Page]:
    found = [await source.commits_between(base, head, limit=limit)]
    while (cursor := found[-1].cursor) is not None:
        found.append(await source.commits_between(base, head, cursor=cursor, limit=limit))
    return found


@pytest.mark.spec("V311")
@pytest.mark.parametrize("limit", [1, 2, 3, 5, 6, 500])
async def test_pages_of_any_size_are_complete_and_newest_first(stage: Stage, limit: int) -> None:
    a, *rest = stage.land("a", "b", "c", "d", "e", "f")
    found = await pages(stage.source, a, rest[-1], limit)
    assert [uri for page in found for uri in page.uris] == rest[::-1]
    assert all(len(page.uris) == limit for page in found[:-1])
    everything = await pages(stage.source, None, rest[-1], limit)
    assert [uri for page in everything for uri in page.uris] == [a, *rest][::-1]
    assert await pages(stage.source, a, a, limit) == [Page((), None)]


@pytest.mark.spec("V311")
async def test_a_base_that_is_no_ancestor_leaves_what_only_the_head_has(stage: Stage) -> None:
    a, b, c = stage.land("a", "b", "c")
    await stage.source.latest()
    x, y = stage.land("x", "y", base=a)
    await stage.source.latest()
    assert (await stage.source.commits_between(c, y)).uris == (y, x)
    assert (await stage.source.commits_between(y, c)).uris == (c, b)


@pytest.mark.spec("V311")
async def test_an_unknown_side_or_cursor_is_not_found(stage: Stage) -> None:
    a, b = stage.land("a", "b")
    for base, head in ((UNKNOWN, b), (a, UNKNOWN), (None, UNKNOWN), ("--all", b), (a, "--all")):
        with pytest.raises(NotFound):
            await stage.source.commits_between(base, head)
    for cursor in ("nonsense", "", "-1", "99", UNKNOWN):
        with pytest.raises(NotFound):
            await stage.source.commits_between(None, b, cursor=cursor, limit=1)


@pytest.mark.spec("V312")
async def test_a_change_has_one_creation_time_the_one_latest_gave(stage: Stage) -> None:
    (a,) = stage.land("a")
    head = await stage.source.latest()
    change = await stage.source.change_info(a)
    assert change.created_at > 0
    assert change == await stage.source.change_info(a)
    assert change.created_at == head.committed_at
    assert (change.uri, bool(change.author), bool(change.title)) == (a, True, True)


@pytest.mark.spec("V312")
async def test_an_unknown_change_is_not_found(stage: Stage) -> None:
    (a,) = stage.land("a")
    for stranger in (UNKNOWN, "--help", "main", a[:8], ""):
        with pytest.raises(NotFound):
            await stage.source.change_info(stranger)


@pytest.mark.spec("V398")
async def test_what_a_commit_says_is_cleaned_and_cut(stage: Stage) -> None:
    long = "m" * 1_000_000
    uri = stage.land_written("Ad\x01a \u202e" + "n" * 999, "T\x1bitle\x7f \ud800 \u202e" + long)
    change = await stage.source.change_info(uri)
    assert change.author.startswith("Ad\ufffda \u202en")
    assert change.title.startswith("T\ufffditle\ufffd \ufffd")
    assert "\u202e" in change.title
    assert not {"\x01", "\x1b", "\x7f", "\ud800"} & {*change.author, *change.title}
    assert (len(change.author), len(change.title)) == (200, 300)
    assert all(text.endswith("… (cut)") for text in (change.author, change.title))


@pytest.mark.spec("V36")
async def test_one_call_tells_which_of_three_refs_moved(stage: Stage) -> None:
    remotes, move = stage.remotes()
    assert await remotes.refs() == {}
    there = {ref: land() for ref, land in move.items()}
    assert await remotes.refs() == there
    assert await remotes.refs() == there, "nothing moved"
    moved = move["refs/heads/b"]()
    assert await remotes.refs() == {**there, "refs/heads/b": moved}


@pytest.mark.spec("V321")
async def test_the_fake_can_fail_hang_answer_late_and_lose_an_answer() -> None:
    fake = FakeSourceControl("a", "b")
    fake.errors.append(NotFound("once"))
    with pytest.raises(NotFound, match="once"):
        await fake.latest()
    assert (await fake.latest()).uri == "b"
    fake.hang()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(fake.latest(), 0.01)
    late = asyncio.create_task(fake.latest())
    await asyncio.sleep(0)
    fake.answering.set()
    assert (await late).uri == "b"
    fake.lose_answer = True
    with pytest.raises(SourceControlOut):
        await fake.promote("b", None)
    assert (fake.promotion, await fake.promote("b", None)) == ("b", Promoted.SAME)
    assert (fake.pushes, fake.asked["promote"], fake.asked["latest"]) == (["b"], 2, 4)
