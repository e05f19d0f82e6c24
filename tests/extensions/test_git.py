"""What only git has to promise."""

from __future__ import annotations

import asyncio
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from domain.errors import Malformed, Misconfigured, NotFound, Refused, SourceControlOut
from domain.gate import Ancestry
from domain.settings import QueueSettings
from extensions.gitcommand import GitCommand, GitFailed, check_ref, check_url, classify
from extensions.sourcecontrol import git
from extensions.sourcecontrol.contract import Promoted
from extensions.sourcecontrol.git import GitSourceControl, Mirror
from tests.extensions.remote import GREEN, MAIN, Remote

IGNORED = "[uploadpack]\nallowFilter = false\n"
REFUSED = "[uploadpackfilter]\nallow = false\n"


@pytest.fixture
def remote(tmp_path: Path) -> Remote:
    return Remote(tmp_path / "remote.git")


def bound(remote: Remote | str, directory: Path, promote: str | None = "green") -> GitSourceControl:
    url = remote if isinstance(remote, str) else str(remote.path)
    settings = QueueSettings("q", url, "main", promote=promote)
    return GitSourceControl(Mirror(url, [MAIN], directory), settings)


async def kinds(directory: Path) -> set[str]:
    """The kinds of objects that are there, without fetching any."""
    check = ("cat-file", "--batch-all-objects", "--batch-check=%(objecttype)")
    return set((await GitCommand(directory, directory.parent).run(*check, offline=True)).split())


