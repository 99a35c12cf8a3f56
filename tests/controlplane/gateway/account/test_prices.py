"""What requests cost: exact by the rule, and through a whole gateway while blocks go, workers restart and fail."""

from __future__ import annotations

import random
from collections import Counter
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachefleet_controlplane.gateway.account.prices import price, prices_of
from cachefleet_controlplane.routing.lost_tokens import COMPUTED_TWICE
from cachefleet_controlplane.store.decision_records import DecisionRecord
from cachefleet_controlplane.store.tenant_records import PICOS, UsageRecord
from cachefleet_core.pool.spec import PoolSpec
from cachefleet_core.tenancy import TenantId
from tests.controlplane.gateway.harness import POOL, engine, front
from tests.controlplane.gateway.harness import pool as declared
from tests.controlplane.waiting import value

TEXTS = [f"{letter} two three four five six seven eight nine ten " * 12 for letter in "abcde"]
millionths = st.integers(0, 1_000_000_000)
counts = st.integers(0, 10**9)


def spec_of(pricing: str) -> PoolSpec:
    return declared(pricing=pricing).spec


def used(prompt: int, cached: int, completed: int, again: int) -> UsageRecord:
    return UsageRecord(
        hour=0,
        tenant=TenantId("acme"),
        model="m",
        prompt_tokens=prompt,
        cached_tokens=cached,
        completion_tokens=completed,
        recomputed_tokens=again,
    )


@given(millionths, millionths, millionths, st.lists(st.tuples(counts, counts, counts, counts), max_size=4))
def test_amounts_are_exact_and_add_up(input_: int, cached: int, output: int, uses: list[tuple[int, ...]]) -> None:
    """However usage is divided: at prices in millionths for a million tokens."""
    cached = min(cached, input_)
    prices = prices_of(spec_of(f"{{input: {input_ / 1e6}, cached: {cached / 1e6}, output: {output / 1e6}}}"))
    total, parts = Counter[str](), [used(at + more, at, done, min(more, again)) for at, more, done, again in uses]
    for part in parts:
        price(part, prices, None)
        total.update({name: getattr(part, name) for name in ("charged", "saved", "wasted")})
    tokens = Counter[str]()
    for part in parts:
        tokens["computed"] += part.prompt_tokens - part.cached_tokens
        tokens["cached"] += part.cached_tokens
        tokens["output"] += part.completion_tokens
        tokens["again"] += part.recomputed_tokens
    of_token = {"computed": Fraction(input_, 10**12), "cached": Fraction(cached, 10**12)}
    charged = sum(of_token[kind] * tokens[kind] for kind in of_token) + Fraction(output, 10**12) * tokens["output"]
    less = of_token["computed"] - of_token["cached"]
    expected = {"charged": charged, "saved": less * tokens["cached"], "wasted": less * tokens["again"]}
    assert {name: Fraction(total[name], PICOS) for name in expected} == expected


@pytest.mark.parametrize(
    ("pricing", "expected"),
    [
        ("{}", (0, 0, 0, 0, 0)),
        ("{input: 2}", (2 * 1000, 0, 0, 0, 0)),
        ("{input: 2, cached: 0.5}", (2 * 400 + 0.5 * 600, 1.5 * 600, 1.5 * 100, 0, 0)),
        ("{output: 3}", (3 * 50, 0, 0, 0, 0)),
        ("{gpuHour: 3.6}", (0, 0, 0, 0.003 * 1e6, 0.0005 * 1e6)),
    ],
)
def test_what_is_not_priced_costs_nothing(pricing: str, expected: tuple[float, ...]) -> None:
    """Amounts in millionths; a rank computes 200 tokens a second."""
    use = used(1000, 600, 50, 100)
    price(use, prices_of(spec_of(pricing)), 200.0)
    amounts = (use.charged, use.saved, use.wasted, use.compute_saved, use.compute_wasted)
    assert amounts == pytest.approx([1e6 * one for one in expected])


def test_unknown_speed_gives_no_cost_of_computing() -> None:
    use = used(1000, 600, 50, 100)
    price(use, prices_of(spec_of("{gpuHour: 3.6}")), None)
    assert (use.compute_saved, use.compute_wasted) == (0, 0)


def cost(records: list[DecisionRecord]) -> Counter[str]:
    """Of requests by their own records, at 0.4 for a million, 0.1 cached and 1.2 generated."""
    sums = Counter[str]()
    for record in records:
        cached, made = record.cached_tokens or 0, record.completion_tokens or 0
        again = sum(one.tokens for one in record.lost if one.cause in COMPUTED_TWICE)
        sums["recomputed_tokens"] += again
        sums["charged"] += (record.prompt_tokens - cached) * 400_000 + cached * 100_000 + made * 1_200_000
        sums["saved"] += cached * 300_000
        sums["wasted"] += again * 300_000
    return sums


async def test_sums_are_those_of_the_requests_through_evictions_restarts_and_failover() -> None:
    """Each request's own record says what it used and lost; usage and metrics add up to exactly that."""
    told: list[UsageRecord] = []
    chance, pricing = random.Random(7), "{input: 0.4, cached: 0.1, output: 1.2}"
    async with engine() as one, engine() as two, front([one, two], pricing=pricing, used=told.append) as gate:
        for turn in range(40):
            for number in (0, 1):
                gate.report(number, said={"epoch": f"e{turn // 10}"})
            if turn % 8 == 5:
                assert chance.choice([one, two]).reset_prefix_cache()
            if turn % 10 == 9:
                await chance.choice([one, two]).restart()
            if turn % 13 == 12:
                gate.fleet.worker_failed(f"{POOL}/{gate.records[-1].worker}")
            await gate.settled_chat(chance.choice(TEXTS), max_tokens=chance.randint(1, 6))
        gate.metrics.registry.settle()
        expected = cost(gate.records)
        assert len(gate.records) == 40
        assert all(expected.values())
        assert {name: sum(getattr(one, name) for one in told) for name in expected} == expected
        for name in ("charged", "saved", "wasted"):
            counted = value(gate.metrics, f"tenant_{name}_total", tenant="default")
            assert counted == pytest.approx(expected[name] / PICOS)
