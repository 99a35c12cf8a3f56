"""Keys that are revoked while the store takes no writes: refused at once, written later."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from cachefleet_controlplane.metrics import Metrics
from cachefleet_controlplane.store.sql_tenants import TenantNotFoundError
from cachefleet_controlplane.store.store_errors import StoreError
from cachefleet_controlplane.store.tenant_records import KeyState, Tenancy
from cachefleet_controlplane.tenants.directory import Unknown
from cachefleet_controlplane.tenants.revocations import Revocations
from cachefleet_core.tenancy import TenantId
from tests.controlplane.tenants.test_directory import ACME, key, replica
from tests.controlplane.waiting import until, value

NAME = (ACME.name, "k1")


@contextmanager
def no_writes(file: Path) -> Iterator[None]:
    """Reads are served."""
    with closing(sqlite3.connect(file, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        yield


def test_the_first_time_counts_and_what_the_store_has_is_settled() -> None:
    waiting = Revocations()
    waiting.add(NAME, 5.0)
    waiting.add(NAME, 9.0)
    assert waiting.applied(key(1)) == replace(key(1), revoked=5.0)
    assert waiting.applied(key(1, revoked=2.0)) == key(1, revoked=2.0)
    assert waiting.applied(key(2)) == key(2)
    waiting.settle(Tenancy("s", 1, (ACME,), (key(1), key(2))))
    assert NAME in waiting
    waiting.settle(Tenancy("s", 2, (ACME,), (key(1, revoked=5.0), key(2))))
    assert len(waiting) == 0


def test_what_waits_is_a_problem_that_says_why() -> None:
    waiting = Revocations()
    assert waiting.problem == ""
    waiting.add(NAME, 5.0)
    waiting.failure = "database full: no room"
    assert "1 revoked API keys" in waiting.problem
    assert "database full: no room" in waiting.problem
    waiting.settle(Tenancy("s", 1))
    assert waiting.problem == "", "its key is gone"


async def test_a_key_is_refused_though_the_store_takes_no_writes_and_written_once_it_does(tmp_path: Path) -> None:
    file, metrics = tmp_path / "x.db", Metrics()
    async with replica(file, metrics) as (tenants, store), replica(file, Metrics()) as (elsewhere, _):
        await tenants.change(lambda: store.create(ACME))
        await tenants.change(lambda: store.add_key(key(1)))
        with no_writes(file):
            told = await tenants.revoke(*NAME, now=2.0)
            assert (told.revoked, told.state(2.0)) == (2.0, KeyState.REVOKED)
            assert tenants.directory.owner(key(1).hash, 2.0) is Unknown.ENDED
            await tenants.refresh()
            assert tenants.directory.owner(key(1).hash, 2.0) is Unknown.ENDED, "reading again brings nothing back"
            assert "1 revoked API keys are refused here and not written" in tenants.problem
            assert value(metrics, "revocations_waiting") == 1
            assert store.keys(ACME.name) == [key(1)]
        await until(lambda: NAME not in tenants.revocations)
        assert store.keys(ACME.name) == [key(1, revoked=2.0)]
        await until(lambda: elsewhere.directory.owner(key(1).hash, 2.0) is Unknown.ENDED)
        await until(lambda: not tenants.problem)
        assert value(metrics, "revocations_waiting") == 0


async def test_a_disk_that_is_full_for_writes_keeps_nothing_else_from_being_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise StoreError("full", "database full: no room")

    file, metrics = tmp_path / "x.db", Metrics()
    async with replica(file, metrics) as (tenants, store), replica(file, Metrics()) as (elsewhere, other):
        await tenants.change(lambda: store.create(ACME))
        await tenants.change(lambda: store.add_key(key(1)))
        with monkeypatch.context() as patched:
            patched.setattr(store, "revoke", full)
            await tenants.revoke(*NAME, now=2.0)
            assert "database full" in tenants.problem
            assert value(metrics, "store_errors_total", kind="full") == 1
            await elsewhere.change(lambda: other.add_key(key(2)))
            await until(lambda: tenants.directory.owner(key(2).hash, 2.0) == ACME)
            assert tenants.directory.owner(key(1).hash, 2.0) is Unknown.ENDED
        await until(lambda: NAME not in tenants.revocations)
        assert store.keys(ACME.name) == [key(1, revoked=2.0), key(2)]


async def test_of_a_key_nobody_knows_the_store_has_to_say(tmp_path: Path) -> None:
    file = tmp_path / "x.db"
    async with replica(file, Metrics()) as (tenants, store):
        with pytest.raises(TenantNotFoundError):
            await tenants.revoke(TenantId("nobody"), "k", now=2.0)
        await tenants.change(lambda: store.create(ACME))
        with no_writes(file), pytest.raises(StoreError):
            await tenants.revoke(*NAME, now=2.0)
        assert len(tenants.revocations) == 0


async def test_a_tenant_that_is_deleted_meanwhile_leaves_nothing_to_write(tmp_path: Path) -> None:
    file = tmp_path / "x.db"
    async with replica(file, Metrics()) as (tenants, store):
        await tenants.change(lambda: store.create(ACME))
        await tenants.change(lambda: store.add_key(key(1)))
        tenants.revocations.add(NAME, 2.0)
        store.delete(ACME.name)
        await until(lambda: len(tenants.revocations) == 0)
        assert tenants.problem == ""
