"""Cache contracts by the admin API."""

from __future__ import annotations

import httpx


async def test_contracts_are_shown_by_pool_and_tenant(client: httpx.AsyncClient) -> None:
    shown = (await client.get("/contracts")).json()["items"]
    assert [(one["pool"], one["tenant"]) for one in shown] == [("default/demo", "acme"), ("default/other", "umbrella")]
    assert shown[0]["hour"] == {
        "minutes": 2,
        "metMinutes": 1,
        "met": 0.5,
        "missedMinutes": {"evicted": 1},
        "evictedBlocks": 8,
    }
    assert (shown[0]["met"], shown[0]["reasons"]) == (False, ["evicted"])
    assert shown[1]["met"] is None


async def test_of_one_pool_or_tenant_alone(client: httpx.AsyncClient) -> None:
    for parameters in ({"pool": "default/other"}, {"tenant": "umbrella"}):
        shown = (await client.get("/contracts", params=parameters)).json()["items"]
        assert [one["tenant"] for one in shown] == ["umbrella"]
    assert (await client.get("/contracts", params={"pool": "default/none"})).json() == {"items": []}
