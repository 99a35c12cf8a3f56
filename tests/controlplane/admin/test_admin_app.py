"""What the admin API shows, and how it refuses."""

import json
import re
from collections.abc import AsyncIterator

import httpx
import pytest
from fastapi import FastAPI
from fastapi.routing import APIRoute

from cachefleet_controlplane.internal_auth.admin_rights import RIGHTS
from cachefleet_controlplane.internal_auth.authorizer import Asked
from cachefleet_controlplane.routing.decision import RoutingPolicy
from cachefleet_controlplane.routing.reason_texts import CAUSES
from cachefleet_controlplane.store.decision_log import DecisionLog
from cachefleet_controlplane.store.store_errors import StoreError
from cachefleet_core.fleet_status.cache_worth import cache_values
from cachefleet_operator.controlplane_client.pool_facts import block_bytes, parse
from tests.controlplane.admin.conftest import Doorkeeper, Still
from tests.controlplane.fleet_views import CONTRACT, fleet_view
from tests.controlplane.store.conftest import make_record

ROUTES = {
    ("GET", "/pools"),
    ("GET", "/pools/{namespace}/{name}"),
    ("GET", "/workers"),
    ("GET", "/findings"),
    ("GET", "/idle-cache"),
    ("GET", "/contracts"),
    ("GET", "/decisions"),
    ("GET", "/decisions/export"),
    ("GET", "/decisions/stream"),
    ("GET", "/decisions/{decision_id}"),
    ("POST", "/explain"),
    ("GET", "/routing"),
    ("PUT", "/routing"),
    ("GET", "/tenants"),
    ("POST", "/tenants"),
    ("GET", "/tenants/{tenant}"),
    ("PATCH", "/tenants/{tenant}"),
    ("DELETE", "/tenants/{tenant}"),
    ("GET", "/tenants/{tenant}/keys"),
    ("POST", "/tenants/{tenant}/keys"),
    ("POST", "/tenants/{tenant}/keys/rotate"),
    ("DELETE", "/tenants/{tenant}/keys/{key_id}"),
    ("GET", "/audit"),
    ("GET", "/audit/export"),
    ("GET", "/access"),
    ("POST", "/access/open"),
    ("GET", "/usage"),
    ("GET", "/history"),
    ("GET", "/capacity"),
    ("POST", "/capacity/confirm"),
    ("GET", "/lost-hits"),
    ("GET", "/prefixes"),
    ("GET", "/prompt-causes"),
    ("GET", "/openapi.json"),
}
UNKNOWN = {("GET", "/"), ("GET", "/docs"), ("POST", "/pools"), ("GET", "/nowhere"), ("DELETE", "/pools/a/b")}


def assert_problem(response: httpx.Response, status: int) -> dict[str, object]:
    assert response.status_code == status
    assert response.headers["content-type"] == "application/problem+json"
    body: dict[str, object] = response.json()
    assert body["status"] == status
    return body


def walk(app: FastAPI) -> set[tuple[str, str]]:
    """Every route by method and path, as the schema and the router know them."""
    in_schema = {(method.upper(), path) for path, item in app.openapi()["paths"].items() for method in item}
    return in_schema | {(m, r.path) for r in app.routes if isinstance(r, APIRoute) for m in r.methods}


def test_these_are_all_routes(app: FastAPI) -> None:
    assert walk(app) | {("GET", "/openapi.json")} == ROUTES


def filled(path: str) -> str:
    return path.format(namespace="default", name="demo", decision_id="d1", tenant="acme", key_id="k1")


@pytest.mark.parametrize(("method", "path"), sorted(ROUTES | UNKNOWN))
async def test_without_a_right_token_every_path_is_401(client: httpx.AsyncClient, method: str, path: str) -> None:
    del client.headers["authorization"]
    for header in (None, "", "Bearer", "Bearer wrong", "Basic right", "right", "Bearer rig\u00fft"):
        headers = [] if header is None else [(b"authorization", header.encode("latin-1"))]
        response = await client.request(method, filled(path), headers=headers, content=b"{")
        assert_problem(response, 401)
        assert response.headers["www-authenticate"] == "Bearer"


@pytest.mark.parametrize(("method", "path"), sorted(ROUTES | UNKNOWN))
async def test_who_may_not_gets_403_everywhere(
    client: httpx.AsyncClient, doorkeeper: Doorkeeper, fleet: Still, method: str, path: str
) -> None:
    doorkeeper.forbidden = True
    assert_problem(await client.request(method, filled(path), json={"policy": "roundRobin"}), 403)
    assert fleet.policy is RoutingPolicy.CACHE_AWARE


