"""Tenants and their keys in real SQLite and PostgreSQL."""

import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields, replace
from pathlib import Path

import pytest
from alembic import command
from sqlalchemy import event, inspect, text

from cachefleet_controlplane.store import sql_tenants
from cachefleet_controlplane.store.access_marker import AccessMarker, ClosedReason, Mark, StoreAccess
from cachefleet_controlplane.store.database import Database
from cachefleet_controlplane.store.migrations import configuration
from cachefleet_controlplane.store.schema.tables import KeyRow, TenantRow
from cachefleet_controlplane.store.sql_tenants import SqlTenants, TenantConflictError, TenantNotFoundError
from cachefleet_controlplane.store.store_errors import StoreError
from cachefleet_controlplane.store.tenant_records import KeyRecord, KeyState, Tenancy, TenantRecord
from cachefleet_core.tenancy import TenantId

ACME, UMBRELLA = TenantId("acme"), TenantId("umbrella")
TENANT = TenantRecord(name=ACME, priority=10, requests_at_once=3, created=1_700_000_000.25)


def key(number: int, *, tenant: TenantId = ACME, created: float = 100.0, expires: float | None = None) -> KeyRecord:
    return KeyRecord(
        id=f"k{number}",
        tenant=tenant,
        hash=f"{number:064x}",
        hint="cf-abcdef",
        created=created,
        expires=expires,
        models=("qwen", "gpt-*") if number % 2 else (),
    )


@pytest.fixture
def tenants(database: Database) -> SqlTenants:
    tenants = SqlTenants(database)
    tenants.open()
    return tenants


def loaded(tenants: SqlTenants) -> Tenancy:
    found = tenants.load(None)
    assert found is not None
    return found


def test_rows_have_exactly_the_fields_of_records() -> None:
    assert set(TenantRow.model_fields) == {field.name for field in fields(TenantRecord)}
    assert set(KeyRow.model_fields) == {field.name for field in fields(KeyRecord)}


def test_a_tenant_comes_back_as_it_was_made(tenants: SqlTenants) -> None:
    tenants.create(TENANT)
    assert tenants.tenant(ACME) == TENANT
    with pytest.raises(TenantConflictError, match="acme exists"):
        tenants.create(replace(TENANT, priority=1))
    assert tenants.tenants() == [TENANT]


def test_a_change_sets_what_it_names_and_nothing_else(tenants: SqlTenants) -> None:
    tenants.create(TENANT)
    tenants.create(TenantRecord(name=UMBRELLA))
    changed = tenants.change(ACME, {"requests_at_once": None, "disabled": True, "salt_version": 2})
    assert changed == replace(TENANT, requests_at_once=None, disabled=True, salt_version=2)
    assert tenants.tenants() == [changed, TenantRecord(name=UMBRELLA)]
    assert tenants.change(ACME, {}) == changed
    with pytest.raises(TenantNotFoundError, match="no tenant nobody"):
        tenants.change(TenantId("nobody"), {"priority": 1})


def test_a_tenant_goes_with_its_keys(tenants: SqlTenants) -> None:
    tenants.create(TENANT)
    tenants.create(TenantRecord(name=UMBRELLA))
    tenants.add_key(key(1))
    tenants.add_key(key(2, tenant=UMBRELLA))
    tenants.delete(ACME)
    assert loaded(tenants).keys == (key(2, tenant=UMBRELLA),)
    for ask in (tenants.tenant, tenants.keys, tenants.delete):
        with pytest.raises(TenantNotFoundError):
            ask(ACME)


def test_keys_are_revoked_once(tenants: SqlTenants) -> None:
    tenants.create(TENANT)
    tenants.add_key(key(1))
    tenants.add_key(key(2, created=101.0))
    assert tenants.revoke(ACME, "k1", now=200.0) == replace(key(1), revoked=200.0)
    assert tenants.revoke(ACME, "k1", now=300.0).revoked == 200.0
    assert [one.state(250.0) for one in tenants.keys(ACME)] == [KeyState.REVOKED, KeyState.ACTIVE]
    for tenant, key_id in ((ACME, "k9"), (UMBRELLA, "k2")):
        with pytest.raises(TenantNotFoundError, match="has no key"):
            tenants.revoke(tenant, key_id, now=1.0)


