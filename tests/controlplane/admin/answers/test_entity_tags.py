"""ETags: what has not changed is not sent again, and what has changed is not overwritten."""

from dataclasses import replace
from datetime import UTC, datetime

import httpx
import msgspec
import pytest

from cachefleet_controlplane.admin.tenant_service import TenantService
from cachefleet_controlplane.routing.decision import RoutingPolicy
from cachefleet_core.fleet_status.pool_facts import WorkerCounts
from cachefleet_core.tenancy import TenantId
from tests.controlplane.admin.conftest import Still
from tests.controlplane.admin.test_admin_app import assert_problem


async def tag_of(client: httpx.AsyncClient, path: str) -> str:
    answer = await client.get(path)
    assert answer.status_code == 200
    return answer.headers["etag"]


@pytest.fixture
async def acme(client: httpx.AsyncClient) -> str:
    """The ETag of a tenant."""
    assert (await client.post("/tenants", json={"name": "acme"})).status_code == 201
    return await tag_of(client, "/tenants/acme")


@pytest.mark.parametrize("path", ["/pools", "/pools/default/demo", "/routing", "/tenants", "/tenants/acme"])
async def test_what_has_not_changed_is_304(client: httpx.AsyncClient, acme: str, path: str) -> None:
    tag = await tag_of(client, path)
    for told in (tag, f'"other", {tag}', "*", tag.removeprefix("W/")):
        answer = await client.get(path, headers={"if-none-match": told})
        assert (answer.status_code, answer.content, answer.headers["etag"]) == (304, b"", tag)
    assert (await client.get(path, headers={"if-none-match": '"other"'})).status_code == 200


async def test_figures_of_time_alone_are_no_change(client: httpx.AsyncClient, fleet: Still) -> None:
    tags = [await tag_of(client, "/pools"), await tag_of(client, "/pools/default/demo")]
    assert all(tag.startswith('W/"') for tag in tags)
    (pool,) = fleet.shown.pools
    moved = msgspec.structs.replace(pool.hit_ratio, sampled_at=datetime(2027, 1, 15, 8, 1, tzinfo=UTC))
    later = msgspec.structs.replace(pool, hit_ratio=moved)
    workers = tuple(msgspec.structs.replace(worker, report_age_seconds=9.0) for worker in fleet.shown.workers[:2])
    fleet.shown = replace(fleet.shown, pools=(later,), workers=(*workers, *fleet.shown.workers[2:]))
    assert [await tag_of(client, "/pools"), await tag_of(client, "/pools/default/demo")] == tags
    fleet.shown = replace(fleet.shown, pools=(msgspec.structs.replace(later, workers=WorkerCounts(total=3)),))
    assert await tag_of(client, "/pools") != tags[0]


async def test_a_tenant_that_was_changed_meanwhile_is_not_changed_or_deleted(
    client: httpx.AsyncClient, acme: str
) -> None:
    changed = await client.patch("/tenants/acme", json={"priority": 7}, headers={"if-match": acme})
    assert changed.headers["etag"] == await tag_of(client, "/tenants/acme") != acme
    assert_problem(await client.patch("/tenants/acme", json={"priority": 9}, headers={"if-match": acme}), 412)
    refused = await client.delete("/tenants/acme", headers={"if-match": acme})
    assert_problem(refused, 412)
    assert refused.headers["etag"] == changed.headers["etag"]
    assert (await client.get("/tenants/acme")).json()["priority"] == 7
    assert (await client.delete("/tenants/acme", headers={"if-match": changed.headers["etag"]})).status_code == 204
    assert_problem(await client.delete("/tenants/acme", headers={"if-match": "*"}), 404)


async def test_who_names_no_tag_changes_all_the_same(client: httpx.AsyncClient, acme: str) -> None:
    assert (await client.patch("/tenants/acme", json={"priority": 7})).status_code == 200
    assert (await client.delete("/tenants/acme", headers={"if-match": "*"})).status_code == 204


async def test_the_check_is_in_the_change_s_own_transaction(
    client: httpx.AsyncClient, service: TenantService, acme: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another replica changes it after this one has read it, if it did so apart from the change."""
    changing = service.repository._changing

    def late() -> object:
        monkeypatch.undo()
        service.repository.change(TenantId("acme"), {"priority": 1})
        return changing()

    monkeypatch.setattr(type(service.repository), "_changing", lambda _: late())
    assert_problem(await client.patch("/tenants/acme", json={"priority": 9}, headers={"if-match": acme}), 412)
    assert (await client.get("/tenants/acme")).json()["priority"] == 1


async def test_a_routing_policy_that_was_changed_meanwhile_stays(client: httpx.AsyncClient, fleet: Still) -> None:
    tag = await tag_of(client, "/routing")
    fleet.policy = RoutingPolicy.LEAST_LOADED
    assert_problem(await client.put("/routing", json={"policy": "roundRobin"}, headers={"if-match": tag}), 412)
    assert fleet.policy is RoutingPolicy.LEAST_LOADED
    now = await tag_of(client, "/routing")
    answer = await client.put("/routing", json={"policy": "roundRobin"}, headers={"if-match": now})
    assert answer.headers["etag"] == await tag_of(client, "/routing")
