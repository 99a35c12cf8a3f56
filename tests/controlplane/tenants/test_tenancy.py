"""Tenants in the whole control plane: made by the admin API, known at the gateway at once, and after a restart."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp

from tests.controlplane.gateway.harness import chat, engine
from tests.controlplane.waiting import until
from tests.controlplane.wiring.test_control_plane import BOUNDS, Plane, running

QUICK = replace(BOUNDS, tenants_poll_seconds=0.05)


async def admin(made: Plane, method: str, path: str, body: Any = None) -> Any:
    headers = {"authorization": "Bearer for-people"}
    url = f"{made.internal}/admin/v1/{path}"
    async with aiohttp.ClientSession() as http, http.request(method, url, json=body, headers=headers) as answer:
        assert answer.status < 300, await answer.text()
        return json.loads(await answer.read() or b"null")


async def ask(made: Plane, key: str = "") -> int:
    url, headers = made.gateway + "/v1/chat/completions", {"x-api-key": key} if key else {}
    async with aiohttp.ClientSession() as http, http.post(url, json=chat("x"), headers=headers) as answer:
        return answer.status


async def new_tenant(made: Plane, name: str) -> str:
    await admin(made, "POST", "tenants", {"name": name})
    return str((await admin(made, "POST", f"tenants/{name}/keys", {}))["key"])


async def test_the_first_key_closes_the_gateway_to_all_others_and_stays_over_a_restart(tmp_path: Path) -> None:
    async with engine() as worker:
        async with running(tmp_path, worker) as made:
            assert await ask(made) == 200
            key = await new_tenant(made, "acme")
            assert [await ask(made), await ask(made, "cf-other"), await ask(made, key)] == [401, 401, 200]
        async with running(tmp_path, worker) as made:
            assert [await ask(made), await ask(made, key)] == [401, 200]
            new = (await admin(made, "POST", "tenants/acme/keys/rotate", {}))["key"]
            assert [await ask(made, key), await ask(made, new)] == [401, 200]


async def test_two_replicas_know_of_each_others_changes_and_count_into_one_account(
    tmp_path: Path, database_url: str
) -> None:
    """Over one PostgreSQL, as replicas are run; over one SQLite file it is the same to them."""
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
    shared: dict[str, Any] = {"database_url": database_url, "bounds": QUICK}
    async with (
        engine() as worker,
        running(tmp_path / "a", worker, **shared) as one,
        running(tmp_path / "b", worker, **shared) as other,
    ):
        key = await new_tenant(one, "acme")
        await until(lambda: not other.plane.tenancy.tenants.directory.open)
        for replica in (one, other):
            assert [await ask(replica, key), await ask(replica)] == [200, 401]
        await other.plane.tenancy.usage.flush()
        (used,) = (await admin(one, "GET", "usage?to=9999-01-01T00:00:00Z&from=2000-01-01T00:00:00Z"))["items"]
        assert (used["tenant"], used["model"], used["requests"]) == ("acme", "fake", 2)
        assert used["promptTokens"] == used["cachedTokens"] + used["computedTokens"] > 0
        assert used["completionTokens"] > 0


async def test_required_keys_refuse_everyone_until_there_is_one(tmp_path: Path) -> None:
    async with engine() as worker, running(tmp_path, worker, api_keys="required") as made:
        assert await ask(made) == 401
        key = await new_tenant(made, "acme")
        assert await ask(made, key) == 200


async def test_a_corrupt_store_opens_nothing_until_somebody_says_so(tmp_path: Path) -> None:
    async with engine() as worker:
        async with running(tmp_path, worker) as made:
            assert await ask(made) == 200
            key = await new_tenant(made, "acme")
        damage(tmp_path)
        async with running(tmp_path, worker) as made:
            assert [await ask(made), await ask(made, key)] == [503, 503]
            state = json.loads((await made.get("/readyz"))[1])["tenants"]
            assert state["keys_lost"] is True
            assert "cachefleet tenants open" in state["problem"]
            assert b"cachefleet_api_keys_lost 1.0" in (await made.get("/metrics"))[1]
        async with running(tmp_path, worker) as made:
            assert [await ask(made), await ask(made, key)] == [503, 503], "after a restart, too"
            assert await admin(made, "GET", "access") == {"open": False, "reason": "lost"}
            assert await admin(made, "POST", "access/open") == {"open": True, "reason": "open"}
            assert await ask(made) == 200
            state = json.loads((await made.get("/readyz"))[1])["tenants"]
            assert state == {"problem": "", "keys_lost": False}
        async with running(tmp_path, worker) as made:
            assert await ask(made) == 200


async def test_a_store_of_which_nothing_is_known_but_that_it_is_corrupt_opens_nothing(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    damage(tmp_path)
    async with engine() as worker, running(tmp_path, worker) as made:
        assert await ask(made) == 503
        key = await new_tenant(made, "acme")
        assert [await ask(made, key), await ask(made)] == [200, 401], "keys that are made anew open it to who has one"


async def test_a_store_that_is_gone_at_the_start_opens_nothing(tmp_path: Path) -> None:
    async with engine() as worker:
        async with running(tmp_path, worker) as made:
            key = await new_tenant(made, "acme")
        for part in (tmp_path / "data").glob("controlplane.db*"):
            if part.suffix != ".access":
                part.unlink()
        async with running(tmp_path, worker) as made:
            assert [await ask(made), await ask(made, key)] == [503, 503]


async def test_a_store_that_cannot_be_read_at_the_start_opens_nothing(tmp_path: Path) -> None:
    async with engine() as worker:
        async with running(tmp_path, worker) as made:
            key = await new_tenant(made, "acme")
        quick: dict[str, Any] = {"database_timeout_seconds": 0.05, "bounds": QUICK}
        with closing(sqlite3.connect(tmp_path / "data" / "controlplane.db", isolation_level=None)) as other:
            other.execute("BEGIN EXCLUSIVE")
            async with running(tmp_path, worker, ready=False, **quick) as made:
                assert (await made.get("/readyz"))[0] == 503
                assert [await ask(made), await ask(made, key)] == [503, 503]
                other.execute("ROLLBACK")
                await until(lambda: made.plane.tenancy.tenants.directory.read)
                assert [await ask(made), await ask(made, key)] == [401, 200]


def damage(folder: Path) -> None:
    for part in (folder / "data").glob("controlplane.db-*"):
        part.unlink()
    (folder / "data" / "controlplane.db").write_bytes(b"not a database at all" * 1000)


async def test_a_lost_store_opens_nothing(tmp_path: Path) -> None:
    async with engine() as worker, running(tmp_path, worker, bounds=QUICK) as made:
        key = await new_tenant(made, "acme")
        for part in (tmp_path / "data").iterdir():
            part.unlink()
        await until(
            lambda: bool(made.plane.tenancy.tenants.problem) or (tmp_path / "data" / "controlplane.db").exists()
        )
        assert [await ask(made), await ask(made, key)] == [401, 200]
        await until(lambda: not made.plane.tenancy.tenants.problem)
        async with asyncio.timeout(30):  # another part may have made the file anew, still without tenants
            while [tenant["name"] for tenant in (await admin(made, "GET", "tenants"))["items"]] != ["acme"]:
                assert [await ask(made), await ask(made, key)] == [401, 200]
        assert [await ask(made), await ask(made, key)] == [401, 200]
