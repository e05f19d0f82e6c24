"""The schema's version: made, upgraded and checked here."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Final

import sqlalchemy as sa
from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from domain.errors import Misconfigured
from stores import tables as t
from stores.engine import begin

UPGRADES: Final = int.from_bytes(b"upgrades")
"""The advisory lock of whoever upgrades."""


def _config(connection: sa.Connection | None = None) -> Config:
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
    config.attributes["connection"] = connection
    return config


async def upgrade(engine: AsyncEngine, now_ms: int) -> str:
    """Bring the schema to the newest version, keeping every row; answers that version."""
    async with begin(engine) as connection:
        await _alone(connection)
        await connection.run_sync(lambda sync: command.upgrade(_config(sync), "head"))
        if (await connection.execute(sa.select(t.installation.c.id))).first() is None:
            values = {"only": 1, "id": secrets.token_hex(16), "epoch": now_ms}
            await connection.execute(sa.insert(t.installation).values(values))
    return newest()


async def _alone(connection: AsyncConnection) -> None:
    """One upgrade at a time, however long it takes; of SQLite's writers there is only one."""
    if connection.dialect.name == "postgresql":
        await connection.execute(sa.select(sa.func.pg_advisory_xact_lock(UPGRADES)))
        await connection.exec_driver_sql("SET LOCAL statement_timeout = 0")


def newest() -> str:
    head = ScriptDirectory.from_config(_config()).get_current_head()
    return head or ""


async def check(engine: AsyncEngine) -> None:
    """Refuse a schema that this program does not know, older or newer."""
    async with begin(engine, reads=True) as connection:
        found = await connection.run_sync(
            lambda sync: MigrationContext.configure(sync).get_current_revision()
        )
    if found != newest():
        raise Misconfigured(
            f"the store's schema is {found or 'empty'}, this program needs {newest()}: run "
            "`lastgreen db upgrade` (a newer schema needs a newer lastgreen)"
        )
