"""Tenants in the whole control plane: made by the admin API, known at the gateway at once, and after a restart."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import aiohttp

from tests.controlplane.gateway.harness import chat, engine
from tests.controlplane.test_control_plane import Plane, running
from tests.controlplane.waiting import until


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
    shared: dict[str, Any] = {"database_url": database_url, "tenants_poll_seconds": 0.05}
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


async def test_a_lost_store_opens_nothing(tmp_path: Path) -> None:
    async with engine() as worker, running(tmp_path, worker, tenants_poll_seconds=0.05) as made:
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
