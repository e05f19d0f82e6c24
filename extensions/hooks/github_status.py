"""The status of a commit on GitHub: one context for each queue, always as things stand now."""

from __future__ import annotations

import json
from typing import Final
from urllib.parse import quote

from domain.errors import SinkOut
from domain.event import EventType, HookEvent
from domain.sinks import SinkSettings
from extensions.calling import Caller, variable
from extensions.github.app import HEADERS, Installation, Tokens
from extensions.hooks.contract import About, Desk
from extensions.text import shown

API: Final = "https://api.github.com"
DESCRIPTION: Final = 140
SILENT: Final = frozenset({EventType.PROJECT_RECORDED, EventType.CULPRIT_FOUND})
COVERED: Final = "by {request}, which covers it"


class GitHubStatusSink:
    def __init__(self, settings: SinkSettings, desk: Desk, tokens: Tokens) -> None:
        self._settings = settings
        self._desk = desk
        self._tokens = tokens
        self._api = settings.url or API

    async def deliver(self, event: HookEvent) -> None:
        """Not as the event says: an older one that comes late, or twice, takes nothing back."""
        if event.type in SILENT:
            return
        about = await self._desk.about(event)
        request = event.payload["request_id"]
        said = f"{about.verdict or about.cause or about.state}, {request}"
        await self._put(event, about, about.uri, said)
        if self._settings.covered and about.verdict:
            for uri in about.covered:
                said = f"{about.verdict}, {COVERED.format(request=request)}"
                await self._put(event, about, uri, said)

    async def _put(self, event: HookEvent, about: About, uri: str, said: str) -> None:
        own = self._settings
        status = {
            "state": state_of(about),
            "context": f"lastgreen/{event.queue}",
            "description": shown(said, DESCRIPTION),
        }
        if (target := self._target(event, about, uri)) is not None:
            status["target_url"] = target
        await self._post(f"/repos/{quote(own.repository)}/statuses/{quote(uri, safe='')}", status)

    async def _post(self, path: str, status: dict[str, str]) -> None:
        own = self._settings
        app = Installation(own.app, own.installation, own.key, own.repository, "statuses")
        token = await self._tokens.of(app, self._api, own.allow) if own.app else variable(own.token)
        headers = {**HEADERS, "authorization": f"Bearer {token}"}
        body = json.dumps(status).encode()
        try:
            await Caller(own.allow, (token,)).accepted("POST", self._api + path, headers, body)
        except SinkOut:
            self._tokens.forget(app)
            raise

    def _target(self, event: HookEvent, about: About, uri: str) -> str | None:
        if self._settings.target:
            named = {"queue": event.queue, "request": event.payload["request_id"], "commit": uri}
            filled = self._settings.target
            for name, value in named.items():
                filled = filled.replace(f"{{{name}}}", quote(value))
            return filled
        return about.url if about.url and about.url.startswith(("https://", "http://")) else None


def state_of(about: About) -> str:
    if about.verdict is not None:
        return "success" if about.verdict == "green" else "failure"
    return "pending" if about.state in {"accepted", "processing"} else "error"