@pytest.mark.parametrize(("method", "path"), sorted(ROUTES))
async def test_when_nobody_can_say_who_may_it_is_503(
    client: httpx.AsyncClient, doorkeeper: Doorkeeper, method: str, path: str
) -> None:
    doorkeeper.away = True
    response = await client.request(method, filled(path))
    assert_problem(response, 503)
    assert int(response.headers["retry-after"]) <= 2


async def test_questions_follow_method_and_path(client: httpx.AsyncClient, doorkeeper: Doorkeeper) -> None:
    await client.get("/pools")
    await client.get("/pools/serving/qwen")
    await client.put("/routing", json={})
    await client.delete("/pools/serving/qwen")
    assert doorkeeper.asked == [
        Asked("list"),
        Asked("get", "serving", "qwen"),
        Asked("update", resource="prefixcachepools/routing"),
        Asked("delete", "serving", "qwen"),
    ]


async def test_each_refusal_names_the_right_that_is_missing(client: httpx.AsyncClient, doorkeeper: Doorkeeper) -> None:
    doorkeeper.forbidden = True
    body = assert_problem(await client.delete("/tenants/acme"), 403)
    assert (
        body["detail"] == "the token's user may not delete tenants/acme; such rights are of the API group cachefleet.io"
    )


def test_every_right_of_the_table_is_of_a_route_or_agreed_upon(app: FastAPI) -> None:
    paths = {path.strip("/") for _, path in walk(app)}
    shapes = {re.sub(r"{(tenant|namespace)}", "{name}", re.sub(r"{(key_id|decision_id)}", "*", path)) for path in paths}
    assert set(RIGHTS) - shapes <= {"flush", "simulate", "prefixes", "prompt-causes"}


async def test_pools(client: httpx.AsyncClient) -> None:
    (pool,) = (await client.get("/pools")).json()["items"]
    assert pool == {
        "key": "default/demo",
        "namespace": "default",
        "name": "demo",
        "model": "tiny",
        "generation": 2,
        "contract": {
            "fingerprint": CONTRACT.fingerprint(),
            "weights": "tiny",
            "revision": "",
            "tokenizer": "sha256:aa",
            "blockSize": 16,
            "keyVersion": 1,
            "lookahead": 0,
        },
        "hitRatio": {
            "value": 0.7,
            "windowSeconds": 600,
            "objective": 0.6,
            "by": "engines",
            "tokens": 1000,
            "queriedTokens": 1000,
            "hitTokens": 700,
            "answeredTokens": 0,
            "servedTokens": 0,
            "counted": 0.7,
            "sampled": True,
            "sampledAt": "2027-01-15T08:00:00Z",
        },
        "workers": {"total": 3, "ready": 3, "fresh": 2, "excluded": 1},
        "replicas": 1,
        "admitted": True,
        "budgetMiB": 0,
        "adapterConflicts": [],
        "aliasConflicts": [],
        "unservedRequests": 0,
        "queuedRequests": 0,
        "queuedBlocks": 0,
        "idleSeconds": 0.0,
    }


async def test_one_pool_with_its_workers(client: httpx.AsyncClient) -> None:
    pool = (await client.get("/pools/default/demo")).json()
    assert [member["name"] for member in pool["members"]] == ["demo-0", "demo-1", "demo-2"]
    assert_problem(await client.get("/pools/default/other"), 404)


async def test_the_operator_finds_all_that_a_status_needs(client: httpx.AsyncClient) -> None:
    known = parse((await client.get("/pools/default/demo")).content)
    assert known.contract is not None
    assert known.contract.fingerprint == CONTRACT.fingerprint()
    assert (known.hit_ratio.value, known.hit_ratio.window_seconds) == (0.7, 600)
    assert (block_bytes(known), cache_values(known.members)["demo-0"]) == (4096, 12.5)
    assert known.members[1].excluded
    assert known.members[1].differences[0].actual == "other"


