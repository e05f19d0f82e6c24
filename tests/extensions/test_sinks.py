"""What every sink promises, and what it makes of a stranger's words."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jwt
import pytest
import structlog
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from domain.errors import Misconfigured, Permanent, SinkOut
from domain.event import EventType, HookEvent
from domain.sinks import SinkSettings
from extensions.github.app import Tokens
from extensions.hooks.command import CommandSink
from extensions.hooks.contract import About, Commit, Sink
from extensions.hooks.fake import FakeSink
from extensions.hooks.github_status import GitHubStatusSink
from extensions.hooks.log import LogSink
from extensions.hooks.slack import SlackSink
from extensions.hooks.webhook import WebhookSink
from tests.receiver import Receiver, Says, receiving

EVENT = HookEvent("0" * 32, EventType.RECORDED, "shop/main", 7, 1_700_000_000_000)
RED = About("failed", "build_failed", "b" * 40, "broken", None, ("c" * 40,))
LOCAL = ("127.0.0.0/8",)
TOKEN = "canary-of-a-token"  # noqa: S105 - is looked for


@dataclass
class Desk:
    said: About = RED

    async def about(self, _: HookEvent) -> About:
        return self.said


@dataclass
class Bench:
    """A sink, what its other side has taken, and how that is told to refuse."""

    sink: Sink
    effects: Callable[[], list[Any]]
    refuse: Callable[[], None] | None = None
    mend: Callable[[], None] | None = None


def _web(sink: Sink, receiver: Receiver) -> Bench:
    taken: list[Any] = []

    def effects() -> list[Any]:
        taken[:] = [got for got, took in zip(receiver.got, refused, strict=False) if took]
        return [json.dumps(got.json, sort_keys=True) for got in taken]

    refused: list[bool] = [True] * 2

    def refuse() -> None:
        receiver.usual = Says(500)
        refused[:] = [False]

    def mend() -> None:
        receiver.usual = Says(200)
        refused.extend([True] * 2)

    return Bench(sink, effects, refuse, mend)


@asynccontextmanager
async def bench(kind: str, folder: Path) -> AsyncIterator[Bench]:
    if kind == "fake":
        fake = FakeSink()

        def out(error: Exception | None) -> None:
            fake.out = error

        yield Bench(
            fake, lambda: [e.id for e in fake.heard], lambda: out(OSError()), lambda: out(None)
        )
    elif kind == "log":
        with structlog.testing.capture_logs() as lines:
            yield Bench(LogSink(), lambda: [json.dumps({**line}) for line in lines])
    elif kind == "command":
        script = f"test ! -e {folder}/no && cat >> {folder}/heard"
        own = SinkSettings("x", kind, command=("/bin/sh", "-c", script))
        heard, no = folder / "heard", folder / "no"
        yield Bench(
            CommandSink(own, "lastgreen"),
            lambda: heard.read_text().splitlines() if heard.exists() else [],
            no.touch,
            no.unlink,
        )
    else:
        async with receiving() as receiver:
            yield _web(_sink_of(kind, receiver), receiver)


def _sink_of(kind: str, receiver: Receiver, desk: Desk | None = None, **more: Any) -> Sink:
    desk = desk or Desk()
    if kind == "webhook":
        own = SinkSettings("x", kind, url=receiver.url, secrets=("HOOK",), allow=LOCAL)
        return WebhookSink(own, "lastgreen")
    if kind == "slack":
        return SlackSink(SinkSettings("x", kind, url=receiver.url, allow=LOCAL), desk)
    url = receiver.url.removesuffix("/hook")
    given: dict[str, Any] = {"url": url, "repository": "acme/shop", "token": "TOKEN"} | more
    return GitHubStatusSink(SinkSettings("x", kind, allow=LOCAL, **given), desk, Tokens())


@pytest.fixture(autouse=True)
def _secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOOK", "whsec_" + "A" * 44)
    monkeypatch.setenv("TOKEN", TOKEN)


KINDS = ("log", "webhook", "slack", "github_status", "command", "fake")


@pytest.mark.spec("V276")
@pytest.mark.parametrize("kind", KINDS)
async def test_a_known_id_again_changes_nothing_that_matters(kind: str, tmp_path: Path) -> None:
    """Whoever hears it twice hears the same, and can tell by that it is the same."""
    async with bench(kind, tmp_path) as made:
        await made.sink.deliver(EVENT)
        await made.sink.deliver(EVENT)
        first, again = made.effects()
        assert first == again


@pytest.mark.spec("V276")
@pytest.mark.parametrize("kind", KINDS)
async def test_an_error_means_that_the_effect_did_not_happen(kind: str, tmp_path: Path) -> None:
    """The log has no other side that could refuse: it never fails."""
    async with bench(kind, tmp_path) as made:
        if made.refuse is not None and made.mend is not None:
            made.refuse()
            with pytest.raises((SinkOut, OSError)) as failed:
                await made.sink.deliver(EVENT)
            assert not isinstance(failed.value, Permanent)
            assert made.effects() == []
            made.mend()
        await made.sink.deliver(EVENT)
        assert len(made.effects()) == 1


HOSTILE = (
    "<!channel> @here *x* `y` <https://evil.test|click> \u202etxt.exe\u2066 \x00\x1b[31m\nnext"
)


async def test_slack_mentions_nobody_and_shows_what_hides() -> None:
    stranger = Commit("d" * 40, HOSTILE, HOSTILE + "x" * 1_000_000)
    about = replace(RED, commits=(stranger,), log=(HOSTILE,) * 3, command="make test")
    async with receiving() as receiver:
        await _sink_of("slack", receiver, Desk(about)).deliver(EVENT)
        (got,) = receiver.got
    text = got.json["text"]
    assert len(got.body) < 20_000
    assert not [bad for bad in ("<", ">", "\x00", "\x1b", "\u202e", "\u2066", "@h") if bad in text]
    assert "\\u202e" in text
    assert text.startswith("*shop/main* is broken (request/shop/main/7, bbbbbbbbbbbb)")
    assert "and 1 more" in text
    assert "git checkout bbbbbbbbbbbb &amp;&amp;" not in text


@pytest.mark.parametrize(
    ("about", "state"),
    [
        (replace(RED, state="processing", verdict=None, cause=""), "pending"),
        (replace(RED, verdict="green"), "success"),
        (RED, "failure"),
        (replace(RED, verdict="partly"), "failure"),
        (replace(RED, verdict=None, cause="trigger_failed"), "error"),
        (replace(RED, state="cancelled", verdict=None, cause="build_cancelled"), "error"),
    ],
)
async def test_github_gets_the_status_as_it_is_now_under_one_context(
    about: About, state: str
) -> None:
    async with receiving() as receiver:
        await _sink_of("github_status", receiver, Desk(about)).deliver(EVENT)
        (got,) = receiver.got
    assert got.path == f"/repos/acme/shop/statuses/{'b' * 40}"
    assert got.headers["authorization"] == f"Bearer {TOKEN}"
    assert (got.json["state"], got.json["context"]) == (state, "lastgreen/shop/main")


async def test_github_gets_it_for_what_is_covered_only_on_request() -> None:
    async with receiving() as receiver:
        sink = _sink_of("github_status", receiver, covered=True, target="https://x.test/{request}")
        await sink.deliver(EVENT)
        assert [got.path[-40:] for got in receiver.got] == ["b" * 40, "c" * 40]
        assert {got.json["target_url"] for got in receiver.got} == {
            "https://x.test/request/shop/main/7"
        }


async def test_a_token_that_is_said_back_is_in_no_error() -> None:
    async with receiving() as receiver:
        receiver.usual = Says(401, f"bad token {TOKEN}".encode())
        with pytest.raises(SinkOut, match="bad token") as failed:
            await _sink_of("github_status", receiver).deliver(EVENT)
    assert TOKEN not in str(failed.value)


APP: dict[str, Any] = {"app": "123", "installation": "45", "key": "APP_KEY", "token": ""}
ASKED, POSTED = "/app/installations/45/access_tokens", f"/repos/acme/shop/statuses/{'b' * 40}"


def _grant(receiver: Receiver, token: str) -> None:
    receiver.by_path[ASKED] = Says(201, json.dumps({"token": token}).encode())


async def test_a_github_app_asks_a_token_for_one_repository_and_keeps_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    key = rsa.generate_private_key(public_exponent=65_537, key_size=2_048)
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.TraditionalOpenSSL, NoEncryption())
    monkeypatch.setenv("APP_KEY", pem.decode())
    async with receiving() as receiver:
        _grant(receiver, "first")
        sink = _sink_of("github_status", receiver, **APP)
        await sink.deliver(EVENT)
        await sink.deliver(EVENT)
        asked, *posted = receiver.got
        assert [got.path for got in receiver.got] == [ASKED, POSTED, POSTED]
        assert {got.headers["authorization"] for got in posted} == {"Bearer first"}
        assert asked.json == {"repositories": ["shop"], "permissions": {"statuses": "write"}}
        signed = asked.headers["authorization"].removeprefix("Bearer ")
        assert jwt.decode(signed, key.public_key(), ["RS256"], issuer="123")

        _grant(receiver, "second")
        receiver.by_path[POSTED] = Says(401, b"not first")
        with pytest.raises(SinkOut, match=r"not \[hidden\]"):
            await sink.deliver(EVENT)
        del receiver.by_path[POSTED]
        await sink.deliver(EVENT)
        assert receiver.got[-1].headers["authorization"] == "Bearer second"


async def test_a_key_that_is_none_is_named_and_not_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("APP_KEY", TOKEN)
    async with receiving() as receiver:
        with pytest.raises(Misconfigured, match="APP_KEY holds no private key") as failed:
            await _sink_of("github_status", receiver, **APP).deliver(EVENT)
        assert receiver.got == []
    assert TOKEN not in str(failed.value)


@pytest.mark.parametrize("kind", ["webhook", "github_status", "command"])
async def test_a_strangers_words_are_in_no_other_sink(kind: str, tmp_path: Path) -> None:
    """They are about a request by its id, so there is nothing of a megabyte to escape."""
    stranger = Commit("d" * 40, HOSTILE, HOSTILE + "x" * 1_000_000)
    about = replace(RED, commits=(stranger,), log=(HOSTILE,), url="javascript:" + HOSTILE)
    async with receiving() as receiver:
        script = f"cat > {tmp_path}/heard"
        own = SinkSettings("x", "command", command=("/bin/sh", "-c", script))
        command = CommandSink(own, "lastgreen")
        sink = command if kind == "command" else _sink_of(kind, receiver, Desk(about))
        await sink.deliver(EVENT)
        body = receiver.got[0].body if receiver.got else (tmp_path / "heard").read_bytes()
    assert len(body) < 2_000
    assert not [word for word in (b"evil", b"202e", b"@here", b"xxx") if word in body]
