"""What tenants have of the idle caches, by the admin API."""

from __future__ import annotations

import httpx


async def test_the_idle_caches_are_shown_by_pool_and_tenant(client: httpx.AsyncClient) -> None:
    shown = (await client.get("/idle-cache")).json()["items"]
    assert shown[0] == {"pool": "default/demo", "tenant": "acme", "share": 0.25, "blocks": 30, "mib": 2}
    assert [(one["pool"], one["tenant"]) for one in shown[1:]] == [("default/demo", ""), ("default/other", "acme")]


async def test_of_one_pool_alone(client: httpx.AsyncClient) -> None:
    shown = (await client.get("/idle-cache", params={"pool": "default/other"})).json()["items"]
    assert [one["pool"] for one in shown] == ["default/other"]
