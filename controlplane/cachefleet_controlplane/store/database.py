"""The database: SQLAlchemy engine, transactions, opening with migration, and recovery from corruption.

A corrupt SQLite file is moved aside, never deleted, and the marker beside it says so; a file that vanished is noticed
at the next transaction.
"""

from __future__ import annotations

import logging
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from typing import Any, Final

import msgspec
from sqlalchemy import URL, Connection, Engine, create_engine, event, make_url, text
from sqlalchemy.exc import ArgumentError, SQLAlchemyError
from sqlalchemy.pool import ConnectionPoolEntry

from cachefleet_controlplane.store.access_marker import SUFFIX, AccessMarker, Mark, MarkCopy
from cachefleet_controlplane.store.migrations import migrate
from cachefleet_controlplane.store.store_errors import StoreError, store_error

logger = logging.getLogger(__name__)

ALIVE: Final = {"keepalives_idle": 5, "keepalives_interval": 2, "keepalives_count": 3, "tcp_user_timeout": 11_000}
"""A PostgreSQL server that stops answering is given up after 11 s, unless the URL says otherwise."""
MAX_ASIDE: Final = 8
"""Corrupt files kept; with more, the disk is at fault and a new file would not help."""
_FILES: Final = ("", "-wal", "-shm")
_PASSING: Final = frozenset({"locked", "conflict"})
"""Kinds of errors that others cause and that pass."""


