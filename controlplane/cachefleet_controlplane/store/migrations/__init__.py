"""Alembic migrations, run in process at start. They only add, so that neighbouring versions can share a database."""

from __future__ import annotations

from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.util import CommandError
from sqlalchemy import Connection

from cachefleet_controlplane.store.repository import StoreError


def migrate(connection: Connection, revision: str = "head") -> None:
    """Bring the schema up to ``revision`` within the transaction of ``connection``."""
    try:
        command.upgrade(configuration(connection), revision)
    except CommandError as error:
        raise StoreError("newer", f"database newer than this program: {error}") from error


def configuration(connection: Connection) -> Config:
    """Alembic's configuration for a connection; there is no alembic.ini."""
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent).replace("%", "%%"))
    config.attributes["connection"] = connection
    return config
