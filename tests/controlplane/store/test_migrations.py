"""The schema through its revisions, on every kind of database."""

import json
from pathlib import Path

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from msgspec.structs import asdict, replace
from sqlalchemy import Connection, inspect, text
from sqlmodel import SQLModel

from cachefleet_controlplane.store.database import Database
from cachefleet_controlplane.store.decision_records import DecisionRecord
from cachefleet_controlplane.store.decision_repository import SqlDecisions
from cachefleet_controlplane.store.migrations import configuration, migrate, versions
from cachefleet_controlplane.store.schema import (
    audit_table,
    batch_tables,
    continuation_tables,
    judgement_tables,
    tables,
)
from cachefleet_controlplane.store.schema.tables import DecisionRow
from cachefleet_controlplane.store.store_errors import StoreError
from tests.controlplane.store.conftest import CANDIDATE, MakeRecord

TABLES = (audit_table, batch_tables, tables, continuation_tables, judgement_tables)
"""Modules whose import tells SQLModel of their tables."""


@pytest.fixture
def migrated_once() -> None:
    """Not here."""


@pytest.fixture
def decisions(database: Database) -> SqlDecisions:
    decisions = SqlDecisions(database, max_rows=1000)
    decisions.open()
    return decisions


def test_each_revision_has_a_number_of_its_own_and_one_before_it(database: Database) -> None:
    """Two that were made at once would both be the next one."""
    database.open()
    with database.transaction() as connection:
        scripts = ScriptDirectory.from_config(configuration(connection))
    found = [one.revision for one in scripts.walk_revisions()]
    assert len(scripts.get_heads()) == 1
    assert len(found) == len(set(found)) == len(list(Path(versions.__path__[0]).glob("r*.py")))


def test_migrations_make_the_tables_of_the_models(database: Database) -> None:
    database.open()
    with database.transaction() as connection:
        assert compare_metadata(MigrationContext.configure(connection), SQLModel.metadata) == []


def test_rows_have_exactly_the_fields_of_records() -> None:
    assert set(DecisionRow.model_fields) - {"seq", "keyed_candidates"} == set(DecisionRecord.__struct_fields__)


def test_migrations_go_down_and_up_again(database: Database, decisions: SqlDecisions, make: MakeRecord) -> None:
    with database.transaction(write=True) as connection:
        command.downgrade(configuration(connection), "base")
    with database.transaction() as connection:
        assert "decisions" not in inspect(connection).get_table_names()
    decisions.open()
    decisions.save([make(1)])


def test_decisions_of_before_candidates_were_left_out_are_read(database: Database, make: MakeRecord) -> None:
    database.open()
    SqlDecisions(database, max_rows=9).save([make(1)])
    with database.transaction(write=True) as connection:
        command.downgrade(configuration(connection), "0001")
    database.open()
    old = replace(make(1), candidates=(), candidates_left_out=0, tenant="", isolation="", salt_version=None, rung="")
    assert SqlDecisions(database, max_rows=9).get("d1") == old


def test_candidates_stored_as_objects_are_read(database: Database, make: MakeRecord) -> None:
    database.open()
    decisions = SqlDecisions(database, max_rows=9)
    decisions.save([make(1)])
    known = asdict(replace(CANDIDATE, chosen=True)) | {"removed": 1}
    objects = [{name: value for name, value in known.items() if name not in {"rank", "adapter_seconds"}}]
    with database.transaction(write=True) as connection:
        command.downgrade(configuration(connection), "0012")
        connection.execute(text("UPDATE decisions SET candidates = :old"), {"old": json.dumps(objects)})
    database.open()
    assert decisions.get("d1") == replace(make(1), candidates=(replace(CANDIDATE, chosen=True),))
    with database.transaction(write=True) as connection:
        connection.execute(text("UPDATE decisions SET candidates = '[{}]'"))
    with pytest.raises(StoreError, match="cannot read"):
        decisions.get("d1")


def test_decisions_of_before_request_ids_are_read(database: Database, make: MakeRecord) -> None:
    database.open()
    SqlDecisions(database, max_rows=9).save([replace(make(1), candidates=(), request_id="r")])
    with database.transaction(write=True) as connection:
        command.downgrade(configuration(connection), "0008")
    database.open()
    assert SqlDecisions(database, max_rows=9).get("d1") == replace(make(1), candidates=())


def test_a_migration_that_fails_leaves_nothing_behind(database: Database) -> None:
    database.open()
    with database.transaction(write=True) as connection:
        command.downgrade(configuration(connection), "base")

    def migrate_and_fail() -> None:
        with database.transaction(write=True) as connection:
            migrate(connection)
            raise RuntimeError

    with pytest.raises(RuntimeError):
        migrate_and_fail()
    with database.transaction() as connection:
        assert "decisions" not in inspect(connection).get_table_names()


def test_a_database_of_a_newer_program_is_said_so(database: Database) -> None:
    database.open()
    with database.transaction(write=True) as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    with pytest.raises(StoreError, match="newer") as error:
        database.open()
    assert error.value.kind == "newer"


def test_nobody_reads_before_all_tables_are_there(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []

    def looked(connection: Connection) -> None:
        with pytest.raises(StoreError, match="not open"):
            SqlDecisions(database, max_rows=1).get("d1")
        seen.append("looked")
        migrate(connection)

    monkeypatch.setattr("cachefleet_controlplane.store.database.migrate", looked)
    database.open()
    assert seen == ["looked"]
    assert SqlDecisions(database, max_rows=1).get("d1") is None