def test_a_rotation_ends_the_others_after_the_grace_and_prolongs_none(tenants: SqlTenants) -> None:
    tenants.create(TENANT)
    tenants.create(TenantRecord(name=UMBRELLA))
    for one in (key(1), key(2, expires=150.0), key(3, expires=9000.0), key(4, tenant=UMBRELLA)):
        tenants.add_key(one)
    tenants.revoke(ACME, "k3", now=120.0)
    tenants.rotate(key(5, created=200.0, expires=5000.0), grace_seconds=60)
    ends = {one.id: (one.expires, one.state(259.9), one.state(260.0)) for one in tenants.keys(ACME)}
    assert ends == {
        "k1": (260.0, KeyState.ACTIVE, KeyState.EXPIRED),
        "k2": (150.0, KeyState.EXPIRED, KeyState.EXPIRED),
        "k3": (9000.0, KeyState.REVOKED, KeyState.REVOKED),
        "k5": (5000.0, KeyState.ACTIVE, KeyState.ACTIVE),
    }
    assert tenants.keys(UMBRELLA) == [key(4, tenant=UMBRELLA)]


def test_keys_of_a_tenant_are_bounded_and_ended_ones_give_way(
    tenants: SqlTenants, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sql_tenants, "MAX_KEYS", 3)
    tenants.create(TENANT)
    for number in range(3):
        tenants.add_key(key(number, created=100.0 + number))
    with pytest.raises(TenantConflictError, match="3 keys that are active"):
        tenants.add_key(key(3, created=110.0))
    tenants.revoke(ACME, "k1", now=120.0)
    tenants.add_key(key(3, created=130.0))
    assert [one.id for one in tenants.keys(ACME)] == ["k0", "k2", "k3"]
    tenants.rotate(key(4, created=140.0), grace_seconds=0)
    assert [one.id for one in tenants.keys(ACME)] == ["k2", "k3", "k4"]


def test_tenants_are_bounded(tenants: SqlTenants, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sql_tenants, "MAX_TENANTS", 1)
    tenants.create(TENANT)
    with pytest.raises(TenantConflictError, match="can be no more"):
        tenants.create(TenantRecord(name=UMBRELLA))


def test_a_key_needs_its_tenant(tenants: SqlTenants) -> None:
    with pytest.raises(TenantNotFoundError):
        tenants.add_key(key(1))


def test_every_change_is_seen_by_others_and_nothing_else_is_read_again(tenants: SqlTenants, database: Database) -> None:
    other = SqlTenants(database)
    known = loaded(other)
    changes = (
        lambda: tenants.create(TENANT),
        lambda: tenants.add_key(key(1)),
        lambda: tenants.rotate(key(2), grace_seconds=0),
        lambda: tenants.revoke(ACME, "k2", now=1.0),
        lambda: tenants.change(ACME, {"priority": 1}),
        lambda: tenants.delete(ACME),
    )
    for change in changes:
        assert other.load(known) is None
        change()
        after = other.load(known)
        assert after is not None
        assert after.revision > known.revision
        known = after
    assert other.load(known) is None
    assert (known.tenants, known.keys) == ((), ())


def test_a_change_that_fails_is_no_change(tenants: SqlTenants) -> None:
    tenants.create(TENANT)
    known = loaded(tenants)
    with pytest.raises(TenantConflictError):
        tenants.create(TENANT)
    assert tenants.load(known) is None


def test_a_store_made_anew_takes_over_what_is_known(tenants: SqlTenants, database: Database) -> None:
    tenants.create(TENANT)
    tenants.add_key(key(1))
    known = loaded(tenants)
    with database.transaction(write=True) as connection:
        command.downgrade(configuration(connection), "base")
    database.open()
    restored = tenants.load(known)
    assert restored is not None
    assert restored.store != known.store
    assert (restored.tenants, restored.keys) == (known.tenants, known.keys)
    assert loaded(tenants) == restored


def test_a_store_in_which_others_began_is_believed(tenants: SqlTenants) -> None:
    tenants.create(TenantRecord(name=UMBRELLA))
    found = tenants.load(Tenancy("another store", 7, (TENANT,), (key(1),)))
    assert found == replace(loaded(tenants), closed=ClosedReason.LOST), "but it opens nothing that was closed"


