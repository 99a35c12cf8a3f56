"""Every operation of the admin API, by a client that is made from its document alone."""

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import requests

pytest.importorskip("schemathesis", reason="schemathesis is a package of the dev group")

from cachefleet_core.fleet_status.tenant_limits import BUDGET, SPEND, Limit
from tests.controlplane.admin.openapi_client import OpenApiClient
from tests.controlplane.admin.schema_cases import Served, served
from tests.controlplane.gateway.harness import MODEL

ADMIN = "for-people"
ENDLESS = {"getDecisionsStream"}


def made(plane: Served) -> OpenApiClient:
    base = f"{plane.internal}/admin/v1"
    answer = requests.get(f"{base}/openapi.json", headers={"authorization": f"Bearer {ADMIN}"}, timeout=60)
    return OpenApiClient(answer.json(), base, ADMIN)


def tenants(client: OpenApiClient) -> None:
    client.call("postTenants", body={"name": "acme", "tokensPerMinute": 1000}, status=201)
    client.call("postTenants", body={"name": "acme"}, status=409)
    acme = client.call("getTenantsByTenant", tenant="acme")
    assert client.call("getTenants", limit=1)["items"] == [acme]
    client.call("patchTenantsByTenant", tenant="acme", body={"priority": 1}, if_match='"old"', status=412)
    limits: dict[str, Any] = {limit.field: 2.5 if limit in SPEND else 10**6 for limit in Limit}
    changed = client.call("patchTenantsByTenant", tenant="acme", body={"priority": 1} | limits)
    assert changed == acme | {"priority": 1} | limits
    client.call("patchTenantsByTenant", tenant="acme", body={"cachedTokensPerDay": 0}, status=422)
    budget: dict[str, Any] = {limit.field: limits[limit.field] for limit in BUDGET}
    key = client.call("postTenantsByTenantKeys", tenant="acme", body=budget, status=201)
    assert {name: key[name] for name in budget} == budget
    client.call("postTenantsByTenantKeysRotate", tenant="acme", body={"graceSeconds": 60}, status=201)
    client.call("deleteTenantsByTenantKeysByKeyId", tenant="acme", key_id=key["id"])
    assert len(client.call("getTenantsByTenantKeys", tenant="acme")["items"]) == 2
    assert not client.call("getAccess")["open"]
    client.call("deleteTenantsByTenant", tenant="acme", status=204)
    assert client.call("postAccessOpen")["open"]
    client.call("getUsage", tenant="acme")
    client.call("getIdleCache")
    client.call("getContracts", tenant="acme")


def decisions(client: OpenApiClient, plane: Served) -> None:
    named = {"x-request-id": "mine"}
    asked: dict[str, Any] = {"model": MODEL, "prompt": "hello", "max_tokens": 1}
    assert requests.post(f"{plane.gateway}/v1/completions", json=asked, headers=named, timeout=60).status_code == 200
    (found,) = client.call("getDecisions", requestId="mine", outcome="answered", since="2020-01-01T00:00:00Z")["items"]
    assert client.call("getDecisionsByDecisionId", decision_id=found["id"]) == found
    client.call("getDecisionsByDecisionId", decision_id="none", status=404)
    assert found["id"] in client.call("getDecisionsExport", limit=1)
    client.call("postExplain", body={"model": MODEL, "prompt": "hello"})
    client.call("postSimulate", body={"source": {"recorded": 10}}, status=409)  # its worker reports nothing


def fleet(client: OpenApiClient) -> None:
    (pool,) = client.call("getPools")["items"]
    client.call("getPoolsByNamespaceByName", namespace=pool["namespace"], name=pool["name"])
    client.call("getWorkers", pool=pool["key"])
    client.call("getFindings")
    (known,) = client.call("getCapacity", pool=pool["key"])["items"]
    assert (known["verdict"], known["now"]) == ("unknown", None)
    assert client.call("getCapacity", pool="default/none")["items"] == []
    client.call("postCapacityConfirm", body={"pool": pool["key"], "requests": 1}, status=422)  # it has no advice yet
    policy = client.call("getRouting")
    client.call("putRouting", body={"policy": "sideways"}, status=422)
    assert client.call("putRouting", body=policy) == policy
    client.call("getCertificates")
    client.call("postCertify", body={"model": MODEL, "chats": 1})


def caches(client: OpenApiClient) -> None:
    assert client.call("getLostHits")["promptTokens"] >= 0
    assert client.call("getPromptCauses", limit=1)["items"] == []
    assert client.call("getHistory", since="2020-01-01T00:00:00Z")["stepSeconds"] == 10
    client.call("getPrefixes", limit=1)
    client.call("postFlush", body={"scope": {}, "dryRun": True}, status=422)
    assert client.call("postFlush", body={"scope": {"all": True}, "dryRun": True})["dryRun"]


def noted(client: OpenApiClient) -> list[dict[str, Any]]:
    entries: list[dict[str, Any]] = client.call("getAudit", username="admin token", limit=500)["items"]
    assert len(client.call("getAuditExport").splitlines()) == len(entries)
    return entries


def test_every_operation_is_as_its_document_says(tmp_path: Path) -> None:
    with served(tmp_path) as plane, closing(made(plane)) as client:
        fleet(client)
        tenants(client)
        decisions(client, plane)
        caches(client)
        changes = noted(client)
        assert client.called == client.ids - ENDLESS
    assert {"POST", "PUT", "PATCH", "DELETE"} == {one["method"] for one in changes}
    assert {200, 201, 204, 409, 412, 422} == {one["status"] for one in changes}
