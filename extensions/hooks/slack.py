"""A channel of Slack, by an incoming webhook: what changed, whose commits, and how to see it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Final

from domain.event import EventType, HookEvent
from domain.sinks import SinkSettings
from extensions.calling import Caller, variable
from extensions.hooks.contract import About, Commit, Desk
from extensions.text import shown

TITLE: Final = 150
LINE: Final = 300
MOST: Final = 3_500
"""Characters of one message, below what Slack cuts."""


class SlackSink:
    def __init__(self, settings: SinkSettings, desk: Desk) -> None:
        self._settings = settings
        self._desk = desk

    async def deliver(self, event: HookEvent) -> None:
        own = self._settings
        url = own.url or variable(own.url_variable)
        about = await self._desk.about(event)
        message = {"text": "\n".join(_lines(event, about))[:MOST], "unfurl_links": False}
        headers = {"content-type": "application/json"}
        body = json.dumps(message).encode()
        await Caller(own.allow, () if own.url else (url,)).accepted("POST", url, headers, body)


def escape(text: str, limit: int = LINE) -> str:
    """Nobody is mentioned and nothing is linked or set in another face by a stranger's words."""
    plain = shown(text, limit).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return plain.replace("`", "'").replace("@", "@\u2060").replace("*", "\u2217")


def _lines(event: HookEvent, about: About) -> Iterator[str]:
    queue, commit = escape(event.queue), escape(about.uri[:12])
    yield f"*{queue}* {_said(event, about)} ({escape(event.payload['request_id'])}, {commit})"
    if about.culprit is not None:
        yield f"by {_commit(about.culprit)}"
    for one in about.commits:
        yield f"\u2022 {_commit(one)}"
    if (more := len(about.covered) + 1 - len(about.commits)) > 0 and about.commits:
        yield f"and {more} more"
    if about.verdict != "green" and about.log:
        yield "```" + "\n".join(escape(line) for line in about.log) + "```"
    if about.verdict != "green" and about.command:
        yield f"Try it: `git checkout {commit} && {escape(about.command)}`"
    if about.url:
        yield escape(about.url)


def _said(event: HookEvent, about: About) -> str:
    match event.type:
        case EventType.CULPRIT_FOUND:
            return "was broken"
        case EventType.RECORDED:
            return f"is {about.verdict}" if about.verdict else "has no verdict"
        case EventType.ABANDONED:
            return f"has no verdict: {about.cause}"
        case _:
            return escape(event.type.rpartition(".")[2])


def _commit(commit: Commit) -> str:
    return f"{commit.uri[:10]} {escape(commit.author, 60)}: {escape(commit.title, TITLE)}"