def test_deleting_every_key_opens_nothing_until_somebody_says_so(tenants: SqlTenants) -> None:
    assert loaded(tenants).closed is ClosedReason.NO
    tenants.create(TENANT)
    tenants.add_key(key(1))
    with pytest.raises(TenantConflictError, match="1 API keys"):
        tenants.admit_all()
    tenants.delete(ACME)
    assert (loaded(tenants).keys, loaded(tenants).closed) == ((), ClosedReason.KEYED)
    tenants.admit_all()
    assert loaded(tenants).closed is ClosedReason.NO
    tenants.create(TENANT)
    tenants.rotate(key(2), grace_seconds=0)
    tenants.delete(ACME)
    assert loaded(tenants).closed is ClosedReason.KEYED


def test_a_store_put_back_to_before_its_keys_opens_nothing(tenants: SqlTenants, database: Database) -> None:
    """As from a backup: it names the store that is known."""
    before = loaded(tenants)
    tenants.create(TENANT)
    tenants.add_key(key(1))
    known = loaded(tenants)
    with database.transaction(write=True) as connection:
        connection.execute(text("DELETE FROM api_keys"))
        connection.execute(text("DELETE FROM tenants"))
        connection.execute(text("UPDATE tenancy SET access = '', revision = :before"), {"before": before.revision})
    after = tenants.load(known)
    assert after is not None
    assert (after.keys, after.closed) == ((), ClosedReason.LOST)
    again = tenants.load(replace(after, revision=-1))
    assert again is not None
    assert again.closed is ClosedReason.LOST, "for as long as nobody says otherwise"


def test_a_lost_store_that_was_opened_stays_open_when_it_is_lost_again_to_who_knows(
    tenants: SqlTenants, database: Database
) -> None:
    tenants.admit_all()
    known = loaded(tenants)
    with database.transaction(write=True) as connection:
        command.downgrade(configuration(connection), "base")
    database.open()
    anew = tenants.load(known)
    assert anew is not None
    assert (anew.access, anew.closed) == (StoreAccess.OPEN, ClosedReason.NO)


def test_keys_of_before_stores_said_so_count(tenants: SqlTenants, database: Database) -> None:
    tenants.create(TENANT)
    tenants.add_key(key(1))
    with database.transaction(write=True) as connection:
        command.downgrade(configuration(connection), "0006")
    database.open()
    assert loaded(tenants).access is StoreAccess.KEYED
    tenants.delete(ACME)
    assert loaded(tenants).closed is ClosedReason.KEYED


def test_the_marker_outlives_the_store(tmp_path: Path) -> None:
    file = tmp_path / "x.db"

    def opened() -> SqlTenants:
        found = SqlTenants(Database(f"sqlite:///{file}", timeout_seconds=1))
        found.open()
        return found

    tenants = opened()
    assert loaded(tenants).closed is ClosedReason.NO
    marker = AccessMarker(tmp_path / "x.db.access")
    assert marker.read() is Mark.UNKEYED
    tenants.create(TENANT)
    tenants.add_key(key(1))
    loaded(tenants)
    assert marker.read() is Mark.KEYED
    for part in tmp_path.glob("x.db*"):
        if part.suffix != ".access":
            part.unlink()
    tenants = opened()
    assert loaded(tenants).closed is ClosedReason.LOST
    tenants.admit_all()
    assert loaded(tenants).closed is ClosedReason.NO
    assert marker.read() is Mark.UNKEYED


class InFolder:
    """A store in a folder, with a copy of its marker outside of it."""

    def __init__(self, root: Path) -> None:
        self.folder, self.copy = root / "data", root / "state" / "access" / "x"
        self.folder.mkdir()

    def opened(self) -> SqlTenants:
        found = SqlTenants(Database(f"sqlite:///{self.folder / 'x.db'}", timeout_seconds=1, marker_copy=self.copy))
        found.open()
        return found

    def keyed(self) -> SqlTenants:
        tenants = self.opened()
        loaded(tenants)
        tenants.create(TENANT)
        tenants.add_key(key(1))
        return tenants

    def empty(self) -> None:
        for part in self.folder.iterdir():
            part.unlink()


