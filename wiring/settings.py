"""Where this process keeps its things, and how it finds the others."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Final

from pydantic import AfterValidator, Field
from pydantic_settings import BaseSettings, SettingsConfigDict

from domain.errors import StoreOut
from extensions.queueconfig.contract import QueueConfig
from extensions.queueconfig.toml import TomlConfig
from stores import schema
from stores.contract import Reader, Store
from stores.engine import open_engine
from stores.reader import SqlReader
from stores.write import SqlStore

CONFIG: Final = "lastgreen.toml"


class Settings(BaseSettings):
    """From the environment, as ``LASTGREEN_<NAME>``; Temporal's own come from its profile."""

    model_config = SettingsConfigDict(env_prefix="LASTGREEN_", extra="ignore")

    data: Annotated[Path, AfterValidator(Path.absolute)] = Field(
        default=Path(".lastgreen"), description="folder for store, mirrors and logs"
    )
    config: Path | None = Field(default=None, description=f"queues; default: {CONFIG}")
    database_url: str | None = Field(default=None, description="default: SQLite in the data folder")
    builds: int = Field(default=2, ge=1, le=64, description="builds at a time on this machine")
    namespace: str | None = None

    @property
    def store_file(self) -> Path:
        return self.data / "store.db"

    @property
    def store_url(self) -> str:
        return self.database_url or f"sqlite+aiosqlite:///{self.store_file}"

    @property
    def written_config(self) -> Path:
        """What ``up --repository`` makes of its options."""
        return self.data / CONFIG

    def queues(self) -> QueueConfig:
        """The file that was named, else the one here, else the one ``up --repository`` wrote."""
        here = Path(CONFIG)
        written = self.written_config.exists() and not here.exists()
        return TomlConfig(self.config or (self.written_config if written else here))


@asynccontextmanager
async def reading(settings: Settings) -> AsyncIterator[Reader]:
    """The store alone: no server and no worker is needed to ask."""
    if settings.database_url is None and not settings.store_file.is_file():
        raise StoreOut(
            f"there is no store in {settings.data}: name its folder with --data, or "
            "make one with `lastgreen up`"
        )
    engine = open_engine(settings.store_url)
    try:
        await schema.check(engine)
        yield SqlReader(engine)
    finally:
        await engine.dispose()


@asynccontextmanager
async def writing(settings: Settings) -> AsyncIterator[Store]:
    """For what needs no server; whoever writes tells the queue himself."""
    async with reading(settings):
        engine = open_engine(settings.store_url)
        try:
            yield SqlStore(engine, lambda *_: None)
        finally:
            await engine.dispose()


async def upgrade(settings: Settings, now_ms: int) -> str:
    settings.store_file.parent.mkdir(parents=True, exist_ok=True)
    engine = open_engine(settings.store_url)
    try:
        return await schema.upgrade(engine, now_ms)
    finally:
        await engine.dispose()
