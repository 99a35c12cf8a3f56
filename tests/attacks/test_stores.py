"""Databases that are corrupt, read-only, full, hang or go: requests are served as before, and no door opens."""

from __future__ import annotations

import json
import signal
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, event

from cachefleet_controlplane.tenants import directory
from tests.attacks.target import Target, attacked
from tests.controlplane.store.postgresql import PostgreSQL
from tests.controlplane.waiting import until
from tests.controlplane.wiring.test_control_plane import BOUNDS

QUICK = replace(BOUNDS, tenants_poll_seconds=0.2)


def _database(folder: Path) -> Path:
    return folder / "data" / "controlplane.db"


async def test_a_corrupt_store_opens_nothing(tmp_path: Path) -> None:
    async with attacked(tmp_path) as target:
        await target.tenant("acme")
    _database(tmp_path).write_bytes(b"not a database" * 1000)
    async with attacked(tmp_path) as target:
        for _ in range(3):
            status, headers, told = await target.chat()
            assert (status, "retry-after" in headers) == (503, True)
            assert b"api_keys_lost" in told
        assert json.loads((await target.plane.get("/readyz"))[1])["tenants"]["keys_lost"]
        key = await target.tenant("acme")
        assert (await target.chat(key=key))[0] == 200
        assert (await target.chat())[0] == 401


async def test_a_store_that_is_gone_opens_nothing(tmp_path: Path) -> None:
    async with attacked(tmp_path) as target:
        await target.tenant("acme")
    for file in _database(tmp_path).parent.glob("controlplane.db*"):
        if not file.name.endswith(".access"):
            file.unlink()
    async with attacked(tmp_path) as target:
        assert (await target.chat())[0] == 503


@contextmanager
def _no_room(target: Target) -> Iterator[None]:
    """The process can make no file longer, as on a full disk."""
    import resource  # noqa: PLC0415

    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


async def test_a_full_disk_stops_no_request_and_opens_nothing(target: Target) -> None:
    key = await target.tenant("acme")
    with _no_room(target):
        assert (await target.chat(key=key))[0] == 200
        assert (await target.chat())[0] == 401
        assert (await target.admin("POST", "/tenants", {"name": "umbrella"}))[0] == 503
        assert (await target.chat(key=key))[0] == 200
    assert (await target.admin("POST", "/tenants", {"name": "umbrella"}))[0] == 201


async def test_a_key_that_is_revoked_on_a_full_disk_opens_nothing(target: Target) -> None:
    key, kept = await target.tenant("acme"), await target.tenant("umbrella")
    (listed,) = (await target.admin("GET", "/tenants/acme/keys"))[1]["items"]
    with _no_room(target):
        await target.admin("DELETE", f"/tenants/acme/keys/{listed['id']}")
        assert (await target.chat(key=key))[0] == 401
        assert (await target.chat(key=kept))[0] == 200
    await until(lambda: not target.plane.plane.tenancy.tenants.problem)
    assert (await target.chat(key=key))[0] == 401


async def test_a_store_that_others_have_locked_is_read_all_the_same(tmp_path: Path) -> None:
    """Also after a change was refused: to read needs no lock."""
    async with attacked(tmp_path, database_timeout_seconds=0.2) as target:
        key = await target.tenant("acme")
        with closing(sqlite3.connect(_database(tmp_path), isolation_level=None)) as other:
            other.execute("BEGIN EXCLUSIVE")
            for _ in range(2):
                assert (await target.admin("POST", "/tenants", {"name": "umbrella"}))[0] == 503
                status, told = await target.admin("GET", "/tenants")
                assert (status, [one["name"] for one in told["items"]]) == (200, ["acme"])
                assert (await target.chat(key=key))[0] == 200
        assert (await target.admin("POST", "/tenants", {"name": "umbrella"}))[0] == 201


@pytest.fixture
def on_postgresql(postgresql: PostgreSQL) -> dict[str, Any]:
    return {"database_url": postgresql.database(), "database_timeout_seconds": 0.5, "bounds": QUICK}


async def test_a_postgresql_that_hangs(
    tmp_path: Path, postgresql: PostgreSQL, on_postgresql: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(directory, "ANSWER_SECONDS", 1.0)
    async with attacked(tmp_path, **on_postgresql) as target:
        key = await target.tenant("acme")
        with postgresql.hung():
            await until(lambda: bool(target.plane.plane.tenancy.tenants.problem))
            assert (await target.chat(key=key))[0] == 200
            assert (await target.chat())[0] == 401
            assert (await target.admin("POST", "/tenants", {"name": "umbrella"}))[0] == 503
        await until(lambda: not target.plane.plane.tenancy.tenants.problem)
        assert (await target.admin("POST", "/tenants", {"name": "umbrella"}))[0] == 201


async def test_a_postgresql_that_goes(tmp_path: Path, postgresql: PostgreSQL, on_postgresql: dict[str, Any]) -> None:
    async with attacked(tmp_path, **on_postgresql) as target:
        key = await target.tenant("acme")
        postgresql.stop()
        try:
            await until(lambda: bool(target.plane.plane.tenancy.tenants.problem))
            assert (await target.chat(key=key))[0] == 200
            assert (await target.chat())[0] == 401
        finally:
            postgresql.start()
        await until(lambda: not target.plane.plane.tenancy.tenants.problem)
        assert (await target.chat(key=key))[0] == 200


@contextmanager
def _read_only() -> Iterator[None]:
    """SQLite refuses every write of connections that are made within, as of a file that may not be written."""

    def connected(connection: Any, _record: Any) -> None:
        connection.execute("PRAGMA query_only = ON")

    event.listen(Engine, "connect", connected)
    try:
        yield
    finally:
        event.remove(Engine, "connect", connected)


async def test_a_store_that_is_read_only(tmp_path: Path) -> None:
    async with attacked(tmp_path) as target:
        key = await target.tenant("acme")
    with _read_only():
        async with attacked(tmp_path, ready=False) as target:
            await until(target.plane.plane.tenancy.tenants.informed.is_set)
            assert (await target.plane.get("/readyz"))[0] == 503
            told = [(await target.chat(key=key))[0], (await target.chat())[0]]
            assert told == [503, 503]  # which keys there are, a replica that starts cannot be sure
            assert (await target.admin("POST", "/tenants", {"name": "umbrella"}))[0] == 503
