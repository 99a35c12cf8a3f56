"""Alembic migrations, run in process at start. They only add, so that adjacent versions can share a
database.

env         Alembic's environment: migrations join the caller's transaction
versions/   one file per schema change
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from threading import Lock
from typing import Final

from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from alembic.util import CommandError
from sqlalchemy import Connection, text

from cachefleet_controlplane.store.store_errors import StoreError

KEY: Final = int.from_bytes(b"cachefle")
"""Key of the PostgreSQL advisory lock that a replica holds while it migrates."""
_alone = Lock()
"""Alembic has one context for all threads."""


def migrate(connection: Connection, revision: str = "head") -> None:
    """Bring the schema to ``revision`` within the transaction of ``connection``; other replicas wait. StoreError."""
    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": KEY})
    if revision == "head" and MigrationContext.configure(connection).get_current_revision() == _newest():
        return  # each repository of a database asks
    try:
        with _alone:
            command.upgrade(configuration(connection), revision)
    except CommandError as error:
        raise StoreError("newer", f"database newer than this program: {error}") from error


def configuration(connection: Connection) -> Config:
    """Alembic's configuration for a connection; there is no alembic.ini."""
    config = _scripts()
    config.attributes["connection"] = connection
    return config


def _scripts() -> Config:
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent).replace("%", "%%"))
    return config


@cache
def _newest() -> str | None:
    return ScriptDirectory.from_config(_scripts()).get_current_head()
