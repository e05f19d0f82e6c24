"""Transactions that fail, or stop, at each of their statements."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import sqlalchemy as sa
from sqlalchemy.util import await_only

from tests.stores.story import Story

Act = Callable[[], Awaitable[Any]]


class Broken(Exception):
    pass


@contextmanager
def listening(story: Story, name: str, heard: Callable[..., None]) -> Iterator[None]:
    sa.event.listen(story.engine.sync_engine, name, heard)
    try:
        yield
    finally:
        sa.event.remove(story.engine.sync_engine, name, heard)


async def statements_of(story: Story, act: Act) -> list[str]:
    said: list[str] = []

    def heard(*arguments: Any) -> None:
        said.append(arguments[2])

    with listening(story, "before_cursor_execute", heard):
        await act()
    return said


async def fails_at_each_statement(story: Story, act: Act) -> int:
    """Run ``act`` with its k-th statement failing, for every k, and at its commit at last: each
    time every row of the store is as it was, and nobody was told. Then it runs, unharmed.
    """
    before, told = await story.rows(), len(story.commits)
    statement = 0
    is_over = False
    while not is_over:
        statement += 1
        seen = 0

        def fail(*_: Any, at: int = statement) -> None:
            nonlocal seen
            seen += 1
            if seen == at:
                raise Broken

        with listening(story, "before_cursor_execute", fail):
            try:
                with listening(story, "commit", _fail_of_writers):
                    await act()
            except Broken:
                is_over = seen < statement
        assert await story.rows() == before, f"statement {statement} left something behind"
        assert len(story.commits) == told
    await act()
    assert await story.rows() != before
    return statement - 1


def _fail_of_writers(connection: sa.Connection) -> None:
    if not connection.get_execution_options().get("reads", False):
        raise Broken


class Meeting:
    """Two transactions of one queue: the second comes when the first stands before a statement."""

    def __init__(self, first: Story, at: int) -> None:
        self._first = first
        self._at = at
        self._seen = 0
        self._here = asyncio.Event()
        self._go_on = asyncio.Event()
        self.holds_queue = False
        """The first had taken the queue's row when the second came."""

    async def of(self, one: Act, other: Act) -> tuple[Any, Any, bool]:
        """What each answered or raised; whether the first came as far as the statement."""
        with listening(self._first, "before_cursor_execute", self._pause):
            first = asyncio.ensure_future(_outcome(one))
            here = asyncio.ensure_future(self._here.wait())
            await asyncio.wait([first, here], return_when=asyncio.FIRST_COMPLETED)
            here.cancel()
            second = asyncio.ensure_future(_outcome(other))
            await asyncio.wait([second], timeout=0.003 if self.holds_queue else 0.1)
            if self.holds_queue and not first.done():
                assert not second.done()
            self._go_on.set()
            outcomes = await first, await second
        return *outcomes, self._here.is_set()

    def _pause(self, *arguments: Any) -> None:
        self._seen += 1
        if self._seen == self._at:
            self._here.set()
            await_only(self._go_on.wait())
        elif not self._here.is_set():
            self.holds_queue |= "INSERT INTO queues" in arguments[2]


async def _outcome(act: Act) -> Any:
    try:
        return await act()
    except Exception as error:  # noqa: BLE001 - an outcome as any
        return error