async def test_workers_show_load_cache_and_differences(client: httpx.AsyncClient) -> None:
    answer = (await client.get("/workers")).json()
    first, different, silent = answer["items"]
    assert answer["total"] == 3
    assert first["load"]["waitingTokens"] == 100
    assert (first["heldBlocks"], first["heldBytes"], first["cacheValue"]) == (40, 40 * 4096, 12.5)
    assert (first["blockBytes"], silent["blockBytes"]) == (4096, 0)
    assert (first["phase"], first["epoch"], first["reportAgeSeconds"]) == ("ready", "e1", 0.5)
    assert first["capabilities"] == [{"feature": "gate", "mode": "off", "reason": "no plugin"}]
    assert different["excluded"] is True
    assert different["differences"] == [{"field": "weights", "expected": "tiny", "actual": "other"}]
    assert (silent["load"], silent["phase"], silent["heldBytes"], silent["stale"]) == (None, None, None, True)


async def test_workers_by_pool_and_limit(client: httpx.AsyncClient) -> None:
    assert (await client.get("/workers", params={"pool": "default/none"})).json() == {
        "items": [],
        "total": 0,
        "next": None,
    }
    some = (await client.get("/workers", params={"pool": "default/demo", "limit": 1})).json()
    assert (len(some["items"]), some["total"]) == (1, 3)


async def test_a_hit_ratio_without_queries_is_null(client: httpx.AsyncClient, fleet: Still) -> None:
    fleet.shown = fleet_view(queried=0, hits=0)
    (pool,) = (await client.get("/pools")).json()["items"]
    assert pool["hitRatio"]["value"] is None


async def test_decisions(client: httpx.AsyncClient, decisions: DecisionLog) -> None:
    decisions.record(make_record(1, model="a", cached=48))
    decisions.record(make_record(2, model="b"))
    recent = (await client.get("/decisions")).json()
    assert [item["id"] for item in recent["items"]] == ["d2", "d1"]
    assert recent["storeProblem"] == decisions.problem
    assert [d["id"] for d in (await client.get("/decisions", params={"model": "a"})).json()["items"]] == ["d1"]
    assert len((await client.get("/decisions", params={"limit": 1})).json()["items"]) == 1


async def test_one_decision_in_full(client: httpx.AsyncClient, decisions: DecisionLog) -> None:
    decisions.record(make_record(1, cached=48))
    found = (await client.get("/decisions/d1")).json()
    assert (found["predictedTokens"], found["cachedTokens"], found["ttftSeconds"]) == (64, 48, None)
    assert found["at"].endswith("Z")
    assert found["candidates"][0]["matchedBlocks"] == 4
    attempt = {"worker": "default/demo/demo-0#0", "outcome": "answered", "status": 200, "seconds": 0.5}
    assert found["attempts"] == [attempt | {"kind": "answer", "threshold": None, "unresumed": ""}]
    assert (len(found["candidates"]), found["candidatesLeftOut"]) == (1, 3)
    assert (found["tenant"], found["isolation"], found["saltVersion"], found["rung"]) == (
        "acme",
        "PerTenant",
        2,
        "render",
    )
    assert found["shortfall"] == {"cause": "evicted", "why": CAUSES["evicted"], "tokens": 16, "worker": "demo-0"}
    assert_problem(await client.get("/decisions/none"), 404)