def test_an_emptied_folder_stays_closed_by_the_copy_of_its_marker(tmp_path: Path) -> None:
    store = InFolder(tmp_path)
    assert loaded(store.opened()).closed is ClosedReason.NO
    assert not store.copy.parent.exists(), "nothing is written elsewhere before there are keys"
    store.keyed()
    assert AccessMarker(store.copy).read() is Mark.KEYED
    store.empty()
    tenants = store.opened()
    assert loaded(tenants).closed is ClosedReason.LOST
    tenants.admit_all()
    assert loaded(tenants).closed is ClosedReason.NO
    assert not store.copy.exists()
    store.empty()
    assert loaded(store.opened()).closed is ClosedReason.NO


def test_a_copy_that_is_lost_is_made_anew(tmp_path: Path) -> None:
    store = InFolder(tmp_path)
    store.keyed()
    store.copy.unlink()
    assert loaded(store.opened()).keys
    assert AccessMarker(store.copy).read() is Mark.KEYED


def test_where_the_copy_cannot_be_written_no_key_is_made(tmp_path: Path) -> None:
    store = InFolder(tmp_path)
    store.copy.parent.parent.write_text("no folder")
    with pytest.raises(StoreError, match="x cannot be written"):
        store.keyed()
    assert loaded(store.opened()).closed is ClosedReason.NO
    assert store.opened().keys(ACME) == []


def test_a_marker_that_cannot_be_written_is_a_problem_until_it_can(tmp_path: Path) -> None:
    tenants = SqlTenants(Database(f"sqlite:///{tmp_path / 'x.db'}", timeout_seconds=1))
    tenants.open()
    (tmp_path / "x.db.access.new").mkdir()
    found = loaded(tenants)
    assert "x.db.access cannot be written" in tenants.problem
    (tmp_path / "x.db.access.new").rmdir()
    assert tenants.load(found) is None
    assert tenants.problem == ""
    assert AccessMarker(tmp_path / "x.db.access").read() is Mark.UNKEYED


