"""Hit curves and advice by the admin API."""

import httpx
import msgspec
import pytest

from cachefleet_core.fleet_status.capacity_facts import CapacityFacts, CapacityList, SizeFacts


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
