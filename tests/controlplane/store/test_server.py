"""A PostgreSQL server through its faults."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager

import psycopg
import pytest
from sqlalchemy import create_engine

from cachefleet_controlplane.store.database import Database, usable_url
from cachefleet_controlplane.store.decision_repository import SqlDecisions
from cachefleet_controlplane.store.migrations import migrate
from cachefleet_controlplane.store.store_errors import StoreError
from tests.controlplane.store.conftest import MakeRecord
from tests.controlplane.store.postgresql import PostgreSQL


@pytest.fixture
def url(postgresql: PostgreSQL) -> str:
    return postgresql.database()


@pytest.fixture
def decisions(url: str) -> Iterator[SqlDecisions]:
    with closing(Database(url, timeout_seconds=0.2)) as database:
        decisions = SqlDecisions(database, max_rows=1000)
        decisions.open()
        yield decisions


@contextmanager
def locked(url: str) -> Iterator[None]:
    """By a transaction of somebody else, who hangs."""
    with psycopg.connect(url) as other:
        other.execute("LOCK TABLE decisions IN SHARE MODE")
        yield


def test_locked_writes_fail_in_bounded_time_and_reads_are_served(
    decisions: SqlDecisions, url: str, make: MakeRecord
) -> None:
    decisions.save([make(1)])
    with locked(url):
        assert decisions.get("d1") == make(1)
        with pytest.raises(StoreError) as error:
            decisions.save([make(2)])
    assert error.value.kind == "locked"
    decisions.save([make(2)])
    assert len(decisions.recent(9)) == 2


def test_a_server_that_went_and_came_back_is_used_again(
    decisions: SqlDecisions, postgresql: PostgreSQL, make: MakeRecord
) -> None:
    decisions.save([make(1)])
    postgresql.stop()
    try:
        with pytest.raises(StoreError) as error:
            decisions.save([make(2)])
        assert error.value.kind == "unavailable"
    finally:
        postgresql.start()
    decisions.save([make(2)])
    assert [record.id for record in decisions.recent(9)] == ["d2", "d1"]


def test_a_replica_that_starts_while_another_migrates_waits_for_it(url: str, make: MakeRecord) -> None:
    with ThreadPoolExecutor(1) as thread, closing(Database(url, timeout_seconds=30)) as database:
        decisions = SqlDecisions(database, max_rows=9)
        other = create_engine(usable_url(url))
        with other.begin() as connection:
            migrate(connection)
            opening = thread.submit(decisions.open)
            _until_one_waits(url)
        other.dispose()
        opening.result(60)
        decisions.save([make(1)])


def _until_one_waits(url: str) -> None:
    """For a lock."""
    waiting = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    deadline = time.monotonic() + 60
    with psycopg.connect(url, autocommit=True) as connection:
        while connection.execute(waiting).fetchone() == (0,):
            assert time.monotonic() < deadline
            time.sleep(0.02)


def test_errors_quote_no_value(decisions: SqlDecisions, url: str, make: MakeRecord) -> None:
    decisions.save([make(1)])
    with psycopg.connect(url, autocommit=True) as other:
        other.execute("CREATE UNIQUE INDEX one_of_a_model ON decisions (model)")
    with pytest.raises(StoreError, match="one_of_a_model") as error:
        decisions.save([make(2)])
    assert "demo" not in str(error.value)


def test_what_the_url_says_of_patience_goes_first(url: str) -> None:
    with closing(Database(f"{url}&keepalives_idle=77&connect_timeout=9", timeout_seconds=0.2)) as database:
        database.open()
        with database.transaction() as connection:
            driver = connection.connection.driver_connection
            assert isinstance(driver, psycopg.Connection)
            told = driver.info.get_parameters()
    assert (told["keepalives_idle"], told["connect_timeout"], told["keepalives_count"]) == ("77", "9", "3")


def test_a_database_that_is_not_there_is_named(url: str) -> None:
    missing = url.replace("/postgres", "/none")
    with closing(Database(missing, timeout_seconds=1)) as database, pytest.raises(StoreError, match="none") as error:
        database.open()
    assert error.value.kind == "unavailable"