class OfOneFile:
    """A store in a file, and what a process that starts now finds of it."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "x.db"
        self.marker = AccessMarker(folder / "x.db.access")
        self.database = Database(f"sqlite:///{self.file}", timeout_seconds=1)
        self.tenants = self._opened(self.database)
        loaded(self.tenants)
        self.tenants.create(TENANT)

    def block(self) -> Path:
        """Let the marker take no more writes, as on a full disk."""
        way = self.file.with_name("x.db.access.new")
        way.mkdir()
        return way

    def started(self) -> SqlTenants:
        return self._opened(Database(f"sqlite:///{self.file}", timeout_seconds=1))

    def _opened(self, database: Database) -> SqlTenants:
        tenants = SqlTenants(database)
        tenants.open()
        return tenants


def test_keys_are_marked_before_they_are_made(tmp_path: Path) -> None:
    store = OfOneFile(tmp_path)
    with pytest.raises(TenantNotFoundError):
        store.tenants.add_key(key(1, tenant=UMBRELLA))
    assert store.marker.read() is Mark.UNKEYED
    store.tenants.add_key(key(1))
    assert store.marker.read() is Mark.KEYED, "though nobody has read them yet"


def test_without_its_marker_no_key_is_made(tmp_path: Path) -> None:
    store = OfOneFile(tmp_path)
    way = store.block()
    for make in (store.tenants.add_key, lambda made: store.tenants.rotate(made, grace_seconds=1.0)):
        with pytest.raises(StoreError, match=r"x\.db\.access cannot be written"):
            make(key(1))
    way.rmdir()
    assert (store.tenants.keys(ACME), store.marker.read()) == ([], Mark.UNKEYED)
    assert loaded(store.started()).closed is ClosedReason.NO


@pytest.mark.parametrize("before", [Mark.UNKEYED, Mark.LOST])
def test_a_key_that_the_store_did_not_take_closes_nothing(tmp_path: Path, before: Mark) -> None:
    store = OfOneFile(tmp_path)
    store.marker.write(before)
    engine = store.database._engine
    assert engine is not None

    def fail(_: object) -> None:
        assert store.marker.read() is Mark.KEYED
        event.remove(engine, "commit", fail)
        raise sqlite3.OperationalError("database or disk is full")

    event.listen(engine, "commit", fail)
    with pytest.raises(StoreError):
        store.tenants.add_key(key(1))
    assert (store.tenants.keys(ACME), store.marker.read()) == ([], before)
    assert loaded(store.started()).closed is (ClosedReason.NO if before is Mark.UNKEYED else ClosedReason.LOST)


def test_keys_are_restored_only_with_their_marker(tmp_path: Path) -> None:
    store = OfOneFile(tmp_path)
    store.tenants.add_key(key(1))
    known = loaded(store.tenants)
    store.database.close()
    for part in tmp_path.iterdir():
        part.unlink()
    way, anew = store.block(), store.started()
    with pytest.raises(StoreError, match="cannot be written"):
        anew.load(known)
    assert anew.tenants() == []
    way.rmdir()
    restored = anew.load(known)
    assert restored is not None
    assert (restored.keys, store.marker.read()) == ((key(1),), Mark.KEYED)


def test_a_marker_of_keys_that_are_not_there_is_opened_by_hand(tmp_path: Path) -> None:
    store = OfOneFile(tmp_path)
    store.marker.write(Mark.KEYED)
    anew = store.started()
    assert loaded(anew).closed is ClosedReason.LOST
    anew.admit_all()
    assert loaded(anew).closed is ClosedReason.NO


def test_only_a_store_of_which_nothing_is_left_certainly_had_no_key(tmp_path: Path) -> None:
    def never_keyed() -> bool:
        return SqlTenants(Database(f"sqlite:///{tmp_path / 'x.db'}", timeout_seconds=1)).never_keyed()

    assert never_keyed()
    (tmp_path / "x.db").write_bytes(b"")
    assert not never_keyed()
    AccessMarker(tmp_path / "x.db.access").write(Mark.UNKEYED)
    assert never_keyed()
    AccessMarker(tmp_path / "x.db.access").write(Mark.KEYED)
    assert not never_keyed()
    for left in tmp_path.iterdir():
        left.unlink()
    (tmp_path / "x.db.corrupt-1").write_bytes(b"")
    assert not never_keyed()
    server = SqlTenants(Database("postgresql://nobody@/none", timeout_seconds=1, folder=tmp_path))
    assert not server.never_keyed()


def test_deleting_everything_is_not_losing_it(tenants: SqlTenants) -> None:
    tenants.create(TENANT)
    known = loaded(tenants)
    tenants.delete(ACME)
    after = tenants.load(known)
    assert after is not None
    assert after.tenants == ()


def test_the_migration_goes_down_and_up_again(tenants: SqlTenants, database: Database) -> None:
    before = loaded(tenants).store
    with database.transaction(write=True) as connection:
        command.downgrade(configuration(connection), "0002")
        assert not {"tenants", "api_keys", "usage", "tenancy"} & set(inspect(connection).get_table_names())
    tenants.open()
    assert loaded(tenants).store != before


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_a_row_that_cannot_be_read_says_so(tenants: SqlTenants, database: Database) -> None:
    """SQLite takes anything in any column."""
    tenants.create(TENANT)
    with database.transaction(write=True) as connection:
        connection.execute(text("UPDATE tenants SET priority = 'high'"))
    with pytest.raises(StoreError, match="cannot be read by this program"):
        tenants.tenants()


def test_keys_that_another_process_is_about_to_commit_are_not_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The marker is written before they are committed, and whoever reads in between must not close the store."""
    one, other = (SqlTenants(Database(f"sqlite:///{tmp_path}/x.db", timeout_seconds=10)) for _ in range(2))
    for tenants in (one, other):
        tenants.open()
    one.create(TENANT)
    marked, read = threading.Event(), threading.Event()
    write = one._database.marker.write

    def written(mark: Mark) -> None:
        write(mark)
        marked.set()
        assert read.wait(10)

    def seen() -> Mark:
        read.set()
        return Mark.KEYED

    monkeypatch.setattr(one._database.marker, "write", written)
    monkeypatch.setattr(other._database.marker, "read", seen)
    with ThreadPoolExecutor(1) as thread:
        making = thread.submit(one.add_key, key(1))
        assert marked.wait(10)
        found = loaded(other)
        making.result()
    assert (found.closed, found.keys) == (ClosedReason.KEYED, (key(1),))
