"""Whose a key is, and how what is known of that stays fresh."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing, suppress
from itertools import count
from pathlib import Path
from threading import Event

import pytest

from cachefleet_controlplane.metrics import Metrics
from cachefleet_controlplane.store.database import Database
from cachefleet_controlplane.store.sql_tenants import SqlTenants, TenantConflictError
from cachefleet_controlplane.store.store_errors import StoreError
from cachefleet_controlplane.store.tenant_records import KeyRecord, Tenancy, TenantRecord
from cachefleet_controlplane.tenants.directory import EVERYONE, Directory, Tenants, Unknown, given_key
from cachefleet_core.tenancy import DEFAULT_TENANT, TenantId
from tests.controlplane.waiting import task, until, value

ACME = TenantRecord(name=TenantId("acme"), salt_version=3)


def key(number: int, *, expires: float | None = None, revoked: float | None = None) -> KeyRecord:
    text = f"{number:064x}"
    return KeyRecord(
        id=f"k{number}", tenant=ACME.name, hash=text, hint="cf-x", created=1.0, expires=expires, revoked=revoked
    )


def directory(*keys: KeyRecord, required: bool = False) -> Directory:
    return Directory.of(Tenancy("s", 1, (ACME,), keys), required=required)


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ([], b""),
        ([(b"authorization", b"Bearer cf-1")], b"cf-1"),
        ([(b"authorization", b"bearer  cf-1 ")], b"cf-1"),
        ([(b"x-api-key", b" cf-2 ")], b"cf-2"),
        ([(b"x-api-key", b"cf-2"), (b"authorization", b"Bearer cf-1")], b"cf-1"),
        ([(b"authorization", b"Basic Zm9v"), (b"x-api-key", b"cf-2")], b"cf-2"),
        ([(b"x-api-key", b"cf-2"), (b"x-api-key", b"cf-3")], b"cf-2"),
        ([(b"authorization", b"Bearer")], b""),
        ([(b"authorization", b"Bearer \xff")], b"\xff"),
        ([(b"cookie", b"cf-1")], b""),
    ],
)
def test_the_key_is_the_bearer_else_the_api_key_header(headers: list[tuple[bytes, bytes]], expected: bytes) -> None:
    assert given_key(headers) == expected


def test_a_key_is_its_tenants_until_it_ends() -> None:
    known = directory(key(1), key(2, expires=50.0), key(3, revoked=10.0))
    assert known.owner(key(1).hash, 1e12) == ACME
    assert known.owner(key(2).hash, 49.9) == ACME
    assert known.owner(key(2).hash, 50.0) is Unknown.ENDED
    assert known.owner(key(3).hash, 0.0) is Unknown.ENDED
    assert known.owner(key(4).hash, 0.0) is Unknown.WRONG
    assert known.owner("", 0.0) is Unknown.MISSING


def test_without_any_key_everyone_is_the_default_tenant() -> None:
    assert directory().open
    assert directory().default() == EVERYONE
    assert not directory(required=True).open
    own = TenantRecord(name=DEFAULT_TENANT, priority=1)
    assert Directory.of(Tenancy("s", 1, (own,)), required=False).default() == own


def test_revoking_the_last_key_opens_nothing() -> None:
    assert not directory(key(1, revoked=5.0)).open


def test_a_key_whose_tenant_is_unknown_is_none() -> None:
    assert Directory.of(Tenancy("s", 1, (), (key(1),)), required=False).owner(key(1).hash, 0.0) is Unknown.WRONG


def test_salt_versions_of_tenants_nobody_made_are_the_first() -> None:
    assert directory().salt_version(ACME.name) == 3
    assert directory().salt_version(TenantId("other")) == 1


@pytest.fixture
def metrics() -> Metrics:
    return Metrics()


@asynccontextmanager
async def replica(file: Path, metrics: Metrics, *, required: bool = False) -> AsyncIterator[tuple[Tenants, SqlTenants]]:
    """A control plane's part that knows tenants, over a database of its own to the same file."""
    with closing(Database(f"sqlite:///{file}", timeout_seconds=0.5)) as database:
        repository = SqlTenants(database)
        tenants = Tenants(repository, metrics=metrics, poll_seconds=0.02, required=required)
        async with task(tenants.run()):
            await tenants.informed.wait()
            yield tenants, repository


