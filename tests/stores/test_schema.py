"""The schema: its keys, its migrations, and who may work on it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from operator import methodcaller
from pathlib import Path
from typing import Any, Final

import pytest
import sqlalchemy as sa
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy.ext.asyncio import AsyncEngine

from domain.errors import Misconfigured
from stores import schema
from stores import tables as t
from stores.engine import begin, open_engine
from stores.rows import Delivering, Happening
from stores.write import SqlStore
from tests.stores.story import NOW, QUEUE, Story

EXEMPT = {"installation", "tokens", "alembic_version"}
DERIVED = {
    "in_flight_count",
    "latest_request_id",
    "latest",
    "head_uri",
    "head",
    "last_green_request_id",
    "last_green_uri",
    "last_green",
    "holder",
    "acquired_at",
    "expires_at",
    "owed",
}


async def inspected(story: Story, ask: Callable[[sa.Inspector], Any]) -> Any:
    async with story.engine.connect() as connection:
        return await connection.run_sync(lambda sync: ask(sa.inspect(sync)))


@pytest.mark.spec("V304")
async def test_every_key_and_index_of_the_live_schema_leads_with_the_queue(story: Story) -> None:
    names = set(await inspected(story, lambda live: live.get_table_names()))
    assert names == {*t.metadata.tables, "alembic_version"}
    for name in names - EXEMPT:
        leads = "name" if name == "queues" else "queue"
        key = await inspected(story, methodcaller("get_pk_constraint", name))
        assert key["constrained_columns"][0] == leads
        for what in ("get_indexes", "get_unique_constraints"):
            for index in await inspected(story, methodcaller(what, name)):
                assert index["column_names"][0] == leads, index["name"]


@pytest.mark.spec("V304")
async def test_nothing_that_can_be_read_is_stored(story: Story) -> None:
    names = await inspected(story, lambda live: live.get_table_names())
    assert not [name for name in names if "slot" in name or "green" in name or "pointer" in name]
    for name in names:
        columns = await inspected(story, methodcaller("get_columns", name))
        assert not DERIVED & {column["name"] for column in columns}, name
    queue = await inspected(story, lambda live: live.get_columns("queues"))
    assert {c["name"] for c in queue} == {"name", "next_number", "paused_reason", "version"}


async def test_the_migrations_make_what_the_tables_say(story: Story) -> None:
    async with story.engine.connect() as connection:
        differences = await connection.run_sync(
            lambda sync: compare_metadata(MigrationContext.configure(sync), t.metadata)
        )
    assert differences == []


async def test_the_migrations_make_the_same_checks_and_partial_indexes(
    story: Story, empty: AsyncEngine
) -> None:
    """And collations: which Alembic does not compare."""
    async with empty.begin() as connection:
        await connection.run_sync(t.metadata.create_all)
    declared = await shape_of(empty)
    assert len(declared) > len(t.metadata.tables)
    assert await shape_of(story.engine) == declared


SHAPES: Final = {
    "sqlite": "select name, sql from sqlite_master where sql is not null",
    "postgresql": """
        select conrelid::regclass || ': ' || conname, pg_get_constraintdef(oid)
            from pg_constraint where connamespace = 'public'::regnamespace
        union all select indexname, indexdef from pg_indexes where schemaname = 'public'
        union all select table_name || '.' || column_name, concat_ws(' ', data_type,
                character_maximum_length, is_nullable, collation_name, column_default)
            from information_schema.columns where table_schema = 'public'""",
}


async def shape_of(engine: AsyncEngine) -> dict[str, list[str]]:
    async with engine.connect() as connection:
        rows = await connection.execute(sa.text(SHAPES[engine.dialect.name]))
        return {name: _words(sql) for name, sql in rows if not name.startswith("alembic")}


def _words(sql: str) -> list[str]:
    """SQLite keeps the text, in which only the order of the constraints is another."""
    return sorted(
        sql.replace('"', "").replace("(", " ").replace(")", " ").replace(",", " ").split()
    )


async def everything(story: Story) -> None:
    """Rows of every table, of every kind of ending that there is."""
    await story.validate("A")
    await story.validate("B", "failed")
    await story.fly("C")
    await story.report("D", "E")
    (delivery, *_) = await story.store.pending(QUEUE, 1)
    dead = replace(delivery, state=Delivering.DEAD, last_error="410 Gone")
    await story.store.delivered(story.stamp(), dead)
    note = Happening(QUEUE, "1", "promoted", "", 1, "to A", actor="lastgreen")
    await story.store.note(story.stamp(), note)
    await story.search(2)
    assert all((await story.rows()).values())


@pytest.mark.spec("V306")
async def test_an_upgrade_keeps_every_row_and_old_rows_read_right(story: Story) -> None:
    await everything(story)
    before = (await story.store.queue(QUEUE), await story.rows())
    assert await schema.upgrade(story.engine, NOW + 1) == schema.newest()
    assert (await story.store.queue(QUEUE), await story.rows()) == before
    assert await story.store.fence() == story.fence
    await schema.check(story.engine)
    await story.answer(3, "succeeded")
    await story.turn()
    assert [r.number for r in (await story.store.queue(QUEUE)).in_flight] == [5]


@pytest.mark.spec("V306")
async def test_rows_of_the_first_schema_are_kept_and_covered_by_their_own_verdicts(
    story: Story, tmp_path: Path
) -> None:
    await everything(story)
    rows = await story.rows()
    old = open_engine(f"sqlite+aiosqlite:///{tmp_path / 'old.db'}")
    async with begin(old) as connection:
        await connection.run_sync(lambda sync: command.upgrade(schema._config(sync), "0001"))
        for table in t.metadata.sorted_tables:
            if table.name not in ("coverage", "bisections"):
                names = [column.name for column in table.c]
                values = [dict(zip(names, row, strict=True)) for row in rows[table.name]]
                await connection.execute(sa.insert(table), values)
    await schema.upgrade(old, NOW + 1)
    after = replace(story, engine=old, store=SqlStore(old, lambda *_: None))
    for name, kept in (await after.rows()).items():
        assert kept == ([] if name == "bisections" else rows[name]), name
    await old.dispose()


@pytest.mark.spec("V306")
async def test_a_schema_that_is_not_known_is_refused(story: Story, empty: AsyncEngine) -> None:
    await schema.check(story.engine)
    for version in ("9999", "0000"):
        async with begin(story.engine) as connection:
            await connection.execute(
                sa.text("update alembic_version set version_num = :version"), {"version": version}
            )
        with pytest.raises(Misconfigured, match=f"schema is {version}.*db upgrade"):
            await schema.check(story.engine)
    with pytest.raises(Misconfigured, match=r"schema is empty.*db upgrade"):
        await schema.check(empty)