@pytest.mark.spec("V376")
@pytest.mark.parametrize("filtering", ["", IGNORED, REFUSED], ids=["allowed", "ignored", "refused"])
async def test_promotion_fetches_first_and_sends_nothing_that_the_remote_has(
    remote: Remote, tmp_path: Path, filtering: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    remote.configure(filtering + "[receive]\nunpackLimit = 1\n")
    commands: list[tuple[str, ...]] = []
    run = GitCommand.run

    async def noted(self: GitCommand, *arguments: str, **options: Any) -> str:
        commands.append(arguments)
        if "push" in arguments:
            remote.land("landed between fetch and push")
        return await run(self, *arguments, **options)

    monkeypatch.setattr(GitCommand, "run", noted)
    source = bound(remote, tmp_path / "mirror")
    a, b, _ = remote.land("a", "b", "c")
    assert (await source.latest()).uri != b
    (moved,) = remote.land("by hand", base=a, ref=GREEN)
    (d,) = remote.land("d")
    had = remote.packs()
    commands.clear()
    assert await source.promote(d, moved) is Promoted.MOVED
    assert remote.at(GREEN) == d
    fetch, push = (i for i, c in enumerate(commands) if {"fetch", "push"} & {*c})
    assert fetch < push
    assert f"--force-with-lease={GREEN}:{moved}" in commands[push]
    assert "push.negotiate=true" in commands[push]
    assert remote.packs() == had
    assert await kinds(tmp_path / "mirror") == {"commit"} | (
        {"tree", "blob"} if filtering else set()
    )


@pytest.mark.parametrize("expected", [None, "first"])
async def test_of_six_promoters_one_wins(
    remote: Remote, tmp_path: Path, expected: str | None
) -> None:
    first, *uris = remote.land("first", *"abcdef")
    if expected is not None:
        expected = first
        remote.point(GREEN, first)
    promoters = [bound(remote, tmp_path / f"mirror{n}") for n in range(6)]
    await asyncio.gather(*(promoter.latest() for promoter in promoters))
    pairs = zip(promoters, uris, strict=True)
    answers = await asyncio.gather(*(source.promote(uri, expected) for source, uri in pairs))
    assert sorted(answers) == [Promoted.MOVED] + [Promoted.MOVED_MEANWHILE] * 5
    assert remote.at(GREEN) == uris[answers.index(Promoted.MOVED)]


@pytest.mark.parametrize("filtering", ["", IGNORED, REFUSED], ids=["allowed", "ignored", "refused"])
async def test_a_rewritten_and_collected_remote_is_followed(
    remote: Remote, tmp_path: Path, filtering: str
) -> None:
    remote.configure(filtering)
    source = bound(remote, tmp_path / "mirror")
    a, b = remote.land("a", "b")
    await source.latest()
    x, y = remote.land("x", "y", base=a)
    remote.git("reflog", "expire", "--expire=now", "--all")
    remote.git("gc", "--quiet", "--prune=now")
    assert (await source.latest()).uri == y
    assert await source.is_ancestor(b, y) is Ancestry.NO
    assert await source.is_ancestor(a, b) is Ancestry.YES
    assert (await source.commits_between(b, y)).uris == (y, x)
    assert (await source.change_info(b)).title == "b"


def delete(mirror: Path) -> None:
    shutil.rmtree(mirror)


def halve(mirror: Path) -> None:
    delete(mirror)
    (mirror / "objects").mkdir(parents=True)
    (mirror / "HEAD").touch()


def lose_objects(mirror: Path) -> None:
    (mirror / "objects" / "pack").rename(mirror / "elsewhere")


def leave_a_lock(mirror: Path) -> None:
    (mirror / "refs" / "remotes" / "origin" / "heads" / "main.lock").touch()


def garble(mirror: Path) -> None:
    (mirror / "config").write_text("[broken")


@pytest.mark.parametrize("harm", [delete, halve, lose_objects, leave_a_lock, garble])
async def test_a_damaged_mirror_is_made_anew(
    remote: Remote, tmp_path: Path, harm: Callable[[Path], None]
) -> None:
    mirror = tmp_path / "mirrors" / "one"
    source = bound(remote, mirror)
    (a,) = remote.land("a")
    await source.latest()
    (b,) = remote.land("b")
    harm(mirror)
    assert (await source.latest()).uri == b
    assert await source.is_ancestor(a, b) is Ancestry.YES
    delete(mirror)
    assert await source.is_ancestor(a, b) is Ancestry.YES, "a read makes it anew, too"


async def test_a_remote_in_trouble_costs_the_mirror_nothing(remote: Remote, tmp_path: Path) -> None:
    source = bound(remote, tmp_path / "mirror")
    a, b = remote.land("a", "b")
    await source.latest()
    remote.land("x", base=a)
    remote.go_out()
    with pytest.raises(SourceControlOut):
        await source.latest()
    assert await source.is_ancestor(a, b) is Ancestry.YES


@pytest.mark.parametrize("filtering", ["", IGNORED, REFUSED], ids=["allowed", "ignored", "refused"])
async def test_packs_are_joined_and_nothing_is_forgotten(
    remote: Remote, tmp_path: Path, filtering: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    remote.configure(filtering)
    monkeypatch.setattr(git, "MAX_PACKS", 2)
    mirror = tmp_path / "mirror"
    source = bound(remote, mirror)
    a, b = remote.land("a", "b")
    await source.latest()
    tip = b
    for name in "cdef":
        (tip,) = remote.land(name, base=a)
        assert (await source.latest()).uri == tip
    assert len(list((mirror / "objects" / "pack").glob("*.pack"))) <= 3
    remote.git("gc", "--quiet", "--prune=now")
    assert await source.is_ancestor(b, tip) is Ancestry.NO
    assert await source.promote(tip, None) is Promoted.MOVED


async def test_mirrors_of_one_directory_take_turns(remote: Remote, tmp_path: Path) -> None:
    (a,) = remote.land("a")
    sources = [bound(remote, tmp_path / "mirror") for _ in range(5)]
    heads = await asyncio.gather(*(source.latest() for source in sources))
    assert {head.uri for head in heads} == {a}


async def test_a_merge_brings_each_commit_once_newest_first(remote: Remote, tmp_path: Path) -> None:
    a, b = remote.land("a", "b")
    x, y = remote.land("x", "y", base=a, ref="refs/heads/side")
    tree = remote.git("rev-parse", f"{b}^{{tree}}")
    merge = remote.git("commit-tree", "-m", "merge", "-p", b, "-p", y, tree)
    remote.point(MAIN, merge)
    found = (await bound(remote, tmp_path / "mirror").commits_between(a, merge)).uris
    assert found == (merge, y, x, b)


async def test_a_ref_that_is_a_tag_is_followed_to_its_commit(
    remote: Remote, tmp_path: Path
) -> None:
    (a,) = remote.land("a")
    remote.git("tag", "-a", "-m", "tagged", "v1", a)
    url = str(remote.path)
    mirror = Mirror(url, ["refs/tags/v1"], tmp_path / "mirror")
    source = GitSourceControl(mirror, QueueSettings("q", url, "refs/tags/v1"))
    assert (await source.latest()).uri == a
    assert await mirror.refs() == {"refs/tags/v1": a}


async def test_a_repository_that_does_not_exist_is_not_found(tmp_path: Path) -> None:
    for url in (str(tmp_path / "none"), (tmp_path / "none").as_uri()):
        source = bound(url, tmp_path / "mirror")
        with pytest.raises(NotFound):
            await source.latest()
        with pytest.raises(NotFound):
            await source.promoted()


async def test_a_port_nobody_listens_on_is_out(tmp_path: Path) -> None:
    source = bound("git://127.0.0.1:9/x", tmp_path / "mirror")
    with pytest.raises(SourceControlOut):
        await source.latest()
    with pytest.raises(SourceControlOut):
        await source.is_ancestor("a" * 40, "b" * 40)


async def test_a_remote_that_goes_out_before_the_push_is_out(
    remote: Remote, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (a,) = remote.land("a")
    push = Mirror.push

    async def too_late(self: Mirror, lease: str, pair: str) -> str:
        remote.go_out()
        return await push(self, lease, pair)

    monkeypatch.setattr(Mirror, "push", too_late)
    with pytest.raises(SourceControlOut):
        await bound(remote, tmp_path / "mirror").promote(a, None)
    assert not (remote.path / GREEN).exists()


async def test_a_target_below_another_branch_is_refused(remote: Remote, tmp_path: Path) -> None:
    (a,) = remote.land("a")
    remote.point(GREEN, a)
    with pytest.raises(Refused):
        await bound(remote, tmp_path / "mirror", promote="green/main").promote(a, None)


HOSTILE_URLS = [
    "--upload-pack=touch pwned",
    "-x",
    "ext::sh -c touch% pwned",
    "fd::17",
    "foo://host/x",
    "ssh://-oProxyCommand=touch pwned/x",
    "git@-oProxyCommand=touch pwned:x",
    "host:-x",
    "a\nb",
    "a\x00b",
    "",
]


@pytest.mark.spec("V313")
@pytest.mark.parametrize("url", HOSTILE_URLS)
def test_a_hostile_address_is_refused_by_name(url: str, tmp_path: Path) -> None:
    with pytest.raises(Malformed) as refused:
        Mirror(url, [MAIN], tmp_path / "mirror")
    assert repr(url) in str(refused.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.spec("V313")
@pytest.mark.parametrize("ref", ["--exec=touch pwned", "-x", "a..b", "a b", "a\nb", "a:b", ""])
def test_a_hostile_ref_is_refused_by_name(ref: str, remote: Remote, tmp_path: Path) -> None:
    mirror = Mirror(str(remote.path), [MAIN], tmp_path / "mirror")
    for settings in (
        QueueSettings("q", str(remote.path), ref),
        QueueSettings("q", str(remote.path), "main", promote=ref),
    ):
        with pytest.raises(Malformed) as refused:
            GitSourceControl(mirror, settings)
        assert repr(ref) in str(refused.value)


def test_a_plus_is_part_of_a_name_and_no_force() -> None:
    assert check_ref("+a") == "refs/heads/+a"


@pytest.mark.spec("V313")
async def test_a_hostile_configuration_is_not_read(
    remote: Remote, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pwned = tmp_path / "pwned"
    command = f"ext::sh -c touch% {pwned}"
    (tmp_path / ".gitconfig").write_text(
        f'[url "{command}#"]\ninsteadOf = {remote.path}\n[protocol]\nallow = always\n'
        f"[core]\nsshCommand = touch {pwned}\nfsmonitor = touch {pwned}\n"
    )
    hostile = {
        "HOME": str(tmp_path),
        "XDG_CONFIG_HOME": str(tmp_path),
        "GIT_CONFIG_GLOBAL": str(tmp_path / ".gitconfig"),
        "GIT_CONFIG_COUNT": "1",
        "GIT_CONFIG_KEY_0": f"url.{command}#.insteadOf",
        "GIT_CONFIG_VALUE_0": str(remote.path),
        "GIT_DIR": str(tmp_path / "elsewhere"),
        "GIT_ALLOW_PROTOCOL": "ext",
        "GIT_ASKPASS": f"touch {pwned}",
        "GIT_PROXY_COMMAND": f"touch {pwned}",
        "GIT_SSH": f"touch {pwned}",
        "GIT_TRACE": str(pwned),
    }
    for name, value in hostile.items():
        monkeypatch.setenv(name, value)
    (a,) = remote.land("a")
    source = bound(remote, tmp_path / "mirrors" / "one")
    assert (await source.latest()).uri == a
    assert await source.promote(a, None) is Promoted.MOVED
    assert not pwned.exists()


@pytest.mark.spec("V313")
async def test_a_demand_for_a_password_is_misconfigured_and_never_waits(tmp_path: Path) -> None:
    async def demand(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        answer = b'HTTP/1.1 401 No\r\nWWW-Authenticate: Basic realm="x"\r\n'
        writer.write(answer + b"Content-Length: 0\r\nConnection: close\r\n\r\n")
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(demand, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        for who in ("", "ada@", "ada:secret@"):
            source = bound(f"http://{who}127.0.0.1:{port}/x", tmp_path / "mirror")
            before = time.monotonic()
            with pytest.raises(Misconfigured, match=f"127.0.0.1:{port}") as refused:
                await source.latest()
            assert time.monotonic() - before < 5
            assert "secret" not in str(refused.value)


@pytest.mark.spec("V313")
async def test_ssh_may_not_ask_anything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ssh = tmp_path / "ssh"
    ssh.write_text(f"#!/bin/sh\necho \"$@\" > {tmp_path}/asked\necho 'Permission denied' >&2\n")
    ssh.chmod(0o755)
    monkeypatch.setenv("GIT_SSH_COMMAND", str(ssh))
    with pytest.raises(Misconfigured, match="Permission denied"):
        await bound("git@example.org:x", tmp_path / "mirror").latest()
    assert "-oBatchMode=yes" in (tmp_path / "asked").read_text()


async def test_a_command_ends_with_its_time_and_with_its_caller(tmp_path: Path) -> None:
    command = GitCommand(tmp_path, tmp_path)
    sleep = ("-c", f"alias.wait=!echo $$ > {tmp_path}/pid; exec sleep 60", "wait")
    with pytest.raises(GitFailed) as late:
        await command.run(*sleep, timeout=0.2)
    assert isinstance(classify(late.value), SourceControlOut)
    first = int((tmp_path / "pid").read_text())
    (tmp_path / "pid").unlink()
    running = asyncio.create_task(command.run(*sleep))
    while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text():  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    for pid in (first, int((tmp_path / "pid").read_text())):
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("remote: Repository not found.\nfatal: repository 'https://x/y/' not found", NotFound),
        ("fatal: '/x' does not appear to be a git repository", NotFound),
        ("git@x: Permission denied (publickey).\nCould not read from remote", Misconfigured),
        ("fatal: could not read Username for 'https://x': prompts disabled", Misconfigured),
        ("Host key verification failed.", Misconfigured),
        ("The requested URL returned error: 403", Misconfigured),
        ("The requested URL returned error: 503", SourceControlOut),
        ("Could not resolve host: x", SourceControlOut),
        ("fatal: the remote end hung up unexpectedly", SourceControlOut),
        ("", SourceControlOut),
    ],
)
def test_gits_words_are_classified(text: str, expected: type[Exception]) -> None:
    assert type(classify(GitFailed(128, text))) is expected


def test_a_machine_without_git_says_so() -> None:
    failed = GitFailed(127, "env: 'git': No such file or directory")
    assert isinstance(classify(failed), Misconfigured)


def test_credentials_stay_out_of_what_is_said() -> None:
    failed = GitFailed(128, "fatal: unable to access 'https://ada:p@ss@example.org/x'")
    assert "ada" not in str(failed)
    assert "example.org/x" in str(failed)
    with pytest.raises(Malformed) as refused:
        check_url("https://ada:secret@example.org/\n")
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize("url", ["/a/b-c", "git@h:a/b", "https://h:80/-x", "ssh://u@h/x"])
def test_ordinary_addresses_pass(url: str) -> None:
    assert check_url(url) == url


def test_a_path_is_one_wherever_git_runs() -> None:
    assert check_url("some/where") == str(Path.cwd() / "some/where")
