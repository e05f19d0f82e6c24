"""Tokens of a GitHub App: each for one repository and one purpose, good for an hour."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field
from typing import Final

import jwt

from domain.errors import Misconfigured, SinkOut
from extensions.calling import Caller, variable

SKEW: Final = 60
"""Seconds that GitHub's clock may be behind ours."""
SIGNED_FOR: Final = 540
KEPT: Final = 50 * 60
HEADERS: Final = {
    "accept": "application/vnd.github+json",
    "content-type": "application/json",
    "user-agent": "lastgreen",
}


@dataclass(frozen=True, slots=True)
class Installation:
    """``key`` is the variable with the App's private key."""

    app: str
    id: str
    key: str
    repository: str
    permission: str


@dataclass
class Tokens:
    """Shared by all who ask in one process."""

    _known: dict[Installation, tuple[float, str]] = field(
        default_factory=dict[Installation, tuple[float, str]], repr=False
    )

    async def of(self, asked: Installation, api: str, allow: tuple[str, ...]) -> str:
        until, token = self._known.get(asked, (0.0, ""))
        if time.monotonic() >= until:
            token = await _granted(asked, api, allow)
            self._known[asked] = (time.monotonic() + KEPT, token)
        return token

    def forget(self, asked: Installation) -> None:
        self._known.pop(asked, None)


async def _granted(asked: Installation, api: str, allow: tuple[str, ...]) -> str:
    key = variable(asked.key)
    signed = _signed(asked, key)
    limited = {
        "repositories": [asked.repository.rpartition("/")[2]],
        "permissions": {asked.permission: "write"},
    }
    answer = await Caller(allow, (key, signed)).accepted(
        "POST",
        f"{api}/app/installations/{asked.id}/access_tokens",
        {**HEADERS, "authorization": f"Bearer {signed}"},
        json.dumps(limited).encode(),
    )
    try:
        return str(json.loads(answer.text)["token"])
    except (ValueError, KeyError, TypeError):
        raise SinkOut("GitHub answered without a token") from None


def _signed(asked: Installation, key: str) -> str:
    now = int(time.time())
    claims = {"iat": now - SKEW, "exp": now + SIGNED_FOR, "iss": asked.app}
    try:
        return jwt.encode(claims, key, algorithm="RS256")
    except (ValueError, jwt.PyJWTError):
        raise Misconfigured(f"the variable {asked.key} holds no private key in PEM") from None
