"""Advice confirmed by simulation: what is simulated, what is told of it, and for how long."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from cachefleet_controlplane.other_sizes.confirmations import KEPT_SECONDS, Confirmations
from cachefleet_controlplane.simulation.fleet_model import Changes
from cachefleet_controlplane.simulation.fleet_setup import Setup
from cachefleet_controlplane.simulation.simulation_job import Figures
from cachefleet_controlplane.simulation.simulator import Played, Simulated, WantedSimulation
from cachefleet_controlplane.wire.errors import ApiError
from cachefleet_core.fleet_status.capacity_facts import (
    MORE_BUDGET,
    MORE_WORKERS,
    AdviceFacts,
    CapacityFacts,
    SizeFacts,
)

WALL = 1_700_000_000.0
WORKERS = AdviceFacts(action=MORE_WORKERS, words="a third worker", size=SizeFacts(workers=3), points=13.0)
BUDGET = AdviceFacts(
    action=MORE_BUDGET, words="more", size=SizeFacts(workers=2, budget_factor=2.0, budget_mib=1024), points=4.0
)


def capacity(pool: str = "default/demo", *advice: AdviceFacts) -> CapacityFacts:
    return CapacityFacts(pool=pool, words="said", advice=advice or (WORKERS, BUDGET))


def played(recomputed: int) -> Played:
    figures: dict[str, Any] = dict.fromkeys(
        ("queue_p50_seconds", "queue_p99_seconds", "ttft_p50_seconds", "ttft_p95_seconds")
    )
    made = Figures(requests=500, prompt_tokens=1000, recomputed_tokens=recomputed, **figures)
    return Played(policy="cacheAware", budget_mib=None, setup=Setup(), figures=made)


class Site:
    """Confirmations of a few pools, by a simulation that gives 40 % of hits today and 52 % as advised."""

    def __init__(self, *pools: CapacityFacts) -> None:
        self.pools = list(pools or [capacity()])
        self.wanted: list[WantedSimulation] = []
        self.now = 0.0
        self.made = Confirmations(
            lambda: self.pools, self._simulate, clock=lambda: self.now, wall_clock=lambda: WALL + self.now
        )

    async def _simulate(self, wanted: WantedSimulation) -> Simulated:
        self.wanted.append(wanted)
        assert wanted.pool is not None
        return Simulated(
            pool=wanted.pool, happened=None, warm_up=0, today=played(600), changed=played(480), seconds=1.0
        )


async def test_the_first_advice_is_simulated_and_told_beside_the_curve() -> None:
    site = Site()
    one = await site.made.confirm(None, None, 500)
    [wanted] = site.wanted
    assert (wanted.pool, wanted.recorded, wanted.changes) == ("default/demo", 500, Changes(workers=3))
    facts = one.advice[0].confirmed
    assert facts is not None
    assert [facts.today, facts.hit_ratio] == pytest.approx([0.4, 0.52])
    assert [facts.points, facts.error] == pytest.approx([12.0, 1.0])
    assert (facts.requests, facts.at) == (500, datetime.fromtimestamp(WALL, UTC))
    said = "simulated with the last 500 requests: 40.0 -> 52.0 % hits, +12.0 points; the curve says +13.0"
    assert facts.words == said
    assert one.advice[1].confirmed is None


async def test_a_budget_is_simulated_with_the_workers_that_there_are() -> None:
    site = Site()
    one = await site.made.confirm("default/demo", MORE_BUDGET, 100)
    assert site.wanted[0].changes == Changes(workers=2, budget_mib=1024)
    assert [advice.confirmed is not None for advice in one.advice] == [False, True]


async def test_it_is_shown_for_an_hour_while_the_advice_is_the_same() -> None:
    site = Site(capacity(), capacity("default/other"))
    await site.made.confirm("default/demo", None, 100)
    assert [one.advice[0].confirmed is not None for one in site.made()] == [True, False]
    site.pools[0] = capacity("default/demo", AdviceFacts(action=MORE_WORKERS, size=SizeFacts(workers=4)))
    assert site.made()[0].advice[0].confirmed is None
    site.pools[0] = capacity()
    site.now = KEPT_SECONDS - 1
    assert site.made()[0].advice[0].confirmed is not None
    site.now = KEPT_SECONDS
    assert site.made()[0].advice[0].confirmed is None


async def test_that_of_a_deleted_pool_is_forgotten() -> None:
    site = Site()
    await site.made.confirm(None, None, 100)
    deleted, site.pools = site.pools, []
    assert site.made() == ()
    site.pools = deleted
    assert site.made()[0].advice[0].confirmed is None


@pytest.mark.parametrize(
    ("pool", "action", "status", "said"),
    [
        (None, None, 422, "there are several pools: name one of default/demo, default/silent"),
        ("default/none", None, 404, "there is no pool default/none; pools: default/demo, default/silent"),
        ("default/silent", None, 422, "pool default/silent has no such advice to confirm; it has: not known yet"),
        (
            "default/demo",
            "fewerWorkers",
            422,
            "pool default/demo has no such advice to confirm; it has: moreWorkers, moreBudget",
        ),
    ],
)
async def test_what_cannot_be_confirmed(pool: str | None, action: str | None, status: int, said: str) -> None:
    site = Site(capacity(), CapacityFacts(pool="default/silent", words="not known yet"))
    with pytest.raises(ApiError) as raised:
        await site.made.confirm(pool, action, 100)
    assert (raised.value.status, raised.value.message) == (status, said)
    assert site.wanted == []
