"""Tenants and keys through the admin API, over a real SQLite file."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import httpx
import pytest

from cachefleet_controlplane.admin.tenant_service import TenantService
from cachefleet_controlplane.internal_auth.authorizer import Asked
from cachefleet_controlplane.metrics import Metrics
from cachefleet_controlplane.store.database import Database
from cachefleet_controlplane.store.sql_tenants import SqlTenants, TenantConflictError
from cachefleet_controlplane.store.store_errors import StoreError
from cachefleet_controlplane.tenants.directory import Tenants, Unknown
from cachefleet_core.fleet_status.tenant_limits import BUDGET, SPEND, Limit
from cachefleet_core.tenancy import TenantId, api_key_hash
from tests.controlplane.admin.conftest import HASH_KEY, NOW, Doorkeeper
from tests.controlplane.admin.test_admin_app import assert_problem

ACME = {
    "name": "acme",
    "saltVersion": 1,
    "priority": 50,
    "weight": 100,
    **{limit.field: None for limit in Limit},
    "disabled": False,
    "trusted": False,
    "created": "2027-01-15T08:00:00Z",
}


async def make(client: httpx.AsyncClient, name: str = "acme", **fields: Any) -> dict[str, Any]:
    answer = await client.post("/tenants", json={"name": name} | fields)
    assert answer.status_code == 201, answer.text
    made: dict[str, Any] = answer.json()
    return made


async def new_key(client: httpx.AsyncClient, path: str = "keys", **fields: Any) -> dict[str, Any]:
    answer = await client.post(f"/tenants/acme/{path}", json=fields)
    assert answer.status_code == 201, answer.text
    assert answer.headers["cache-control"] == "no-store"
    made: dict[str, Any] = answer.json()
    return made


async def states(client: httpx.AsyncClient) -> dict[str, str]:
    return {key["id"]: key["state"] for key in (await client.get("/tenants/acme/keys")).json()["items"]}


def owner(service: TenantService, key: str, now: float = NOW) -> str:
    found = service.tenants.directory.owner(api_key_hash(HASH_KEY, key.encode()), now)
    return found.value if isinstance(found, Unknown) else found.name


async def test_where_keys_are_required_nobody_opens(client: httpx.AsyncClient, service: TenantService) -> None:
    service.tenants.required = True
    await service.tenants.refresh()
    service.tenants.directory = replace(service.tenants.directory, required=True)
    assert (await client.get("/access")).json() == {"open": False, "reason": "required"}
    assert "required" in str(assert_problem(await client.post("/access/open"), 409)["detail"])


async def test_keys_are_not_made_where_they_would_go_with_the_pod(
    client: httpx.AsyncClient, database: Database
) -> None:
    await make(client)
    for required in (False, True):
        tenants = Tenants(SqlTenants(database), metrics=Metrics(), poll_seconds=60, required=required)
        brief = TenantService(tenants, SqlTenants(database), HASH_KEY, ephemeral=True)
        if required:
            assert (await brief.new_key(TenantId("acme"), None))[1].startswith("cf-")
            continue
        for making in (brief.new_key(TenantId("acme"), None), brief.rotate(TenantId("acme"), None, grace_seconds=0)):
            with pytest.raises(TenantConflictError, match="CACHEFLEET_API_KEYS=required"):
                await making


async def test_a_tenant_is_made_shown_changed_and_deleted(client: httpx.AsyncClient, service: TenantService) -> None:
    assert await make(client) == ACME
    assert (await client.get("/tenants")).json() == {"items": [ACME], "next": None}
    assert (await client.get("/tenants/acme")).json() == ACME
    changed = await client.patch("/tenants/acme", json={"priority": 0, "requestsAtOnce": 4, "saltVersion": 2})
    assert changed.json() == ACME | {"priority": 0, "requestsAtOnce": 4, "saltVersion": 2}
    assert service.tenants.salt_version(TenantId("acme")) == 2
    unlimited = await client.patch("/tenants/acme", json={"requestsAtOnce": None})
    assert unlimited.json() == ACME | {"priority": 0, "saltVersion": 2}
    assert (await client.delete("/tenants/acme")).status_code == 204
    assert_problem(await client.get("/tenants/acme"), 404)
    assert service.tenants.directory.tenants == {}


async def test_all_of_a_tenant_can_be_said_at_once(client: httpx.AsyncClient) -> None:
    given: dict[str, Any] = {"saltVersion": 3, "priority": 100, "weight": 10_000, "disabled": True, "trusted": True}
    for name, most in (("a", True), ("b", False)):
        given |= {limit.field: limit.most if most else limit.least for limit in Limit}
        assert await make(client, name, **given) == ACME | given | {"name": name}
    given |= dict.fromkeys((limit.field for limit in Limit), None)
    lifted = await client.patch("/tenants/a", json={limit.field: None for limit in Limit})
    assert lifted.json() == ACME | given | {"name": "a"}


@pytest.mark.parametrize("limit", Limit)
async def test_every_limit_has_its_bounds(client: httpx.AsyncClient, limit: Limit) -> None:
    for wrong in (0, limit.most + 1, "5", *(() if limit in SPEND else (1.5,))):
        answer = await client.post("/tenants", json={"name": "a", limit.field: wrong})
        assert_problem(answer, 422)
        assert f"body.{limit.field}" in answer.text
    keys = await client.post("/tenants/a/keys", json={limit.field: 0})
    assert f"body.{limit.field}" in keys.text, "a key has those by the calendar, of the same bounds, and no others"


async def test_the_document_tells_the_bounds_of_limits_and_that_answers_have_them_all(
    client: httpx.AsyncClient,
) -> None:
    schemas = (await client.get("/openapi.json")).json()["components"]["schemas"]
    for limit in Limit:
        for name in ("NewTenant", "TenantChange", "Tenant"):
            told = schemas[name]["properties"][limit.field]
            number = next(one for one in told["anyOf"] if one["type"] != "null")
            assert (number["minimum"], number["maximum"], "default" in told) == (limit.least, limit.most, False)
    assert {limit.field for limit in Limit} <= set(schemas["Tenant"]["required"])
    assert {limit.field for limit in BUDGET} <= set(schemas["Key"]["required"])
    assert schemas["NewTenant"]["required"] == ["name"]


async def test_spending_is_kept_to_a_millionth_of_the_currency(client: httpx.AsyncClient) -> None:
    for spend, kept in ((19.99, 19.99), (999_999.999999, 999_999.999999), (0.1234567, 0.123457)):
        name = str(spend).replace(".", "-")
        assert (await make(client, name, spendPerDay=spend))["spendPerDay"] == kept
    changed = await client.patch("/tenants/19-99", json={"spendPerMonth": 5, "spendPerDay": None})
    assert (changed.json()["spendPerMonth"], changed.json()["spendPerDay"]) == (5, None)


async def test_a_name_is_taken_once(client: httpx.AsyncClient) -> None:
    await make(client)
    assert "exists already" in str(assert_problem(await client.post("/tenants", json={"name": "acme"}), 409)["detail"])


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "body.name"),
        ({"name": ""}, "body.name"),
        ({"name": "a/b"}, "body.name"),
        ({"name": "x" * 129}, "body.name"),
        ({"name": "a", "priority": -1}, "body.priority"),
        ({"name": "a", "priority": 101}, "body.priority"),
        ({"name": "a", "priority": None}, "body.priority"),
        ({"name": "a", "priority": "5"}, "body.priority"),
        ({"name": "a", "weight": 0}, "body.weight"),
        ({"name": "a", "weight": 10_001}, "body.weight"),
        ({"name": "a", "saltVersion": 0}, "body.saltVersion"),
        ({"name": "a", "disabled": 1}, "body.disabled"),
        ({"name": "a", "colour": "red"}, "body.colour"),
    ],
)
async def test_what_cannot_be_is_refused_with_its_field(
    client: httpx.AsyncClient, body: dict[str, Any], field: str
) -> None:
    errors = assert_problem(await client.post("/tenants", json=body), 422)["errors"]
    assert [error["field"] for error in errors] == [field]  # type: ignore[attr-defined]
    if "name" in body and field != "body.name":
        await make(client, "a")
        change = {name: value for name, value in body.items() if name != "name"}
        errors = assert_problem(await client.patch("/tenants/a", json=change), 422)["errors"]
        assert [error["field"] for error in errors] == [field]  # type: ignore[attr-defined]


async def test_a_change_of_nothing_changes_nothing(client: httpx.AsyncClient) -> None:
    await make(client)
    assert (await client.patch("/tenants/acme", json={})).json() == ACME


async def test_a_key_is_told_once_and_known_at_once(client: httpx.AsyncClient, service: TenantService) -> None:
    await make(client)
    made = await new_key(client, expires="2027-02-01T00:00:00+01:00")
    key = made.pop("key")
    assert key.startswith(made["hint"])
    assert made | {"id": ""} == {
        "id": "",
        "tenant": "acme",
        "hint": key[:9],
        "created": "2027-01-15T08:00:00Z",
        "expires": "2027-01-31T23:00:00Z",
        "revoked": None,
        "models": [],
        **{limit.field: None for limit in BUDGET},
        "state": "active",
    }
    assert owner(service, key) == "acme"
    assert owner(service, key, datetime(2027, 1, 31, 23, tzinfo=UTC).timestamp()) == Unknown.ENDED
    listed = await client.get("/tenants/acme/keys")
    assert listed.json() == {"items": [made]}
    assert key not in listed.text


async def test_what_is_stored_of_a_key_does_not_give_it_away(
    client: httpx.AsyncClient, database: Database, service: TenantService
) -> None:
    await make(client)
    key = (await new_key(client))["key"]
    await service.tenants.refresh()
    database.close()
    folder = database._file
    assert folder is not None
    stored = b"".join(part.read_bytes() for part in folder.parent.iterdir())
    assert key[:9].encode() in stored
    assert key[:14].encode() not in stored  # what follows the hint there may begin as the key goes on


async def test_two_keys_are_different(client: httpx.AsyncClient) -> None:
    await make(client)
    one, other = await new_key(client), await new_key(client)
    assert one["key"] != other["key"]
    assert one["id"] != other["id"]


async def test_a_rotation_makes_a_key_and_ends_the_others(client: httpx.AsyncClient, service: TenantService) -> None:
    await make(client)
    old = await new_key(client)
    middle = await new_key(client, "keys/rotate", graceSeconds=60)
    assert [owner(service, key["key"], NOW + 59) for key in (old, middle)] == ["acme", "acme"]
    assert [owner(service, key["key"], NOW + 60) for key in (old, middle)] == [Unknown.ENDED, "acme"]
    new = await new_key(client, "keys/rotate")
    assert await states(client) == {old["id"]: "expired", middle["id"]: "expired", new["id"]: "active"}
    assert [owner(service, key["key"]) for key in (old, middle, new)] == [Unknown.ENDED, Unknown.ENDED, "acme"]


async def test_a_key_may_have_a_budget_and_its_successor_has_it_too(client: httpx.AsyncClient) -> None:
    await make(client)
    given: dict[str, Any] = {"tokensPerDay": 100, "requestsPerMonth": 9, "cachedTokensPerDay": 8, "spendPerMonth": 2.5}
    budget = {limit.field: given.get(limit.field) for limit in BUDGET}
    made = [
        await new_key(client, **given),
        await new_key(client, "keys/rotate"),
        await new_key(client, "keys/rotate", tokensPerDay=7),
        await new_key(client, "keys/rotate", tokensPerDay=None),
    ]
    found = [{name: key[name] for name in budget} for key in made]
    none = dict.fromkeys(budget)
    assert found == [budget, budget, none | {"tokensPerDay": 7}, none]
    listed = (await client.get("/tenants/acme/keys")).json()["items"]
    assert {key["id"]: {name: key[name] for name in budget} for key in listed} == {
        key["id"]: told for key, told in zip(made, found, strict=True)
    }
    for wrong in (
        {"tokensPerDay": 0},
        {"tokensPerMonth": 10**15 + 1},
        {"spendPerDay": 0},
        {"spendPerMonth": 10**6 + 1},
    ):
        answer = await client.post("/tenants/acme/keys", json=wrong)
        assert_problem(answer, 422)
        assert f"body.{next(iter(wrong))}" in answer.text


async def test_a_key_is_revoked(client: httpx.AsyncClient, service: TenantService) -> None:
    await make(client)
    made, kept = await new_key(client), await new_key(client)
    answer = await client.delete(f"/tenants/acme/keys/{made['id']}")
    assert (answer.status_code, answer.json()["state"]) == (200, "revoked")
    assert await states(client) == {made["id"]: "revoked", kept["id"]: "active"}
    assert (owner(service, made["key"]), owner(service, kept["key"])) == (Unknown.ENDED, "acme")
    assert_problem(await client.delete("/tenants/acme/keys/none"), 404)


@pytest.mark.parametrize(
    ("path", "body", "said"),
    [
        ("keys", {"expires": "2027-02-01T00:00:00"}, "body.expires"),
        ("keys", {"expires": "soon"}, "body.expires"),
        ("keys", {"graceSeconds": 1}, "body.graceSeconds"),
        ("keys/rotate", {"graceSeconds": -1}, "body.graceSeconds"),
        ("keys/rotate", {"graceSeconds": 1e9}, "body.graceSeconds"),
        ("keys/rotate", {"graceSeconds": "1"}, "body.graceSeconds"),
    ],
)
async def test_a_key_that_cannot_be_is_refused_with_its_field(
    client: httpx.AsyncClient, path: str, body: dict[str, Any], said: str
) -> None:
    await make(client)
    errors = assert_problem(await client.post(f"/tenants/acme/{path}", json=body), 422)["errors"]
    assert [error["field"] for error in errors] == [said]  # type: ignore[attr-defined]


@pytest.mark.parametrize("path", ["keys", "keys/rotate"])
@pytest.mark.parametrize("expires", ["2027-01-15T08:00:00Z", "9999-12-31T23:59:59-14:00", "0001-01-01T00:00:00+14:00"])
async def test_a_key_ends_in_the_future_that_there_is(client: httpx.AsyncClient, path: str, expires: str) -> None:
    await make(client)
    answer = await client.post(f"/tenants/acme/{path}", json={"expires": expires})
    assert "body.expires must be in the future" in str(assert_problem(answer, 422)["detail"])


async def test_of_a_tenant_that_is_none_there_is_nothing(client: httpx.AsyncClient) -> None:
    for method, path in (
        ("GET", ""),
        ("PATCH", ""),
        ("DELETE", ""),
        ("GET", "/keys"),
        ("POST", "/keys"),
        ("POST", "/keys/rotate"),
        ("DELETE", "/keys/k"),
    ):
        assert_problem(await client.request(method, f"/tenants/nobody{path}", json={}), 404)
    assert_problem(await client.get("/tenants/no%20body"), 422)


async def test_a_store_that_fails_is_503_and_leaves_what_is_known(
    client: httpx.AsyncClient, service: TenantService, monkeypatch: pytest.MonkeyPatch
) -> None:
    await make(client)
    key = (await new_key(client))["key"]

    def failing(*_: object, **__: object) -> None:
        raise StoreError("locked", "database locked")

    for name in ("tenants", "create"):
        monkeypatch.setattr(type(service.repository), name, failing)
    assert_problem(await client.get("/tenants"), 503)
    assert_problem(await client.post("/tenants", json={"name": "b"}), 503)
    assert owner(service, key) == "acme"


async def test_a_key_that_the_store_cannot_revoke_is_refused_all_the_same(
    client: httpx.AsyncClient, service: TenantService, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise StoreError("full", "database full")

    await make(client)
    made = await new_key(client)
    path = f"/tenants/acme/keys/{made['id']}"
    with monkeypatch.context() as patched:
        patched.setattr(type(service.repository), "revoke", full)
        answer = await client.delete(path)
        assert (answer.status_code, answer.json()["state"], answer.json()["stored"]) == (202, "revoked", False)
        assert owner(service, made["key"]) == "ended"
        assert await states(client) == {made["id"]: "revoked"}
    answer = await client.delete(path)
    assert (answer.status_code, answer.json()["state"], answer.json()["stored"]) == (200, "revoked", True)


async def test_changes_need_the_right_to_change(client: httpx.AsyncClient, doorkeeper: Doorkeeper) -> None:
    await client.get("/tenants/acme/keys")
    await client.post("/tenants/acme/keys", json={})
    await client.delete("/tenants/acme/keys/k")
    keys = "tenants/keys"
    assert doorkeeper.asked == [Asked(verb, name="acme", resource=keys) for verb in ("get", "create", "delete")]


async def test_the_schema_has_examples(client: httpx.AsyncClient) -> None:
    schemas = (await client.get("/openapi.json")).json()["components"]["schemas"]
    for name in ("NewTenant", "TenantChange", "NewKey", "Rotation"):
        assert schemas[name]["examples"]
        assert schemas[name]["additionalProperties"] is False
    assert not [name for name, field in schemas["TenantChange"]["properties"].items() if "default" in field]


async def test_nothing_is_changed_in_a_store_that_other_replicas_do_not_see(
    client: httpx.AsyncClient, service: TenantService
) -> None:
    await make(client)
    key = (await new_key(client))["id"]
    object.__setattr__(service, "private", True)
    for method, path, body in (
        ("POST", "/tenants", {"name": "umbrella"}),
        ("PATCH", "/tenants/acme", {"priority": 1}),
        ("DELETE", "/tenants/acme", None),
        ("POST", "/tenants/acme/keys", {}),
        ("POST", "/tenants/acme/keys/rotate", {}),
        ("DELETE", f"/tenants/acme/keys/{key}", None),
    ):
        answer = await client.request(method, path, json=body)
        assert_problem(answer, 409)
        assert "CACHEFLEET_DATABASE_URL" in answer.json()["detail"]
    assert (await client.get("/tenants")).json() == {"items": [ACME], "next": None}
    assert await states(client) == {key: "active"}
