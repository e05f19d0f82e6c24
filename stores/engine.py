"""The database: how a connection is opened, and what its errors mean."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext, suppress
from dataclasses import dataclass
from typing import Any, Final
from weakref import WeakKeyDictionary

import sqlalchemy as sa
from sqlalchemy.engine import ExceptionContext
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

from domain.errors import Invariant, Misconfigured, StoreOut, ValueRefused

SQLITE: Final = "sqlite+aiosqlite"
POSTGRESQL: Final = "postgresql+psycopg"
DRIVERS: Final[Mapping[str, str]] = {
    "sqlite": SQLITE,
    SQLITE: SQLITE,
    "postgres": POSTGRESQL,
    "postgresql": POSTGRESQL,
    POSTGRESQL: POSTGRESQL,
}
ACCEPTED: Final = "sqlite:///<path> or postgresql://<user>:<password>@<host>:<port>/<database>"
BUSY_TIMEOUT_MS: Final = 20_000
CONNECTION: Final[Mapping[str, str | int]] = {
    "application_name": "lastgreen",
    "connect_timeout": 10,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 4,
    "tcp_user_timeout": 30_000,
}
SESSION: Final = (
    "-c statement_timeout=30s",
    "-c lock_timeout=20s",
    "-c idle_in_transaction_session_timeout=30s",
)
"""With those of the connection: whichever side vanishes, the other one's wait has an end."""
DUPLICATE: Final = ("23505", "SQLITE_CONSTRAINT_PRIMARYKEY", "SQLITE_CONSTRAINT_UNIQUE")
TOO_LARGE: Final = "54000"
READ_ONLY: Final = "25006"
FAILURES: Final = (
    sa.exc.DBAPIError,
    sa.exc.TimeoutError,
    OSError,
    UnicodeEncodeError,
    OverflowError,
)
_WRITERS: Final = WeakKeyDictionary[AsyncEngine, asyncio.Lock]()


@dataclass(frozen=True)
class Pool:
    """Connections kept, how many may come on top, and the seconds that a call waits for one."""

    size: int = 10
    overflow: int = 10
    patience: float = 20


POOL: Final = Pool()


class SqliteConnection(sqlite3.Connection):
    def close(self) -> None:
        """A call that was cancelled leaves its cursors open, and SQLite keeps a transaction, and
        with it the lock on the file, as long as there is one.
        """
        with suppress(sqlite3.Error):
            self.rollback()
        super().close()


def parse_url(text: str) -> sa.URL:
    """With the driver that is used. Nothing of a text that is wrong is told: it has a password."""
    try:
        url = sa.make_url(text)
    except (sa.exc.ArgumentError, ValueError):
        raise Misconfigured(f"LASTGREEN_DATABASE_URL is no URL: write {ACCEPTED}") from None
    driver = DRIVERS.get(url.drivername)
    if driver is None:
        raise Misconfigured(f"LASTGREEN_DATABASE_URL is {url.drivername}://…: write {ACCEPTED}")
    if driver is SQLITE and url.database in (None, "", ":memory:"):
        raise Misconfigured(f"LASTGREEN_DATABASE_URL names no file: write {ACCEPTED}")
    return url.set(drivername=driver)


def open_engine(text: str, pool: Pool = POOL) -> AsyncEngine:
    """``Misconfigured`` unless it is a URL of SQLite or PostgreSQL; connects when it must."""
    url = parse_url(text)
    pooled: dict[str, Any] = {
        "pool_size": pool.size,
        "max_overflow": pool.overflow,
        "pool_timeout": pool.patience,
    }
    if url.drivername == SQLITE:
        engine = create_async_engine(url, **pooled, connect_args={"factory": SqliteConnection})
        sa.event.listen(engine.sync_engine, "connect", _configure_sqlite)
        sa.event.listen(engine.sync_engine, "begin", _begin_sqlite)
        sa.event.listen(engine.sync_engine, "before_cursor_execute", _refuse_nul)
        return engine
    given = {"isolation_level": "READ COMMITTED", "connect_args": _connect_args(url)}
    engine = create_async_engine(url, pool_pre_ping=True, **pooled, **given)
    sa.event.listen(engine.sync_engine, "begin", _begin_postgresql)
    sa.event.listen(engine.sync_engine, "handle_error", _leave_standby)
    return engine


def _connect_args(url: sa.URL) -> dict[str, Any]:
    """What the URL says itself wins. Nothing is prepared: a plan made for any value uses none of
    the partial indexes, and a pooler between here and the server may not know what is prepared.
    """
    limits = {name: value for name, value in CONNECTION.items() if name not in url.query}
    options = " ".join([*SESSION, *url.normalized_query.get("options", ())])
    return {**limits, "options": options, "prepare_threshold": None}


def _begin_postgresql(connection: sa.Connection) -> None:
    """All that one call reads is of one moment."""
    if connection.get_execution_options().get("reads", False):
        connection.exec_driver_sql("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")


def _leave_standby(context: ExceptionContext) -> None:
    """A primary that has become a standby keeps its connections: only new ones lead elsewhere."""
    context.is_disconnect |= _code(context.original_exception) == READ_ONLY


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
    except FAILURES as error:
        raise _meaning(error) from error


def _meaning(error: Exception) -> Exception:
    """Data and check violations are about the value; all else is an outage, and waited out."""
    cause = getattr(error, "orig", None) or error
    text = str(cause)[:500]
    match error:
        case sa.exc.IntegrityError() if _code(cause) in DUPLICATE:
            return Invariant(f"a row of that identity exists: {text}")
        case sa.exc.IntegrityError() | sa.exc.DataError() | UnicodeEncodeError() | OverflowError():
            return ValueRefused(f"the store refuses a value: {text}")
        case sa.exc.DBAPIError() if _code(cause) == TOO_LARGE:
            return ValueRefused(f"the store refuses a value: {text}")
        case _:
            return StoreOut(text)


def _code(error: BaseException | None) -> str | None:
    """By which the database calls it: a SQLSTATE, or the name that SQLite has for it."""
    return getattr(error, "sqlstate", None) or getattr(error, "sqlite_errorname", None)
