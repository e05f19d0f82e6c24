"""Where this process keeps its things, and how it finds the others."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict


class Settings(BaseSettings):
    """From the environment, as ``LASTGREEN_<NAME>``; Temporal's own come from its profile."""

    model_config = SettingsConfigDict(env_prefix="LASTGREEN_", extra="ignore")

    data: Path = Field(default=Path(".lastgreen"), description="folder for store, mirrors and logs")
    config: Path = Field(default=Path("lastgreen.toml"), description="queues")
    database_url: str | None = Field(default=None, description="default: SQLite in the data folder")
    builds: int = Field(default=2, ge=1, le=64, description="builds at a time on this machine")
    namespace: str | None = None

    @property
    def store_url(self) -> str:
        return self.database_url or f"sqlite+aiosqlite:///{self.data.absolute() / 'store.db'}"
