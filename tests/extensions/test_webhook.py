"""The webhook sink against a real server, checked by other people's libraries."""

from __future__ import annotations

import asyncio
import base64
import os
import socket
import ssl
import subprocess
from collections.abc import AsyncIterator
from email.utils import formatdate
from pathlib import Path
from time import time
from typing import Any

import httpx2
import pytest
import pytest_asyncio
from cloudevents.core.bindings.http import HTTPMessage, from_http
from cloudevents.core.formats.json import JSONFormat
from standardwebhooks import Webhook, WebhookVerificationError

from domain.errors import Misconfigured, Refused, SinkOut, Transient
from domain.event import EventType, HookEvent
from domain.sinks import SinkSettings
from extensions import calling
from extensions.calling import Caller
from extensions.hooks.webhook import WebhookSink
from tests.receiver import RESET, Receiver, Says, receiving

EVENT = HookEvent("0" * 32, EventType.RECORDED, "shop/main.x", 7, 1_700_000_000_000)
LOOPBACK = ("127.0.0.0/8",)
OLD, NEW = (f"whsec_{base64.b64encode(os.urandom(32)).decode()}" for _ in range(2))


@pytest_asyncio.fixture
async def receiver() -> AsyncIterator[Receiver]:
    async with receiving() as receiver:
        yield receiver


@pytest.fixture(autouse=True)
def _secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOOK_OLD", OLD)
    monkeypatch.setenv("HOOK_NEW", NEW)


def sink_to(url: str, **changed: Any) -> WebhookSink:
    given: dict[str, Any] = {"url": url, "secrets": ("HOOK_NEW",), "allow": LOOPBACK} | changed
    return WebhookSink(SinkSettings("board", "webhook", **given), "lastgreen")


