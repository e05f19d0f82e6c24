"""Run by Alembic; the connection comes from ``stores.schema``."""

from __future__ import annotations

from alembic import context

from stores.tables import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    render_as_batch=True,
)
with context.begin_transaction():
    context.run_migrations()
