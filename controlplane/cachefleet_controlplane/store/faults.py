"""What a database's failure means: every driver's error becomes a StoreError of one kind."""

from __future__ import annotations

import sqlite3
from typing import Final

from sqlalchemy.exc import DBAPIError

from cachefleet_controlplane.store.repository import StoreError

# SQLite's primary result codes; the extended ones carry them in their low byte.
_KINDS: Final = {
    sqlite3.SQLITE_BUSY: "locked",
    sqlite3.SQLITE_LOCKED: "locked",
    sqlite3.SQLITE_FULL: "full",
    sqlite3.SQLITE_CORRUPT: "corrupt",
    sqlite3.SQLITE_NOTADB: "corrupt",
}


def store_error(error: Exception) -> StoreError:
    """The StoreError for an error of SQLAlchemy or a driver; its text holds no parameters of a statement."""
    cause = error.orig if isinstance(error, DBAPIError) and error.orig is not None else error
    code = getattr(cause, "sqlite_errorcode", None)
    kind = "unavailable" if code is None else _KINDS.get(code & 0xFF, "unavailable")
    return StoreError(kind, f"database {kind}: {cause}")