async def test_a_change_here_is_known_at_once_and_elsewhere_soon(tmp_path: Path, metrics: Metrics) -> None:
    file = tmp_path / "x.db"
    async with replica(file, metrics) as (here, store), replica(file, Metrics()) as (there, _):
        await here.change(lambda: store.create(ACME))
        assert here.directory.tenants == {ACME.name: ACME}
        await here.change(lambda: store.add_key(key(1)))
        assert here.directory.owner(key(1).hash, 2.0) == ACME
        await until(lambda: there.directory.owner(key(1).hash, 2.0) == ACME)
        await here.change(lambda: store.revoke(ACME.name, "k1", now=2.0))
        assert here.directory.owner(key(1).hash, 2.0) is Unknown.ENDED
        await until(lambda: there.directory.owner(key(1).hash, 2.0) is Unknown.ENDED)


async def test_listeners_hear_of_changes_and_of_nothing_else(tmp_path: Path, metrics: Metrics) -> None:
    heard: list[int] = []
    async with replica(tmp_path / "x.db", metrics) as (tenants, store):
        tenants.on_change(lambda: heard.append(len(tenants.directory.tenants)))
        await tenants.refresh()
        await tenants.change(lambda: store.create(ACME))
        await tenants.refresh()
    assert heard == [1]


async def test_what_was_wrong_with_a_change_is_raised_and_changes_nothing(tmp_path: Path, metrics: Metrics) -> None:
    async with replica(tmp_path / "x.db", metrics) as (tenants, store):
        await tenants.change(lambda: store.create(ACME))
        before = tenants.directory
        with pytest.raises(TenantConflictError):
            await tenants.change(lambda: store.create(ACME))
        assert tenants.directory is before


def put_in_the_way(folder: Path) -> None:
    """A file in place of a folder, which may be made anew between two steps."""
    stone = folder.with_name("stone")
    stone.write_text("in the way")
    for number in count():
        folder.rename(folder.with_name(f"gone-{number}"))
        with suppress(OSError):
            stone.rename(folder)
            return


async def test_losing_the_store_changes_nothing_of_what_is_known(tmp_path: Path, metrics: Metrics) -> None:
    file = tmp_path / "store" / "x.db"
    async with replica(file, metrics) as (tenants, store):
        await tenants.change(lambda: store.create(ACME))
        await tenants.change(lambda: store.add_key(key(1)))
        put_in_the_way(file.parent)
        await until(lambda: bool(tenants.problem))
        assert tenants.directory.owner(key(1).hash, 2.0) == ACME
        assert not tenants.directory.open
        file.parent.unlink()
        await until(lambda: not tenants.problem)
        assert tenants.directory.owner(key(1).hash, 2.0) == ACME
        assert store.keys(ACME.name) == [key(1)], "and the new store has it again"
    assert value(metrics, "store_errors_total", kind="missing") >= 1


async def test_a_store_that_answers_nothing_is_not_waited_for(
    tmp_path: Path, metrics: Metrics, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cachefleet_controlplane.tenants.directory.ANSWER_SECONDS", 0.05)
    release = Event()
    async with replica(tmp_path / "x.db", metrics) as (tenants, _):
        with pytest.raises(StoreError, match="in time"):
            await tenants.ask(lambda: release.wait(60))
        release.set()


async def test_a_store_that_was_never_read_opens_to_everyone_only_where_keys_are_not_required(
    tmp_path: Path, metrics: Metrics
) -> None:
    (tmp_path / "blocked").write_text("a file where a folder should be")
    for required in (False, True):
        async with replica(tmp_path / "blocked" / "x.db", metrics, required=required) as (tenants, _):
            assert tenants.directory.open is not required
            assert tenants.directory.owner(key(1).hash, 2.0) is Unknown.UNREAD