class Database:
    """One database by URL, shared by repositories. All calls block; failures are StoreErrors.

    ``folder`` is where the marker of a database without a file of its own is kept; ``marker_copy`` a file elsewhere,
    which outlives that folder, and ``cluster_marker`` a copy in the cluster.
    """

    def __init__(
        self,
        url: str,
        *,
        timeout_seconds: float,
        folder: Path | None = None,
        marker_copy: Path | None = None,
        cluster_marker: MarkCopy | None = None,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._url = usable_url(url)
        file = self._file or (None if folder is None else folder / "database")
        marker_file = None if file is None else file.with_name(file.name + SUFFIX)
        self.marker = AccessMarker(marker_file, marker_copy, cluster_marker)
        self.never_made = self._never_made()
        """Whether there certainly was none before: a SQLite file that was not there, nor any moved aside."""
        self._timeout_seconds = timeout_seconds
        self._now = now
        self._engine: Engine | None = None
        self._identity: tuple[int, int] | None = None
        self._suspect = True
        """Whether to check the file at the next open: at the first, and after an error that reports corruption."""
        self._held_up = False
        """Whether the last error says nothing against the tables: opening then waits for no lock, and all is read."""
        self._opening = Lock()
        """Two repositories may find one corrupt file; the second must not move the new one aside."""

    def open(self) -> None:
        """Connect, check and migrate; a corrupt SQLite file is moved aside and a new one made."""
        with self._opening:
            try:
                self._open()
            except StoreError as error:
                if error.kind != "corrupt":
                    raise
                self._move_aside()
                self._open()

    @contextmanager
    def transaction(self, *, write: bool = False) -> Iterator[Connection]:
        """One transaction, committed at the end; a writer takes SQLite's write lock at its beginning."""
        engine = self._connected()
        try:
            with _transaction(engine, write=write) as connection:
                yield connection
        except StoreError as error:
            self._suspect = self._suspect or error.kind == "corrupt"
            self._held_up = error.kind in _PASSING
            raise

    def close(self) -> None:
        """Close all connections, those in use when they are given back; ``open`` connects again."""
        if self._engine is not None:
            event.listen(self._engine, "checkin", _close)
            self._engine.dispose()
        self._engine = None

    @property
    def local(self) -> bool:
        """Whether it is a file, so that what its marker says of it is all there is to know."""
        return self._file is not None

    def _never_made(self) -> bool:
        file = self._file
        try:
            return file is not None and not file.exists() and not self._aside(file)
        except OSError:
            return False

    def _aside(self, file: Path) -> list[Path]:
        return list(file.parent.glob(f"{file.name}.corrupt-*[0-9]"))

    @property
    def _file(self) -> Path | None:
        return Path(self._url.database or "") if self._url.get_backend_name() == "sqlite" else None

    def _open(self) -> None:
        if self._engine is not None and self._file_identity() != self._identity:
            self.close()
        if self._engine is not None:
            if not self._held_up:
                self._prepare(self._engine)
            return
        with _faults():
            if self._file is not None:
                self._file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            engine = _engine(self._url, self._timeout_seconds)
        try:
            with _faults():
                engine.connect().close()  # creates the file, whose identity is then known
            self._identity = self._file_identity()
            self._prepare(engine)
        except BaseException:
            engine.dispose()
            raise
        self._engine = engine  # last: from here on other threads read, and find all tables

    def _prepare(self, engine: Engine) -> None:
        if self._suspect and self._file is not None:
            _check_integrity(engine)
            self._suspect = False
        with _transaction(engine, write=True) as connection:
            migrate(connection)

    def _connected(self) -> Engine:
        if self._engine is None:
            raise StoreError("unavailable", "database is not open")
        if self._file_identity() != self._identity:
            raise StoreError("missing", "database missing: its file was removed or replaced")
        return self._engine

    def _file_identity(self) -> tuple[int, int] | None:
        if self._file is None:
            return None
        with _faults():
            try:
                stat = self._file.stat()
            except (FileNotFoundError, NotADirectoryError):
                return None
        return stat.st_dev, stat.st_ino

    def _move_aside(self) -> None:
        self.close()
        self._suspect = True
        file = self._file
        if file is None:
            raise StoreError("corrupt", "database corrupt: it must be repaired where it runs")
        if len(self._aside(file)) >= MAX_ASIDE:
            raise StoreError("corrupt", f"database corrupt, and {MAX_ASIDE} corrupt ones are kept beside {file.name}")
        aside = f"{file.name}.corrupt-{int(self._now() * 1000)}"
        self.marker.write(Mark.LOST)  # first: the file that says who may do what is not taken away without a trace
        with _faults():
            for suffix in _FILES:
                if (part := file.with_name(file.name + suffix)).exists():
                    part.rename(file.with_name(aside + suffix))
        logger.error("a corrupt database was moved aside and a new one is made", extra={"aside": aside})


@contextmanager
def _transaction(engine: Engine, *, write: bool) -> Iterator[Connection]:
    with _faults(), engine.execution_options(cachefleet_write=write).begin() as connection:
        yield connection


def _check_integrity(engine: Engine) -> None:
    with _transaction(engine, write=False) as connection:
        verdict = connection.execute(text("PRAGMA quick_check(1)")).scalar()
    if verdict != "ok":
        raise StoreError("corrupt", f"database corrupt: {verdict}")


@contextmanager
def _faults() -> Iterator[None]:
    try:
        yield
    except (SQLAlchemyError, sqlite3.Error) as error:
        raise store_error(error) from error
    except OSError as error:
        raise StoreError("unavailable", f"database unavailable: {error.strerror or error}") from error


def usable_url(url: str) -> URL:
    """The URL with its driver: plain ``postgresql://`` means psycopg 3. ValueError for one that cannot be used."""
    try:
        parsed = make_url(url)
    except ArgumentError as error:
        raise ValueError("not a database URL; write sqlite:///PATH or postgresql://USER@HOST/NAME") from error
    if parsed.drivername == "postgresql":
        return parsed.set(drivername="postgresql+psycopg")
    if parsed.get_backend_name() == "sqlite" and parsed.database in {None, "", ":memory:"}:
        raise ValueError("SQLite needs a file, sqlite:///PATH: several threads use the database")
    if parsed.get_backend_name() == "sqlite" and (parsed.database or "").startswith("file:"):
        raise ValueError("SQLite's own URIs are not taken: write the path, sqlite:///PATH")
    return parsed


def _close(connection: Any, _record: ConnectionPoolEntry) -> None:
    """Of a pool that is no longer used, which would keep what it is given until it is garbage."""
    if connection is not None:
        connection.close()


def encoded(value: object) -> str:
    """JSON of what a column holds, records among it: several times as fast as the standard library's."""
    return msgspec.json.encode(value).decode()


def _engine(url: URL, timeout_seconds: float) -> Engine:
    server = url.get_backend_name() == "postgresql"
    try:
        engine = create_engine(
            url,
            hide_parameters=True,
            pool_pre_ping=True,
            pool_timeout=timeout_seconds,
            connect_args=_timeouts(url, timeout_seconds) if server else {},
            json_serializer=encoded,
        )
    except ModuleNotFoundError as error:
        raise StoreError("unavailable", f"{url.drivername} needs the package {error.name!r}, not installed") from error
    if server:
        _bound_locks(engine, timeout_seconds)
    else:
        _tune_sqlite(engine, timeout_seconds)
    return engine


def _timeouts(url: URL, timeout_seconds: float) -> dict[str, Any]:
    """PostgreSQL's timeouts for connecting and for silent connections; those in the URL win."""
    ours = ALIVE | {"connect_timeout": max(1, round(timeout_seconds))}
    return {name: value for name, value in ours.items() if name not in url.query}


def _bound_locks(engine: Engine, timeout_seconds: float) -> None:
    """Bounded waits for locks, which a hanging replica may hold; set in each transaction, as poolers share sessions."""

    @event.listens_for(engine, "begin")
    def _begun(connection: Connection) -> None:
        connection.exec_driver_sql(f"SET LOCAL lock_timeout = {max(1, round(timeout_seconds * 1000))}")


def _tune_sqlite(engine: Engine, timeout_seconds: float) -> None:
    """Write-ahead log, bounded waits for locks, foreign keys; transactions that include schema changes."""

    @event.listens_for(engine, "connect")
    def _connected(connection: sqlite3.Connection, _record: ConnectionPoolEntry) -> None:
        connection.isolation_level = None  # sqlite3 would commit before a schema change; BEGIN is ours, below
        connection.execute(f"PRAGMA busy_timeout = {int(timeout_seconds * 1000)}")
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute("PRAGMA foreign_keys = ON")

    @event.listens_for(engine, "begin")
    def _begun(connection: Connection) -> None:
        options: dict[str, Any] = dict(connection.get_execution_options())
        connection.exec_driver_sql("BEGIN IMMEDIATE" if options.get("cachefleet_write") else "BEGIN")
