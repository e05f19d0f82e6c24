"""The database: how a connection is opened, and what its errors mean."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

from domain.errors import Invariant, StoreOut, ValueRefused

BUSY_TIMEOUT_MS: Final = 20_000


def open_engine(url: str) -> AsyncEngine:
    """``sqlite+aiosqlite:///<path>``."""
    engine = create_async_engine(url, pool_pre_ping=not url.startswith("sqlite"))
    if engine.dialect.name == "sqlite":
        sa.event.listen(engine.sync_engine, "connect", _configure_sqlite)
        sa.event.listen(engine.sync_engine, "begin", _begin_sqlite)
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


@asynccontextmanager
async def begin(engine: AsyncEngine, *, reads: bool = False) -> AsyncIterator[AsyncConnection]:
    try:
        async with engine.connect() as connection:
            bound = await connection.execution_options(reads=reads)
            async with bound.begin():
                yield bound
    except sa.exc.DBAPIError as error:
        raise _meaning(error) from error
    except UnicodeEncodeError as error:
        raise ValueRefused(f"the store refuses a text: {error.reason}") from error


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
