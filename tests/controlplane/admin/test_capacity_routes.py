"""Hit curves and advice by the admin API."""

import httpx
import msgspec
import pytest

from cachefleet_core.fleet_status.capacity_facts import ACTIONS, CapacityFacts, CapacityList, SizeFacts


async def test_all_pools_or_one(client: httpx.AsyncClient, capacities: list[CapacityFacts]) -> None:
    now = SizeFacts(workers=2, budget_mib=512, hit_ratio=0.5)
    capacities += [CapacityFacts(pool="default/demo", now=now, by_workers=(now,)), CapacityFacts(pool="default/other")]
    answer = await client.get("/capacity")
    assert msgspec.json.decode(answer.content, type=CapacityList).items == tuple(capacities)
    [one] = (await client.get("/capacity", params={"pool": "default/demo"})).json()["items"]
    assert (one["now"]["budgetMiB"], one["byWorkers"][0]["hitRatio"], one["scaleIn"]) == (512, 0.5, None)
    assert (await client.get("/capacity", params={"pool": "default/none"})).json() == {"items": []}


@pytest.mark.parametrize("pool", ["", "x" * 513])
async def test_a_name_that_can_be_none_is_refused(client: httpx.AsyncClient, pool: str) -> None:
    refused = await client.get("/capacity", params={"pool": pool})
    assert (refused.status_code, refused.json()["errors"][0]["field"]) == (422, "query.pool")


async def test_an_advice_is_confirmed_by_pool_action_and_number_of_requests(
    client: httpx.AsyncClient, confirmed: list[tuple[str | None, str | None, int]]
) -> None:
    answer = await client.post("/capacity/confirm", json={})
    assert (answer.status_code, answer.json()["pool"]) == (200, "default/demo")
    await client.post("/capacity/confirm", json={"pool": "default/qwen", "action": "moreBudget", "requests": 20})
    assert confirmed == [(None, None, 1000), ("default/qwen", "moreBudget", 20)]


@pytest.mark.parametrize("action", ACTIONS)
async def test_every_advice_can_be_confirmed(client: httpx.AsyncClient, action: str) -> None:
    assert (await client.post("/capacity/confirm", json={"action": action})).status_code == 200


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"requests": 0}, "body.requests"),
        ({"requests": 20_001}, "body.requests"),
        ({"pool": ""}, "body.pool"),
        ({"action": "sell"}, "body.action"),
        ({"budget": 3}, "body.budget"),
    ],
)
async def test_what_confirmations_refuse(client: httpx.AsyncClient, body: dict[str, object], field: str) -> None:
    refused = await client.post("/capacity/confirm", json=body)
    assert (refused.status_code, [one["field"] for one in refused.json()["errors"]]) == (422, [field])
