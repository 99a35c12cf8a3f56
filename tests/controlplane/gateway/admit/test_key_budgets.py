"""Keys with budgets of their own, through a real gateway."""

from __future__ import annotations

import time
from typing import Any

import pytest

from cachefleet_controlplane.store.tenant_records import UsageRecord
from cachefleet_controlplane.tenants.budgets import Budgets, Period, period_end
from cachefleet_core.tenancy import api_key_hash, new_api_key
from tests.controlplane.gateway.harness import FLEET_KEY, Known, chat, engine, front
from tests.controlplane.gateway.tenancies import ACME, CHAT, KEYS, directory, record
from tests.controlplane.waiting import until

OTHER = new_api_key(b"o" * 32)


def two_keys(**limits: Any) -> Known:
    """Of one tenant, the first with limits of its own."""
    hashed = api_key_hash(FLEET_KEY.api_key_hash_key, OTHER.encode())
    return Known(directory(ACME, keys=[record(ACME, **limits), record(ACME, id="other", hash=hashed)]))


@pytest.mark.parametrize(
    ("limit", "most", "said"),
    [
        ("tokens_per_day", 5, "may use 5 tokens a day (UTC)"),
        ("tokens_per_month", 5, "may use 5 tokens a month (UTC)"),
        ("requests_per_month", 1, "may make 1 requests a month (UTC)"),
        ("output_tokens_per_day", 1, "may use 1 output tokens a day (UTC)"),
        ("spend_per_day", 5 * 10**6, "may spend 0.000005 a day (UTC)"),
        ("spend_per_month", 5 * 10**6, "may spend 0.000005 a month (UTC)"),
    ],
)
async def test_over_its_own_budget_a_key_is_429_and_its_tenants_other_keys_are_served(
    limit: str, most: int, said: str
) -> None:
    known, budgets, used = two_keys(**{limit: most}), Budgets(), list[UsageRecord]()
    budgets.watch(known.directory.budgets.values())
    prices = "{input: 1.0, output: 1.0}"
    own, other = {"x-api-key": KEYS[ACME.name]}, {"x-api-key": OTHER}
    async with (
        engine() as worker,
        front([worker], known=known, budgets=budgets, pricing=prices, used=used.append) as gate,
    ):
        for key in (other, own):
            assert (await gate.post(CHAT, chat("hello there"), **key))[0] == 200
        await until(lambda: gate.gateway.under_way == 0)
        gate.metrics.registry.settle()
        assert sorted(one.key for one in used) == ["", "acme/acme"]
        assert {one.tenant for one in used} == {ACME.name}
        async with gate.http.post(gate.url + CHAT, json=chat("hello there"), headers=own) as answer:
            error = (await answer.json())["error"]
            assert (answer.status, error["code"], error["type"]) == (429, limit, "rate_limit_error")
            assert error["message"].startswith("API key `cf-...` ")
            assert said in error["message"]
            now, period = time.time(), Period(limit.rpartition("_")[2])
            assert abs(int(answer.headers["retry-after"]) - (period_end(period, now) - now)) < 5
            if limit.startswith("tokens"):
                assert answer.headers["x-ratelimit-remaining-tokens"] == "0"
        assert (await gate.post(CHAT, chat("hello there"), **other))[0] == 200


async def test_answers_tell_what_a_keys_own_budget_leaves() -> None:
    known, budgets = two_keys(tokens_per_day=1000), Budgets()
    budgets.watch(known.directory.budgets.values())
    async with engine() as worker, front([worker], known=known, budgets=budgets) as gate:
        _, told, _ = await gate.post(CHAT, chat("x"), **{"x-api-key": KEYS[ACME.name]})
        assert (told["x-ratelimit-limit-tokens"], told["x-ratelimit-remaining-tokens"]) == ("1000", "1000")
        _, told, _ = await gate.post(CHAT, chat("x"), **{"x-api-key": OTHER})
        assert "x-ratelimit-limit-tokens" not in told


@pytest.mark.parametrize("limit", ["tokens_per_day", "output_tokens_per_month", "spend_per_day"])
async def test_what_was_made_for_who_left_counts_against_a_keys_own_budget(limit: str) -> None:
    known, budgets, used = two_keys(**{limit: 20}), Budgets(), list[UsageRecord]()
    budgets.watch(known.directory.budgets.values())
    own, slow = {"x-api-key": KEYS[ACME.name]}, {"inter_token_seconds": 0.01, "natural_tokens": 2000}
    async with (
        engine(**slow) as worker,
        front([worker], known=known, budgets=budgets, pricing="{output: 0.000001}", used=used.append) as gate,
    ):
        asked = chat("x", stream=True, max_tokens=2000)
        async with gate.http.post(gate.url + CHAT, json=asked, headers=own) as answer:
            for _ in range(30):
                await answer.content.readuntil(b"\n\n")
            answer.close()
        await until(lambda: gate.gateway.under_way == 0)
        gate.metrics.registry.settle()
        assert (used[0].key, used[0].completion_tokens >= 20) == ("acme/acme", True)
        assert (await gate.post(CHAT, chat("x"), **own))[0] == 429
