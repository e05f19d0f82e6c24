"""A sink somewhere on the web: CloudEvents, signed as Standard Webhooks has it."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
import time
from typing import Final

from domain.errors import Misconfigured
from domain.event import HookEvent
from domain.sinks import SinkSettings
from extensions.calling import Caller, variable
from extensions.hooks.envelope import CONTENT_TYPE, cloud_event

PREFIX: Final = "whsec_"
SHORTEST: Final = 24
"""Bytes of a secret, as the specification asks."""


class WebhookSink:
    def __init__(self, settings: SinkSettings, source: str) -> None:
        self._settings = settings
        self._source = source

    async def deliver(self, event: HookEvent) -> None:
        own = self._settings
        url = own.url or variable(own.url_variable)
        secrets = {name: variable(name) for name in own.secrets}
        body = json.dumps(cloud_event(event, self._source)).encode()
        at = int(time.time())
        headers = {
            "content-type": CONTENT_TYPE,
            "user-agent": "lastgreen",
            "webhook-id": message_id(event),
            "webhook-timestamp": str(at),
            "webhook-signature": " ".join(
                _signature(_key(name, value), f"{message_id(event)}.{at}.".encode() + body)
                for name, value in secrets.items()
            ),
        }
        hidden = [*secrets.values(), *([] if own.url else [url])]
        await Caller(own.allow, hidden).accepted("POST", url, headers, body)


def message_id(event: HookEvent) -> str:
    """Stable, and free of the dot that separates what is signed."""
    return f"evt_{hashlib.sha256(event.id.encode()).hexdigest()[:32]}"


def _signature(key: bytes, signed: bytes) -> str:
    digest = hmac.new(key, signed, hashlib.sha256).digest()
    return f"v1,{base64.b64encode(digest).decode()}"


def _key(name: str, secret: str) -> bytes:
    try:
        key = base64.b64decode(secret.removeprefix(PREFIX), validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if len(key) < SHORTEST:
        raise Misconfigured(
            f"the variable {name} holds no signing secret: {PREFIX} and the base64 of {SHORTEST} "
            "random bytes or more"
        )
    return key
