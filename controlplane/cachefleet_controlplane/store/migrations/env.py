"""Alembic's environment: migrations take part in the caller's transaction."""

from alembic import context
from sqlmodel import SQLModel

from cachefleet_controlplane.store.schema import tables

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=SQLModel.metadata,
    transactional_ddl=True,
    render_as_batch=True,
)
with context.begin_transaction():
    context.run_migrations()

__all__ = ["tables"]  # importing them fills the metadata