@pytest.mark.spec("V273")
async def test_a_receivers_library_verifies_it_and_the_id_stays_over_attempts(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = sink_to(receiver.url)
    receiver.answers.append(Says(500))
    with pytest.raises(SinkOut):
        await sink.deliver(EVENT)
    later = time() + 100
    monkeypatch.setattr("extensions.hooks.webhook.time.time", lambda: later)
    await sink.deliver(EVENT)
    first, second = receiver.got
    assert first.headers["webhook-id"] == second.headers["webhook-id"]
    assert "." not in first.headers["webhook-id"]
    assert "." in EVENT.id
    assert int(second.headers["webhook-timestamp"]) == int(later)
    assert int(first.headers["webhook-timestamp"]) < int(later)
    for got in receiver.got:
        assert Webhook(NEW).verify(got.body, got.headers)["id"] == EVENT.id
        with pytest.raises(WebhookVerificationError):
            Webhook(NEW).verify(got.body.replace(b"7", b"8"), got.headers)
        with pytest.raises(WebhookVerificationError):
            Webhook(OLD).verify(got.body, got.headers)


@pytest.mark.spec("V273")
async def test_during_a_rotation_it_is_signed_with_both_secrets(receiver: Receiver) -> None:
    await sink_to(receiver.url, secrets=("HOOK_NEW", "HOOK_OLD")).deliver(EVENT)
    (got,) = receiver.got
    assert len(got.headers["webhook-signature"].split(" ")) == 2
    for secret in (OLD, NEW):
        assert Webhook(secret).verify(got.body, got.headers)


@pytest.mark.spec("V263")
async def test_what_arrives_is_a_cloud_event_in_structured_mode(receiver: Receiver) -> None:
    await sink_to(receiver.url).deliver(EVENT)
    (got,) = receiver.got
    assert got.headers["content-type"] == "application/cloudevents+json"
    event = from_http(HTTPMessage(got.headers, got.body), JSONFormat())
    assert (event.get_id(), event.get_type()) == (EVENT.id, str(EVENT.type))
    assert event.get_data() == EVENT.payload


@pytest.mark.parametrize("status", [200, 201, 202, 204])
async def test_2xx_is_done(receiver: Receiver, status: int) -> None:
    receiver.usual = Says(status, b"")
    await sink_to(receiver.url).deliver(EVENT)
    assert len(receiver.got) == 1


@pytest.mark.spec("V269")
@pytest.mark.parametrize("status", [302, 307, 400, 401, 404, 429, 500, 502, 503])
async def test_another_answer_may_pass_and_no_redirect_is_followed(
    receiver: Receiver, status: int
) -> None:
    elsewhere = {"location": receiver.url + "/elsewhere"}
    receiver.usual = Says(status, b"not now", elsewhere)
    with pytest.raises(SinkOut, match=f"HTTP {status}: not now") as failed:
        await sink_to(receiver.url).deliver(EVENT)
    assert isinstance(failed.value, Transient)
    assert [got.path for got in receiver.got] == ["/hook"]


@pytest.mark.spec("V269")
async def test_a_reset_or_a_closed_port_may_pass(receiver: Receiver) -> None:
    receiver.answers.append(RESET)
    with pytest.raises(SinkOut):
        await sink_to(receiver.url).deliver(EVENT)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with pytest.raises(SinkOut):
        await sink_to(f"http://127.0.0.1:{port}/").deliver(EVENT)


@pytest.mark.spec("V269")
async def test_410_is_for_good(receiver: Receiver) -> None:
    receiver.usual = Says(410, b"gone")
    with pytest.raises(Refused, match="410"):
        await sink_to(receiver.url).deliver(EVENT)


@pytest.mark.parametrize("status", [429, 503])
@pytest.mark.parametrize("form", ["seconds", "date", "nonsense"])
async def test_retry_after_is_told_on(receiver: Receiver, status: int, form: str) -> None:
    told = {"seconds": "120", "date": formatdate(time() + 120, usegmt=True), "nonsense": "soon"}
    receiver.usual = Says(status, b"", {"retry-after": told[form]})
    with pytest.raises(SinkOut) as failed:
        await sink_to(receiver.url).deliver(EVENT)
    after = failed.value.after
    assert after is None if form == "nonsense" else after is not None and 110 < after <= 120


INWARD = (
    "127.0.0.1", "127.1", "2130706433", "0x7f000001", "localhost", "0", "[::1]", "[::]",
    "[::ffff:127.0.0.1]", "[2002:7f00:1::]", "[64:ff9b::7f00:1]", "10.0.0.1", "172.16.0.1",
    "192.168.1.1", "169.254.169.254", "[fe80::1]", "[fd00::1]", "100.64.0.1", "224.0.0.1",
)  # fmt: skip


@pytest.mark.spec("V274", "V269")
@pytest.mark.parametrize("host", INWARD)
async def test_an_address_that_leads_inward_is_refused_and_nothing_connects(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch, host: str
) -> None:
    _without_connections(monkeypatch)
    with pytest.raises(Refused):
        await sink_to(f"http://{host}:{receiver.port}/hook", allow=()).deliver(EVENT)
    assert receiver.got == []


def _without_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    async def refuses(*_: Any, **__: Any) -> Any:
        raise AssertionError("it connects")

    monkeypatch.setattr(httpx2.AsyncClient, "send", refuses)


def resolves_to(monkeypatch: pytest.MonkeyPatch, *addresses: str) -> list[str]:
    """The world's names, one answer after another; the names that were asked for."""
    asked: list[str] = []

    async def getaddrinfo(host: str, port: int, **_: Any) -> Any:
        asked.append(host)
        found = addresses[min(len(asked), len(addresses)) - 1]
        return [(2, 1, 6, "", (address, port)) for address in found.split()]

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", getaddrinfo, raising=False)
    return asked


@pytest.mark.spec("V274", "V269")
@pytest.mark.parametrize("addresses", ["127.0.0.1", "10.0.0.9", "93.184.216.34 169.254.169.254"])
async def test_a_name_that_leads_inward_is_refused(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch, addresses: str
) -> None:
    _without_connections(monkeypatch)
    resolves_to(monkeypatch, addresses)
    with pytest.raises(Refused):
        await sink_to(f"http://sink.test:{receiver.port}/hook", allow=()).deliver(EVENT)
    assert receiver.got == []


@pytest.mark.spec("V274")
async def test_the_address_that_was_looked_at_is_the_one_that_is_called(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name that would lead elsewhere at a second lookup is not asked for again."""
    asked = resolves_to(monkeypatch, "127.0.0.1", "127.0.0.2")
    await sink_to(f"http://sink.test:{receiver.port}/hook").deliver(EVENT)
    assert asked == ["sink.test"]
    assert receiver.got[0].headers["host"] == f"sink.test:{receiver.port}"


@pytest.mark.spec("V274")
async def test_a_redirect_inward_is_not_followed() -> None:
    """The one who redirects is allowed; where it points is another server, and never called."""
    async with receiving() as outside, receiving() as inside:
        outside.usual = Says(307, b"", {"location": inside.url})
        with pytest.raises(SinkOut, match="307"):
            await sink_to(outside.url).deliver(EVENT)
        assert len(outside.got) == 1
        assert inside.got == []


async def test_a_name_that_is_not_known_may_become_known() -> None:
    with pytest.raises(SinkOut):
        await sink_to("https://nowhere.invalid/").deliver(EVENT)


@pytest.mark.parametrize("url", ["ftp://example.com/", "file:///etc/passwd", "nonsense", "http://"])
async def test_what_is_no_web_address_is_a_misconfiguration(url: str) -> None:
    with pytest.raises(Misconfigured):
        await sink_to(url).deliver(EVENT)


async def test_an_answer_is_read_to_a_limit_and_cleaned(receiver: Receiver) -> None:
    receiver.usual = Says(500, b"\x00\x1b[31m" + b"x" * 1_000_000)
    answer = await Caller(LOOPBACK).call("POST", receiver.url, {})
    assert len(answer.text) <= calling.MOST
    assert not set(answer.text) & set("\x00\x1b")


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tls")
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2",
         "-keyout", "key.pem", "-out", "cert.pem", "-subj", "/CN=sink.test",
         "-addext", "subjectAltName=DNS:sink.test"],
        cwd=folder, check=True, capture_output=True,
    )  # fmt: skip
    return folder


@pytest.mark.parametrize("host", ["sink.test", "other.test"])
async def test_a_certificate_must_be_for_the_name_although_the_address_is_called(
    monkeypatch: pytest.MonkeyPatch, certificate: Path, host: str
) -> None:
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(certificate / "cert.pem", certificate / "key.pem")
    trusts = ssl.create_default_context(cafile=certificate / "cert.pem")
    monkeypatch.setattr(calling, "_trusted", lambda: trusts)
    resolves_to(monkeypatch, "127.0.0.1")
    async with receiving(server) as receiver:
        delivery = sink_to(f"https://{host}:{receiver.port}/hook").deliver(EVENT)
        if host == "sink.test":
            await delivery
        else:
            with pytest.raises(SinkOut):
                await delivery
        assert len(receiver.got) == (host == "sink.test")


@pytest.mark.parametrize("value", [None, "", "short", "whsec_!!!", "whsec_c2hvcnQ="])
async def test_a_secret_that_is_none_is_a_misconfiguration_that_names_the_variable_alone(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch, value: str | None
) -> None:
    monkeypatch.delenv("HOOK_NEW")
    if value is not None:
        monkeypatch.setenv("HOOK_NEW", value)
    with pytest.raises(Misconfigured, match="HOOK_NEW") as failed:
        await sink_to(receiver.url).deliver(EVENT)
    assert not value or value not in str(failed.value).replace("whsec_ and", "")
    assert receiver.got == []


async def test_an_address_that_is_a_secret_is_in_no_error(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOOK_URL", receiver.url + "/canary")
    receiver.answers.append(Says(500, f"you asked {receiver.url}/canary as {NEW}".encode()))
    receiver.answers.append(RESET)
    sink = sink_to("", url_variable="HOOK_URL")
    for _ in range(2):
        with pytest.raises(SinkOut) as failed:
            await sink.deliver(EVENT)
        assert "canary" not in str(failed.value)
        assert NEW not in str(failed.value)
        assert failed.value.__suppress_context__ or failed.value.__cause__ is None
