"""Maps the errors of SQLAlchemy and of every database driver to StoreErrors of one kind."""

from __future__ import annotations

import sqlite3
from typing import Final

from sqlalchemy.exc import DBAPIError

# SQLite's result codes, extended ones and primary ones, which the extended ones carry in their low byte.
_KINDS: Final = {
    sqlite3.SQLITE_BUSY: "locked",
    sqlite3.SQLITE_LOCKED: "locked",
    sqlite3.SQLITE_FULL: "full",
    sqlite3.SQLITE_CORRUPT: "corrupt",
    sqlite3.SQLITE_NOTADB: "corrupt",
    sqlite3.SQLITE_CONSTRAINT_PRIMARYKEY: "conflict",
    sqlite3.SQLITE_CONSTRAINT_UNIQUE: "conflict",
}
# SQLSTATEs of PostgreSQL.
_STATES: Final = {
    "55P03": "locked",  # lock_not_available
    "40P01": "locked",  # deadlock_detected
    "53100": "full",  # disk_full
    "XX001": "corrupt",  # data_corrupted
    "XX002": "corrupt",  # index_corrupted
    "23505": "conflict",  # unique_violation
}


class StoreError(Exception):
    """The store cannot do this now; ``kind`` is a metric's label: locked, full, corrupt, missing, newer,
    unreadable, conflict, ...
    """

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


def store_error(error: Exception) -> StoreError:
    """The StoreError for an error of SQLAlchemy or a driver; its text holds no parameters of a statement."""
    cause = error.orig if isinstance(error, DBAPIError) and error.orig is not None else error
    code, state = getattr(cause, "sqlite_errorcode", None), getattr(cause, "sqlstate", None)
    kind = _STATES.get(state or "") if code is None else _KINDS.get(code) or _KINDS.get(code & 0xFF)
    kind = kind or "unavailable"
    return StoreError(kind, f"database {kind}: {_words(cause)}")


def _words(cause: BaseException) -> str:
    """A driver's message without PostgreSQL's details, which quote values."""
    told = getattr(cause, "diag", None)
    return getattr(told, "message_primary", None) or str(cause)
