"""One HTTP call to a sink: to an address that was looked at, no redirect, a capped answer."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from functools import cache
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from ssl import SSLContext
from typing import Any, Final

import httpx2

from domain.errors import Misconfigured, Refused, SinkOut
from extensions.text import clean

MOST: Final = 16 * 1024
SHOWN: Final = 300
NAT64: Final = ip_network("64:ff9b::/96")
GONE: Final = 410
HIDDEN: Final = "[hidden]"

Address = IPv4Address | IPv6Address


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    text: str
    after: float | None = None
    """Seconds to be left alone for, as it asked."""


@dataclass(frozen=True, slots=True)
class Caller:
    """Private, loopback and link-local addresses are refused unless a network in ``allow`` has
    them; what is in ``hidden`` never comes back in an error.
    """

    allow: tuple[str, ...] = ()
    hidden: Collection[str] = field(default=(), repr=False)

    async def accepted(
        self, method: str, url: str, headers: Mapping[str, str], body: bytes = b""
    ) -> Answer:
        """``Refused`` by 410 or for the address; every other answer but 2xx is ``SinkOut``."""
        answer = await self.call(method, url, headers, body)
        said = f"HTTP {answer.status}: {answer.text[:SHOWN]}"
        if answer.status == GONE:
            raise Refused(said)
        if not httpx2.codes.is_success(answer.status):
            raise SinkOut(said, answer.after)
        return answer

    async def call(
        self, method: str, url: str, headers: Mapping[str, str], body: bytes = b""
    ) -> Answer:
        """Without a timeout of its own: the limit of the activity is for all of it."""
        target, named = await self._pinned(url)
        try:
            async with (
                httpx2.AsyncClient(verify=_trusted(), trust_env=False, timeout=None) as client,
                client.stream(
                    method,
                    target,
                    headers={"accept-encoding": "identity", **headers, **named["headers"]},
                    content=body,
                    extensions=named["extensions"],
                ) as response,
            ):
                return Answer(response.status_code, await self._text(response), _after(response))
        except httpx2.HTTPError as error:
            # Its own words may hold the address, which may be a secret.
            raise SinkOut(f"no answer: {type(error).__name__}") from None

    async def _pinned(self, url: str) -> tuple[httpx2.URL, dict[str, Any]]:
        """The URL of the very address that was looked at: a second lookup could give another."""
        try:
            asked = httpx2.URL(url)
        except (httpx2.InvalidURL, TypeError):
            asked = httpx2.URL()
        if asked.scheme not in {"http", "https"} or not asked.host:
            raise Misconfigured("the address of the sink is no http or https URL")
        port = asked.port or (443 if asked.scheme == "https" else 80)
        address = await self._look_up(asked.host, port)
        named = {
            "headers": {"host": asked.netloc.decode("ascii")},
            "extensions": {"sni_hostname": asked.host},
        }
        return asked.copy_with(host=str(address)), named

    async def _look_up(self, host: str, port: int) -> Address:
        try:
            found = await asyncio.get_running_loop().getaddrinfo(
                host, port, type=socket.SOCK_STREAM
            )
        except OSError as error:
            raise SinkOut(f"the sink's name is not known: {error.strerror}") from None
        addresses = [ip_address(str(entry[4][0]).partition("%")[0]) for entry in found]
        if not addresses or not all(map(self._may_call, addresses)):
            raise Refused(
                "the sink's address is private, loopback or link-local: name its network in "
                "`allow` if it is meant"
            )
        return addresses[0]

    def _may_call(self, address: Address) -> bool:
        inner = _inner(address)
        allowed = any(inner in ip_network(network) for network in self.allow)
        return allowed or (inner.is_global and not inner.is_multicast)

    async def _text(self, response: httpx2.Response) -> str:
        read = b""
        async for part in response.aiter_raw():
            read += part
            if len(read) > MOST:
                break
        text = read[:MOST].decode(errors="replace")
        return clean(hide(text, self.hidden), MOST)


def hide(text: str, secrets: Collection[str]) -> str:
    for secret in sorted(filter(None, secrets), key=len, reverse=True):
        text = text.replace(secret, HIDDEN)
    return text


def variable(name: str) -> str:
    """``Misconfigured`` where it is not set."""
    if value := os.environ.get(name):
        return value
    raise Misconfigured(f"the variable {name} is not set where events are delivered")


def _inner(address: Address) -> Address:
    """What an IPv6 address that wraps an IPv4 one leads to."""
    if isinstance(address, IPv4Address):
        return address
    if address in NAT64:
        return IPv4Address(int(address) & 0xFFFFFFFF)
    return address.ipv4_mapped or address.sixtofour or address


@cache
def _trusted() -> SSLContext:
    return httpx2.create_ssl_context()


def _after(response: httpx2.Response) -> float | None:
    told = response.headers.get("retry-after", "").strip()
    if told.isdecimal():
        return float(told)
    try:
        return max(parsedate_to_datetime(told).timestamp() - time.time(), 0.0)
    except (ValueError, OverflowError):
        return None
