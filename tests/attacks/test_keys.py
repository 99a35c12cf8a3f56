"""Keys and tokens: nobody acts as somebody else, and what was taken away opens nothing."""

from __future__ import annotations

import pytest

from tests.attacks.target import ADMIN, AGENT, CHAT, Target, attacked

ADMIN_PATHS = ("/pools", "/workers", "/decisions", "/tenants", "/usage", "/routing")


async def test_no_token_but_the_admins_opens_the_admin_api(target: Target) -> None:
    key = await target.tenant("acme")
    for token in ("", "wrong", AGENT, key, ADMIN[:-1]):
        for path in ADMIN_PATHS:
            assert (path, (await target.admin("GET", path, token=token))[0]) == (path, 401)
        assert (await target.admin("POST", "/tenants", {"name": "mine"}, token=token))[0] == 401


async def test_a_token_of_the_internal_port_is_no_api_key(target: Target) -> None:
    key = await target.tenant("acme")
    for wrong in ("", ADMIN, AGENT, key[:-1], key + "x", key.upper(), "cf-"):
        status, _, _ = await target.chat(key=wrong)
        assert status == 401
    assert (await target.chat(key=key))[0] == 200


async def test_the_door_that_closed_once_stays_closed(target: Target) -> None:
    assert (await target.chat())[0] == 200
    key = await target.tenant("acme")
    (listed,) = (await target.admin("GET", "/tenants/acme/keys"))[1]["items"]
    assert (await target.admin("DELETE", f"/tenants/acme/keys/{listed['id']}"))[0] == 200
    for given in ("", key):
        assert (await target.chat(key=given))[0] == 401


async def test_a_disabled_tenant_is_not_served_under_any_key(target: Target) -> None:
    key = await target.tenant("acme")
    assert (await target.admin("PATCH", "/tenants/acme", {"disabled": True}))[0] == 200
    assert (await target.chat(key=key))[0] == 403


async def test_a_client_cannot_choose_its_tenant_or_its_salt(target: Target) -> None:
    acme, umbrella = await target.tenant("acme"), await target.tenant("umbrella")
    claims = {"x_cachefleet_tenant": "umbrella", "x_tenant": "umbrella", "cookie": f"key={umbrella}"}
    for headers in ({}, claims):
        body = {"model": "", "messages": [{"role": "user", "content": "x"}], "max_tokens": 1, "user": "umbrella"}
        bearer = {"authorization": f"Bearer {acme}"}
        assert (await target.post(target.plane.gateway + CHAT, body, **headers, **bearer))[0] == 200
    assert (await target.chat(key=umbrella))[0] == 200
    *of_acme, of_umbrella = [sent["cache_salt"] for sent in target.sent()]
    assert len(set(of_acme)) == 1
    assert of_umbrella not in of_acme
    for seen in target.worker.requests:
        told = {name.lower(): value for name, value in seen.headers.items()}
        assert not [name for name in told if name.startswith("x-cachefleet") or name == "cookie"]
        assert acme not in str(told)


@pytest.mark.parametrize("name", ["../x", "a" * 200, "", "x\ny", "default/x", "%00", "'; drop table tenants; --"])
async def test_a_tenants_name_is_a_name(target: Target, name: str) -> None:
    assert (await target.admin("POST", "/tenants", {"name": name}))[0] == 422


async def test_required_keys_hold_from_the_start(tmp_path: object) -> None:
    async with attacked(tmp_path, api_keys="required") as target:  # type: ignore[arg-type]
        assert (await target.chat())[0] == 401
