"""The databases that stores are tried on, each new and empty."""

import os
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from cachefleet_controlplane.store import database as opened
from cachefleet_controlplane.store.database import Database
from tests.controlplane.store.migrated import quick_migrate
from tests.controlplane.store.postgresql import NoAccountError, PostgreSQL, programs

KINDS = ("sqlite", "postgresql")


@pytest.fixture(scope="session")
def postgresql() -> Iterator[PostgreSQL]:
    """A server of this run's own; skipped where its programs are missing, but not in CI."""
    found = programs()
    if found is None:
        missing = "PostgreSQL's programs are missing; on Debian: apt install postgresql"
        assert "CI" not in os.environ, missing
        pytest.skip(missing)
    with ExitStack() as stack:
        try:
            server = stack.enter_context(PostgreSQL(found))
        except NoAccountError as error:
            pytest.skip(str(error))
        yield server


@pytest.fixture(autouse=True)
def migrated_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty database is made by the statements of the first one's migrations; test_migrations.py runs them all."""
    monkeypatch.setattr(opened, "migrate", quick_migrate)


@pytest.fixture(params=KINDS)
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Whatever asks for a database is tried on each kind."""
    return new_database(request.param, request, tmp_path)


@pytest.fixture
def database(database_url: str) -> Iterator[Database]:
    with closing(Database(database_url, timeout_seconds=10)) as database:
        yield database


def new_database(kind: str, request: pytest.FixtureRequest, folder: Path) -> str:
    """The URL of one that nobody else has."""
    if kind == "sqlite":
        return f"sqlite:///{folder / 'kept.db'}"
    server: PostgreSQL = request.getfixturevalue("postgresql")
    return server.database()
