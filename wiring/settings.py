"""Where this process keeps its things, and how it finds the others."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Final

from pydantic import AfterValidator, Field, SecretStr
from pydantic_settings import BaseSettings, SettingsConfigDict
from sqlalchemy.ext.asyncio import AsyncEngine

from domain.errors import StoreOut
from extensions.queueconfig.contract import QueueConfig
from extensions.queueconfig.toml import TomlConfig
from stores import schema
from stores.contract import Reader, Store
from stores.engine import Pool, open_engine
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
    database_url: SecretStr | None = Field(
        default=None, description="default: SQLite in the data folder"
    )
    pool_size: int = Field(default=10, ge=1, le=1000, description="connections kept")
    pool_overflow: int = Field(default=10, ge=0, le=1000, description="how many may come on top")
    builds: int = Field(default=2, ge=1, le=64, description="builds at a time on this machine")
    namespace: str | None = None

    @property
    def store_file(self) -> Path:
        return self.data / "store.db"

    def open_engine(self) -> AsyncEngine:
        named = self.database_url.get_secret_value() if self.database_url else None
        url = named or f"sqlite:///{self.store_file}"
        return open_engine(url, Pool(self.pool_size, self.pool_overflow))

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
    engine = settings.open_engine()
    try:
        await schema.check(engine)
        yield SqlReader(engine)
    finally:
        await engine.dispose()


@asynccontextmanager
async def writing(settings: Settings) -> AsyncIterator[Store]:
    """For what needs no server; whoever writes tells the queue himself."""
    async with reading(settings):
        engine = settings.open_engine()
        try:
            yield SqlStore(engine, lambda *_: None)
        finally:
            await engine.dispose()


async def upgrade(settings: Settings, now_ms: int) -> str:
    if settings.database_url is None:
        settings.data.mkdir(parents=True, exist_ok=True)
    engine = settings.open_engine()
    try:
        return await schema.upgrade(engine, now_ms)
    finally:
        await engine.dispose()
