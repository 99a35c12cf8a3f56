"""The last hour by the admin API."""

from __future__ import annotations

import httpx
import pytest

from cachefleet_controlplane.history.cache_history import FLEET, Answered, CacheHistory, Gauges
from cachefleet_controlplane.prompt_causes.cause_ledger import CauseLedger, Place
from cachefleet_controlplane.prompt_causes.prompt_cause import PromptCause
from cachefleet_controlplane.routing.lost_tokens import LostCause
from tests.controlplane.admin.conftest import NOW

LOST = {LostCause.EVICTED: 48, LostCause.LAST_BLOCK: 4}
NEW = {LostCause.FIRST_SEEN: 90, LostCause.LAST_BLOCK: 10}


@pytest.fixture(autouse=True)
def hour(history: CacheHistory) -> None:
    for pool, ago in (("default/demo", 5), ("default/demo", 65), ("default/other", 5)):
        answered = Answered(requests=1, prompt_tokens=100, served_tokens=48, lost=LOST, ttft_sum=0.25, ttft_count=1)
        history.add(pool, answered, NOW - ago)
    history.fail("default/demo", NOW - 5)
    history.sample({"default/demo": Gauges(running=2, held_blocks=9, budget_blocks=12), FLEET: Gauges()}, NOW - 1)


async def test_history(client: httpx.AsyncClient) -> None:
    told = (await client.get("/history", params={"pool": "default/demo"})).json()
    assert told["stepSeconds"] == 10
    first, last = told["points"]
    assert last == {
        "at": "2027-01-15T07:59:50Z",
        "requests": 1,
        "failed": 1,
        "promptTokens": 100,
        "servedTokens": 48,
        "recomputedTokens": 52,
        "lostTokens": {"evicted": 48, "last_block": 4},
        "ttftSeconds": 0.25,
        "running": 2,
        "waiting": 0,
        "queued": 0,
        "heldBlocks": 9,
        "idleBlocks": None,
        "budgetBlocks": 12,
        "hitRatio": None,
    }
    since = {"pool": "default/demo", "since": last["at"]}
    assert (await client.get("/history", params=since)).json()["points"] == [last], "what a viewer lacks"
    assert (first["running"], first["queued"], first["requests"]) == (None, None, 1), "it was not sampled"


async def test_lost_hits_of_all_pools_add_up(client: httpx.AsyncClient) -> None:
    told = (await client.get("/lost-hits")).json()
    assert (told["promptTokens"], told["servedTokens"]) == (300, 144)
    assert [(one["cause"], one["tokens"]) for one in told["causes"]] == [("evicted", 144), ("last_block", 12)]
    assert told["causes"][0]["why"] == "It was computed before, and evicted since."
    assert (told["since"], told["until"]) == ("2027-01-15T07:00:10Z", "2027-01-15T08:00:00Z")
    assert told["bucketSeconds"] == 60
    assert [(one["at"], one["promptTokens"], one["causes"]) for one in told["buckets"]] == [
        ("2027-01-15T07:58:00Z", 100, {"evicted": 48, "last_block": 4}),
        ("2027-01-15T07:59:00Z", 200, {"evicted": 96, "last_block": 8}),
    ]


async def test_lost_hits_of_one_pool(client: httpx.AsyncClient) -> None:
    told = (await client.get("/lost-hits", params={"pool": "default/other", "bucketSeconds": 10})).json()
    assert (told["promptTokens"], [one["at"] for one in told["buckets"]]) == (100, ["2027-01-15T07:59:50Z"])
    nothing = (await client.get("/lost-hits", params={"pool": "default/nobody"})).json()
    assert (nothing["promptTokens"], nothing["causes"], nothing["buckets"]) == (0, [], [])


@pytest.mark.parametrize("seconds", [0, 15, 3610])
async def test_a_bucket_is_whole_steps(client: httpx.AsyncClient, seconds: int) -> None:
    refused = await client.get("/lost-hits", params={"bucketSeconds": seconds})
    assert refused.status_code == 422
    assert "bucketSeconds" in refused.text


async def test_prefixes(client: httpx.AsyncClient) -> None:
    [told] = (await client.get("/prefixes", params={"pool": "default/demo", "limit": 5})).json()["items"]
    assert told == {
        "name": "00c0ffee00c0ffee",
        "tenant": "acme",
        "model": "default/tiny",
        "tokens": 64,
        "requests": 3,
        "heat": 2.5,
        "savedTokens": 128,
        "holders": ["default/demo/demo-0#0"],
        "holderCount": 1,
        "warm": True,
    }
    assert (await client.get("/prefixes", params={"pool": "default/other"})).json() == {"items": []}


async def test_causes_in_prompts(client: httpx.AsyncClient, history: CacheHistory, ledger: CauseLedger) -> None:
    first_seen = {PromptCause.TIME: 64, PromptCause.NEW: 26}
    off = {"shortfall_tokens": 12, "surplus_tokens": 3}
    history.add("default/new", Answered(requests=1, prompt_tokens=100, lost=NEW, first_seen=first_seen, **off), NOW)
    told = (await client.get("/lost-hits", params={"pool": "default/new"})).json()
    assert [(one["cause"], one["tokens"]) for one in told["firstSeen"]] == [("time", 64), ("new", 26)]
    assert (told["shortfallTokens"], told["surplusTokens"]) == (12, 3)
    assert told["firstSeen"][0]["why"].startswith("A time or date")
    ledger.add(("default/new", "acme"), 100, [(Place(PromptCause.TIME, "system", "system"), 64)], now=NOW)
    ledger.add(("default/demo", "acme"), 100, [(Place(PromptCause.TOOLS, "tools", "system"), 70)], now=NOW)
    [one] = (await client.get("/prompt-causes", params={"pool": "default/new"})).json()["items"]
    assert one == {
        "pool": "default/new",
        "tenant": "acme",
        "cause": "time",
        "why": "A time or date in it is another than in the nearest earlier prompt.",
        "part": "system",
        "role": "system",
        "mend": "move the time or date in the system prompt behind what stays the same, or round it to the day",
        "tokens": 64,
        "points": 64.0,
        "tokensPerDay": 64 * 144,
    }
    assert len((await client.get("/prompt-causes", params={"limit": 1})).json()["items"]) == 1
    assert (await client.get("/prompt-causes", params={"limit": 0})).status_code == 422
