"""How columns of the tables are declared: what identifies compares byte by byte."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import Any, Final

import sqlalchemy as sa

from domain.identity import MAX_NAME

metadata: Final = sa.MetaData(
    naming_convention={"ck": "ck_%(table_name)s_%(constraint_name)s", "pk": "pk_%(table_name)s"}
)

NAME: Final = sa.String(MAX_NAME).with_variant(sa.String(MAX_NAME, collation="C"), "postgresql")
TEXT: Final = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
TIME: Final = sa.BigInteger


def key(*names: str) -> tuple[sa.Column[Any], ...]:
    return tuple(
        sa.Column(name, NAME if name == "queue" else TEXT, primary_key=True) for name in names
    )


def one_of(column: str, kind: Iterable[StrEnum]) -> str:
    return f"{column} in ({', '.join(repr(str(value)) for value in kind)})"


def size(column: str, limit: int) -> sa.CheckConstraint:
    """In characters; in bytes the domain measures it, before it comes here."""
    return sa.CheckConstraint(f"length({column}) between 1 and {limit}", name=f"{column}_size")
