"""What a database may do to us, and what is said of it."""

from __future__ import annotations

import asyncio
import gc
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from random import Random

import pytest
import pytest_asyncio
import sqlalchemy as sa

from domain.errors import Misconfigured, StoreOut
from stores import schema
from stores import tables as t
from stores.engine import Pool, begin, open_engine, parse_url
from tests.databases import PACKAGE, Server, server
from tests.stores.story import NOW, Backend, Story

PASSWORD = "s3cret-of-the-database"  # noqa: S105 - looked for


@pytest_asyncio.fixture
async def own() -> AsyncIterator[Server]:
    """A server that the test may stop."""
    pytest.importorskip(PACKAGE, reason="no PostgreSQL to test on")
    async with server() as own:
        yield own


@pytest.mark.parametrize("text", ["postgres", "postgresql", "postgresql+psycopg"])
def test_every_way_to_write_the_address_of_postgresql_means_its_asynchronous_driver(
    text: str,
) -> None:
    url = parse_url(f"{text}://me:{PASSWORD}@db:5432/lastgreen")
    assert url.drivername == "postgresql+psycopg"
    assert (url.host, url.password) == ("db", PASSWORD)


@pytest.mark.parametrize(
    "text",
    [
        f"mysql://me:{PASSWORD}@db/x",
        f"postgresql+asyncpg://me:{PASSWORD}@db/x",
        f"me:{PASSWORD}@db",
        f"postgresql://me:{PASSWORD}@db:port/x",
        "sqlite://",
        "",
    ],
)
def test_another_address_is_refused_with_what_is_accepted_and_never_with_its_password(
    text: str,
) -> None:
    with pytest.raises(Misconfigured, match="write sqlite:///<path> or postgresql://") as refused:
        parse_url(text)
    assert PASSWORD not in str(refused.value)
    assert refused.value.__cause__ is None


async def test_a_database_that_is_not_there_is_an_outage_and_its_password_is_not_told() -> None:
    engine = open_engine(f"postgresql://me:{PASSWORD}@127.0.0.1:1/x")
    with pytest.raises(StoreOut) as out:
        async with begin(engine):
            pass
    assert PASSWORD not in str(out.value)
    assert PASSWORD not in repr(engine)
    await engine.dispose()


async def test_a_connection_that_was_cut_costs_a_try_at_most(story: Story) -> None:
    if story.engine.dialect.name != "postgresql":
        return
    await story.validate("A")
    async with begin(story.engine) as connection:
        cut = "select pg_terminate_backend(pid) from pg_stat_activity where pid <> pg_backend_pid()"
        await connection.execute(sa.text(f"{cut} and datname = current_database()"))
    with pytest.raises(StoreOut):
        async with begin(story.engine) as connection:
            await connection.execute(sa.text("select pg_terminate_backend(pg_backend_pid())"))
    await story.validate("B")


async def test_a_server_that_is_down_is_an_outage_and_is_found_again(own: Server) -> None:
    async with own.database("upgraded") as url, Backend(url).story() as story:
        await story.validate("A")
        for how in (signal.SIGINT, signal.SIGQUIT):
            await own.stop(how)
            with pytest.raises(StoreOut):
                await story.store.queue(story.queue)
            await own.start()
            assert (await story.store.queue(story.queue)).last_green is not None
        await story.validate("B")


async def test_a_pool_without_a_free_connection_is_an_outage(backend: Backend) -> None:
    engine = open_engine(backend.url, Pool(size=1, overflow=0, patience=0.2))
    await schema.upgrade(engine, NOW)
    async with begin(engine, reads=True):
        with pytest.raises(StoreOut):
            async with begin(engine, reads=True):
                pass
    async with begin(engine, reads=True) as connection:
        assert (await connection.execute(sa.select(t.installation.c.only))).scalar() == 1
    await engine.dispose()


async def test_a_deadlock_is_an_outage_for_one_of_the_two(story: Story) -> None:
    if story.engine.dialect.name != "postgresql":
        return
    for queue in ("a", "b"):
        await story.elsewhere(queue).report("A")
    both = asyncio.Barrier(2)

    async def take(first: str, second: str) -> None:
        q = t.queues
        async with begin(story.engine) as connection:
            for at, name in enumerate((first, second)):
                touched = sa.update(q).where(q.c.name == name).values(version=q.c.version + 1)
                await connection.execute(touched)
                if at == 0:
                    await both.wait()

    done = await asyncio.gather(take("a", "b"), take("b", "a"), return_exceptions=True)
    assert [type(each) for each in done if each] == [StoreOut]


async def test_what_only_reads_cannot_write_and_sees_one_moment(
    pair: tuple[Story, Story],
) -> None:
    story, other = pair
    await story.report("A")
    async with begin(story.engine, reads=True) as connection:
        count = sa.select(sa.func.count()).select_from(t.requests)
        before = (await connection.execute(count)).scalar_one()
        await other.report("B")
        assert (await connection.execute(count)).scalar_one() == before
    if story.engine.dialect.name == "postgresql":
        with pytest.raises(StoreOut, match="read-only transaction"):
            async with begin(story.engine, reads=True) as connection:
                await connection.execute(sa.delete(t.requests))


def test_a_file_of_sqlite_is_named(tmp_path: Path) -> None:
    assert parse_url(f"sqlite:///{tmp_path / 'store.db'}").drivername == "sqlite+aiosqlite"


async def test_a_call_that_is_cancelled_anywhere_keeps_no_lock(story: Story) -> None:
    """Also before its garbage is collected, which may be long after."""
    random = Random(1)
    # What is left of a connection that was cancelled while it began counts for PostgreSQL, too.
    rounds = 60 if story.engine.dialect.name == "sqlite" else 10

    async def work() -> None:
        async with begin(story.engine) as connection:
            count = sa.select(sa.func.count()).select_from(t.queues)
            await connection.execute(sa.update(t.installation).values(epoch=t.installation.c.epoch))
            await connection.execute(count)

    gc.disable()
    try:
        for _ in range(rounds):
            tasks = [asyncio.create_task(work()) for _ in range(5)]
            for task in tasks:
                await asyncio.sleep(random.random() / 500)
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await work()
    finally:
        gc.enable()
