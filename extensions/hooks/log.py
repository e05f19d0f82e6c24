"""A sink that writes each event as one line of the log."""

from __future__ import annotations

import structlog

from domain.event import HookEvent


class LogSink:
    async def deliver(self, event: HookEvent) -> None:
        log = structlog.get_logger("lastgreen.hooks")
        log.info(str(event.type), event_id=event.id, subject=event.subject, **event.payload)
