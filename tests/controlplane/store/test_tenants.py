"""Tenants and their keys in real SQLite and PostgreSQL."""

from dataclasses import fields, replace

import pytest
from alembic import command
from sqlalchemy import inspect, text

from cachefleet_controlplane.store import sql_tenants
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
        id=f"k{number}", tenant=tenant, hash=f"{number:064x}", hint="cf-abcdef", created=created, expires=expires
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
    assert found == loaded(tenants)


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