async def test_a_store_that_fails_is_503_for_one_decision(
    client: httpx.AsyncClient, decisions: DecisionLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def failing(_decision_id: str) -> None:
        raise StoreError("locked", "database locked")

    monkeypatch.setattr(decisions, "get", failing)
    response = await client.get("/decisions/d1")
    assert "locked" in str(assert_problem(response, 503)["detail"])
    assert response.headers["retry-after"] == "2"


async def test_the_policy_is_read_and_changed_live(client: httpx.AsyncClient, fleet: Still) -> None:
    assert (await client.get("/routing")).json() == {"policy": "cacheAware"}
    assert (await client.put("/routing", json={"policy": "leastLoaded"})).json() == {"policy": "leastLoaded"}
    assert fleet.policy is RoutingPolicy.LEAST_LOADED


@pytest.mark.parametrize(
    ("body", "status", "field"),
    [
        (b'{"policy": "best"}', 422, "body.policy"),
        (b"{}", 422, "body.policy"),
        (b'{"policy": "roundRobin", "x": 1}', 422, "body.x"),
        (b"[]", 422, "body"),
        (b"{", 400, "body"),
        (b"\xff", 400, "body"),
    ],
)
async def test_a_bad_body_names_the_field_and_changes_nothing(
    client: httpx.AsyncClient, fleet: Still, body: bytes, status: int, field: str
) -> None:
    response = await client.put("/routing", content=body, headers={"content-type": "application/json"})
    errors = assert_problem(response, status)["errors"]
    if body != b"\xff":
        assert [error["field"] for error in errors] == [field]  # type: ignore[attr-defined]
    assert fleet.policy is RoutingPolicy.CACHE_AWARE


@pytest.mark.parametrize(
    ("kind", "body", "words"),
    [
        ("application/json", b'{"policy" 1}', "no JSON: Expecting ':' delimiter at character 10"),
        (
            "application/x-www-form-urlencoded",
            b'{"policy": "x"}',
            "sent with the header Content-Type: application/json",
        ),
    ],
)
async def test_why_a_body_is_not_read_is_told(client: httpx.AsyncClient, kind: str, body: bytes, words: str) -> None:
    answer = await client.put("/routing", content=body, headers={"content-type": kind})
    (fault,) = answer.json()["errors"]
    assert (fault["field"], words in fault["message"]) == ("body", True), fault


async def test_a_path_that_is_not_there_is_named(client: httpx.AsyncClient) -> None:
    assert (await client.get("/nowhere")).json()["detail"] == "there is no /admin/v1/nowhere here"


@pytest.mark.parametrize("query", ["limit=0", "limit=501", "limit=x", "model="])
async def test_a_bad_query_names_the_field(client: httpx.AsyncClient, query: str) -> None:
    body = assert_problem(await client.get(f"/decisions?{query}"), 422)
    assert body["errors"][0]["field"] == f"query.{query.split('=', maxsplit=1)[0]}"  # type: ignore[index]


@pytest.mark.parametrize(
    ("method", "path", "status", "allow"),
    [
        ("POST", "/pools", 405, {"GET"}),
        ("DELETE", "/routing", 405, {"GET", "PUT"}),
        ("PUT", "/tenants/acme", 405, {"GET", "PATCH", "DELETE"}),
        ("GET", "/nowhere", 404, None),
        ("GET", "/pools/a/b/c", 404, None),
        ("GET", "", 404, None),
        ("GET", "/decisions/" + "x" * 65, 422, None),
    ],
)
async def test_every_refusal_is_problem_json(
    client: httpx.AsyncClient, method: str, path: str, status: int, allow: set[str] | None
) -> None:
    answer = await client.request(method, path, follow_redirects=True)
    assert_problem(answer, status)
    told = answer.headers.get("allow")
    assert (None if told is None else set(told.split(", "))) == allow


async def test_a_body_over_the_limit_is_413(client: httpx.AsyncClient) -> None:
    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(3):
            yield b" " * 1000

    assert_problem(await client.put("/routing", content=b" " * 2049), 413)
    assert_problem(await client.put("/routing", content=chunks()), 413)


async def test_an_unexpected_error_is_500_without_its_text(
    client: httpx.AsyncClient, fleet: Still, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing() -> None:
        raise RuntimeError("secret")

    monkeypatch.setattr(fleet, "view", failing)
    assert "secret" not in str(assert_problem(await client.get("/pools"), 500))


async def test_the_schema_names_every_model_and_the_problem(client: httpx.AsyncClient) -> None:
    schema = (await client.get("/openapi.json")).json()
    assert {"PoolList", "PoolDetail", "WorkerList", "Decision", "Routing", "Problem"} <= set(
        schema["components"]["schemas"]
    )
    assert set(schema["paths"]["/pools"]["get"]["responses"]) >= {"200", "401", "403", "503"}


async def test_the_schema_of_a_fleets_status_is_that_of_its_answers(client: httpx.AsyncClient) -> None:
    document = (await client.get("/openapi.json")).json()
    schemas = document["components"]["schemas"]
    pool = (await client.get("/pools/default/demo")).json()
    of_objects = {
        "PoolDetail": pool,
        "Pool": (await client.get("/pools")).json()["items"][0],
        "Contract": pool["contract"],
    }
    of_objects |= {"HitRatio": pool["hitRatio"], "Worker": pool["members"][0], "Load": pool["members"][0]["load"]}
    for name, value in of_objects.items():
        assert schemas[name]["properties"].keys() == value.keys() == set(schemas[name]["required"])
    parts = {
        "WorkerCounts",
        "AdapterConflict",
        "AliasConflict",
        "Difference",
        "Capability",
        "Warmth",
        "WarmProblem",
        "Adapters",
    }
    assert parts | {"AdapterProblem"} <= schemas.keys()
    assert schemas["HitRatio"]["properties"]["by"]["enum"] == ["answers", "engines"]
    named = set(re.findall(r'"#/components/schemas/(\w+)"', json.dumps(document)))
    assert named <= schemas.keys()
