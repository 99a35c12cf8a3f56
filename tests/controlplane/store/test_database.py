"""A SQLite file through its faults."""

import shutil
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from cachefleet_controlplane.store.access_marker import Mark
from cachefleet_controlplane.store.database import MAX_ASIDE, Database
from cachefleet_controlplane.store.decision_repository import SqlDecisions
from cachefleet_controlplane.store.store_errors import StoreError
from tests.controlplane.store.conftest import MakeRecord


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "store" / "c p%.db"


@pytest.fixture
def database(file: Path) -> Iterator[Database]:
    with closing(Database(f"sqlite:///{file}", timeout_seconds=0.05)) as database:
        yield database


@pytest.fixture
def decisions(database: Database) -> SqlDecisions:
    decisions = SqlDecisions(database, max_rows=1000)
    decisions.open()
    return decisions


@contextmanager
def locked(file: Path) -> Iterator[None]:
    with closing(sqlite3.connect(file, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        yield


def kind_of(error: pytest.ExceptionInfo[StoreError]) -> str:
    return error.value.kind


def test_a_connection_in_use_is_closed_when_it_is_given_back(database: Database) -> None:
    database.open()
    with database.transaction() as connection:
        raw: Any = connection.connection.dbapi_connection
        database.close()
        assert connection.execute(text("SELECT 1")).scalar() == 1
    with pytest.raises(sqlite3.ProgrammingError, match="closed database"):
        raw.execute("SELECT 1")


def test_sqlite_is_tuned_on_every_connection(database: Database) -> None:
    database.open()
    with database.transaction() as connection:
        values = {
            name: connection.execute(text(f"PRAGMA {name}")).scalar()
            for name in ("journal_mode", "foreign_keys", "busy_timeout")
        }
    assert values == {"journal_mode": "wal", "foreign_keys": 1, "busy_timeout": 50}


def test_the_data_folder_is_private(database: Database, file: Path) -> None:
    database.open()
    assert file.parent.stat().st_mode & 0o077 == 0


def test_locked_writes_fail_in_bounded_time_and_reads_are_served(
    decisions: SqlDecisions, file: Path, make: MakeRecord
) -> None:
    decisions.save([make(1)])
    with locked(file):
        assert decisions.get("d1") == make(1)
        with pytest.raises(StoreError) as error:
            decisions.save([make(2)])
    assert kind_of(error) == "locked"
    decisions.save([make(2)])
    assert len(decisions.recent(9)) == 2


def test_a_writer_has_the_lock_from_its_beginning(database: Database, file: Path) -> None:
    database.open()
    with (
        database.transaction(write=True),
        closing(sqlite3.connect(file, timeout=0, isolation_level=None)) as other,
        pytest.raises(sqlite3.OperationalError, match="locked"),
    ):
        other.execute("BEGIN IMMEDIATE")


def test_a_failed_save_changes_nothing(decisions: SqlDecisions, file: Path, make: MakeRecord) -> None:
    decisions.save([make(1)])
    with locked(file), pytest.raises(StoreError):
        decisions.save([make(1, cached=1), make(2)])
    assert decisions.recent(9) == [make(1)]


@pytest.mark.parametrize("damage", [b"not a database at all" * 100, b"SQLite format 3\x00" + b"\xff" * 8000])
def test_a_corrupt_file_is_moved_aside_and_a_new_one_made(tmp_path: Path, make: MakeRecord, damage: bytes) -> None:
    file = tmp_path / "x.db"
    file.write_bytes(damage)
    with closing(Database(f"sqlite:///{file}", timeout_seconds=0.05, now=lambda: 12.5)) as database:
        decisions = SqlDecisions(database, max_rows=10)
        decisions.open()
        decisions.save([make(1)])
        assert (tmp_path / "x.db.corrupt-12500").read_bytes() == damage
        assert database.marker.read() is Mark.LOST


def test_a_corrupt_file_whose_loss_cannot_be_marked_is_not_moved(tmp_path: Path) -> None:
    file, damage = tmp_path / "x.db", b"not a database at all" * 100
    file.write_bytes(damage)
    (tmp_path / "x.db.access.new").mkdir()
    with (
        closing(Database(f"sqlite:///{file}", timeout_seconds=0.05)) as database,
        pytest.raises(StoreError, match=r"x\.db\.access cannot be written"),
    ):
        database.open()
    assert file.read_bytes() == damage


def test_pages_damaged_while_running_are_found_and_the_store_begins_anew(
    database: Database, decisions: SqlDecisions, file: Path, make: MakeRecord
) -> None:
    database.close()  # drops the page cache, and the write-ahead log is folded in
    sound = file.stat().st_size  # the schema, alembic's table and the roots of ours
    decisions.open()
    decisions.save([make(n) for n in range(300)])
    database.close()
    data = file.read_bytes()
    file.write_bytes(data[:sound] + b"\xa5" * (len(data) - sound))
    decisions.open()
    with pytest.raises(StoreError) as error:
        decisions.save([make(n) for n in range(300)])
    assert kind_of(error) == "corrupt"
    decisions.open()
    decisions.save([make(1)])
    assert decisions.recent(9) == [make(1)]
    assert len(list(file.parent.glob("*.corrupt-*"))) >= 1


def test_corrupt_files_kept_are_bounded(tmp_path: Path) -> None:
    for number in range(MAX_ASIDE):
        (tmp_path / f"x.db.corrupt-{number}").write_bytes(b"")
    (tmp_path / "x.db").write_bytes(b"garbage" * 1000)
    database = Database(f"sqlite:///{tmp_path / 'x.db'}", timeout_seconds=0.05)
    with pytest.raises(StoreError, match="kept beside") as error:
        database.open()
    assert kind_of(error) == "corrupt"
    assert (tmp_path / "x.db").exists()


def test_a_deleted_file_is_noticed_and_made_anew(decisions: SqlDecisions, file: Path, make: MakeRecord) -> None:
    decisions.save([make(1)])
    shutil.rmtree(file.parent)
    with pytest.raises(StoreError) as error:
        decisions.save([make(2)])
    assert kind_of(error) == "missing"
    decisions.open()
    decisions.save([make(2)])
    assert decisions.recent(9) == [make(2)]


def test_a_file_where_its_folder_was_is_told_as_missing(decisions: SqlDecisions, file: Path, make: MakeRecord) -> None:
    shutil.rmtree(file.parent)
    file.parent.write_bytes(b"")
    with pytest.raises(StoreError) as error:
        decisions.save([make(1)])
    assert kind_of(error) == "missing"


def test_a_full_database_fails_and_recovers(database: Database, decisions: SqlDecisions, make: MakeRecord) -> None:
    with database.transaction() as connection:
        pages = connection.execute(text("PRAGMA page_count")).scalar()
        connection.execute(text(f"PRAGMA max_page_count = {pages}"))
    with pytest.raises(StoreError) as error:
        decisions.save([make(n) for n in range(500)])
    assert kind_of(error) == "full"
    with database.transaction() as connection:
        connection.execute(text("PRAGMA max_page_count = 1000000"))
    decisions.save([make(1)])


def test_a_folder_that_cannot_be_made_is_unavailable(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StoreError) as error:
        Database(f"sqlite:///{tmp_path}/file/x.db", timeout_seconds=0.05).open()
    assert kind_of(error) == "unavailable"


def test_a_driver_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(StoreError, match="psycopg") as error:
        Database("postgresql://someone:secret@localhost/x", timeout_seconds=0.05).open()
    assert "secret" not in str(error.value)


@pytest.mark.parametrize("url", ["nonsense", "sqlite://", "sqlite:///:memory:", "sqlite:///file:x.db?uri=true"])
def test_urls_that_cannot_work_are_refused_at_once(url: str) -> None:
    with pytest.raises(ValueError, match="sqlite:///PATH"):
        Database(url, timeout_seconds=1)


def test_before_it_is_open_it_is_unavailable(database: Database) -> None:
    with pytest.raises(StoreError, match="not open"):
        SqlDecisions(database, max_rows=1).get("d1")
