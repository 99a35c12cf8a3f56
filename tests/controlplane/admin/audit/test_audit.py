"""Who asked to change what is noted, with what came of it, and never a secret."""

import json
from typing import Any

import httpx
import pytest

from cachefleet_controlplane.admin.tenant_service import TenantService
from cachefleet_controlplane.store.audit_log import AuditLog
from cachefleet_controlplane.store.audit_records import AuditRecord
from tests.controlplane.admin.conftest import TOKEN, Doorkeeper
from tests.controlplane.store.test_audit_log import record


async def last(audit: AuditLog) -> AuditRecord:
    return (await audit.recent(1))[0]


async def test_a_change_is_noted_with_who_what_where_and_what_came_of_it(
    client: httpx.AsyncClient, audit: AuditLog
) -> None:
    await client.put("/routing", json={"policy": "roundRobin"})
    noted = await last(audit)
    assert (noted.username, noted.method, noted.path) == (f"user of {TOKEN}", "PUT", "/routing")
    assert (noted.verb, noted.resource, noted.status) == ("update", "prefixcachepools/routing", 200)
    assert noted.address
    assert noted.change == {"policy": "roundRobin"}


async def test_a_key_is_noted_by_its_id_and_never_itself(client: httpx.AsyncClient, audit: AuditLog) -> None:
    await client.post("/tenants", json={"name": "a b".replace(" ", ":")})
    assert (await last(audit)).made == "/admin/v1/tenants/a%3Ab"
    made = await client.post("/tenants/a:b/keys", json={})
    noted = await last(audit)
    assert noted.made == f"/admin/v1/tenants/a%3Ab/keys/{made.json()['id']}"
    assert made.json()["key"] not in repr(noted)
    assert TOKEN not in repr(noted).replace(f"user of {TOKEN}", "")
    assert (await client.get(made.headers["location"].removeprefix("/admin/v1").rpartition("/")[0])).status_code == 200


async def test_what_was_refused_is_noted_without_its_body(
    client: httpx.AsyncClient, audit: AuditLog, doorkeeper: Doorkeeper
) -> None:
    await client.post("/tenants", json={"name": "acme", "apiKey": "cf-secret"})
    assert ((await last(audit)).status, (await last(audit)).change) == (422, None)
    await client.put("/routing", content=b"x" * 4096)
    assert (await last(audit)).status == 413
    await client.post("/nowhere")
    assert (await last(audit)).status == 404
    doorkeeper.forbidden = True
    await client.delete("/tenants/acme")
    assert ((await last(audit)).status, (await last(audit)).verb) == (403, "delete")


async def test_a_path_that_no_database_takes_is_made_one_that_it_does(
    client: httpx.AsyncClient, audit: AuditLog
) -> None:
    await client.delete("/tenants/a%00b%01c" + "x" * 600)
    noted = await last(audit)
    assert noted.path.startswith("/tenants/a\ufffdb\ufffdc")
    assert len(noted.path) == 512
    assert noted.path.isprintable()


async def test_a_change_that_fails_unexpectedly_is_noted_as_that(
    client: httpx.AsyncClient, audit: AuditLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(*_: object) -> None:
        raise ValueError("nobody foresaw this")

    monkeypatch.setattr(TenantService, "create", broken)
    assert (await client.post("/tenants", json={"name": "acme"})).status_code == 500
    noted = await last(audit)
    assert (noted.path, noted.status, noted.change) == ("/tenants", 500, None)


async def test_a_prompt_is_not_kept(client: httpx.AsyncClient, audit: AuditLog) -> None:
    await client.post("/explain", json={"model": "m", "prompt": "private"})
    noted = await last(audit)
    assert (noted.path, noted.status, noted.change) == ("/explain", 200, None)


async def test_reading_and_strangers_are_not_noted(client: httpx.AsyncClient, audit: AuditLog) -> None:
    await client.get("/pools")
    await client.put("/routing", json={"policy": "roundRobin"}, headers={"authorization": "Bearer wrong"})
    assert audit.waiting == 0


@pytest.mark.parametrize("limit", [1, 2, 5])
async def test_pages_and_export_have_the_same(client: httpx.AsyncClient, audit: AuditLog, limit: int) -> None:
    audit.problem = "slow"
    for number in range(5):
        await audit.record(record(number))
    seen: list[Any] = []
    before: dict[str, str] = {}
    while True:
        page = (await client.get("/audit", params={"limit": str(limit)} | before)).json()
        seen += page["items"]
        if page["next"] is None:
            break
        before = {"before": page["next"]}
    assert [one["id"] for one in seen] == ["a4", "a3", "a2", "a1", "a0"]
    assert (page["waiting"], page["storeProblem"]) == (5, "slow")
    export = await client.get("/audit/export")
    assert export.headers["content-type"] == "application/jsonl"
    assert [json.loads(line) for line in export.text.splitlines()] == seen
    assert len((await client.get("/audit/export?limit=2")).text.splitlines()) == 2


async def test_conditions(client: httpx.AsyncClient, audit: AuditLog) -> None:
    audit.problem = "away"
    await audit.record(record(1))
    await audit.record(record(2, username="sam"))
    assert [one["id"] for one in (await client.get("/audit?username=sam")).json()["items"]] == ["a2"]
    assert (await client.get("/audit?since=2027-01-15T08:00:02Z&resource=tenants")).json()["items"] == []
    assert (await client.get("/audit?user=sam")).status_code == 422
