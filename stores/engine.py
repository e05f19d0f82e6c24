"""The database: how a connection is opened, and what its errors mean."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from typing import Any, Final
from weakref import WeakKeyDictionary

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

from domain.errors import Invariant, StoreOut, ValueRefused

BUSY_TIMEOUT_MS: Final = 20_000
_WRITERS: Final = WeakKeyDictionary[AsyncEngine, asyncio.Lock]()


def open_engine(url: str) -> AsyncEngine:
    """``sqlite+aiosqlite:///<path>``."""
    engine = create_async_engine(url, pool_pre_ping=not url.startswith("sqlite"))
    if engine.dialect.name == "sqlite":
        sa.event.listen(engine.sync_engine, "connect", _configure_sqlite)
        sa.event.listen(engine.sync_engine, "begin", _begin_sqlite)
        sa.event.listen(engine.sync_engine, "before_cursor_execute", _refuse_nul)
    return engine


def _configure_sqlite(connection: sqlite3.Connection, _record: object) -> None:
    connection.isolation_level = None  # the driver begins nothing by itself: see _begin_sqlite
    cursor = connection.cursor()
    for pragma in (
        "journal_mode = wal",
        "synchronous = full",
        "foreign_keys = on",
        f"busy_timeout = {BUSY_TIMEOUT_MS}",
    ):
        cursor.execute(f"pragma {pragma}")
    cursor.close()


def _begin_sqlite(connection: sa.Connection) -> None:
    """A deferred BEGIN that writes later cannot wait for its turn and answers *locked*."""
    reads = connection.get_execution_options().get("reads", False)
    connection.exec_driver_sql("BEGIN" if reads else "BEGIN IMMEDIATE")


def _refuse_nul(
    _connection: object,
    _cursor: object,
    _statement: str,
    parameters: Sequence[Any],
    _context: object,
    is_many: bool,
) -> None:
    """PostgreSQL takes no NUL in a text; SQLite would, and measure the text up to it."""
    for row in parameters if is_many else (parameters,):
        if any(isinstance(value, str) and "\0" in value for value in row):
            raise ValueRefused("the store refuses a text: NUL inside")


def _turn_of(engine: AsyncEngine, *, reads: bool) -> AbstractAsyncContextManager[object]:
    """SQLite's writers wait by sleeping, longer each time; those of one process need not."""
    if reads or engine.dialect.name != "sqlite":
        return nullcontext()
    return _WRITERS.setdefault(engine, asyncio.Lock())


@asynccontextmanager
async def begin(engine: AsyncEngine, *, reads: bool = False) -> AsyncIterator[AsyncConnection]:
    try:
        async with _turn_of(engine, reads=reads), engine.connect() as connection:
            bound = await connection.execution_options(reads=reads)
            async with bound.begin():
                yield bound
    except sa.exc.DBAPIError as error:
        raise _meaning(error) from error
    except (UnicodeEncodeError, OverflowError) as error:
        raise ValueRefused(f"the store refuses a value: {error}") from error


def _meaning(error: sa.exc.DBAPIError) -> Exception:
    """Data and check violations are about the value; all else is an outage, and waited out."""
    text = str(error.orig)[:500]
    match error:
        case sa.exc.IntegrityError() if "UNIQUE" in text.upper():
            return Invariant(f"a row of that identity exists: {text}")
        case (
            sa.exc.IntegrityError()
            | sa.exc.DataError()
            | sa.exc.StatementError(orig=ValueError() | OverflowError())
        ):
            return ValueRefused(f"the store refuses a value: {text}")
        case _:
            return StoreOut(text)
