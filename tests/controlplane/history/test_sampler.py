"""What is sampled of pools, and when."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachefleet_controlplane.history.cache_history import FLEET, STEP_SECONDS, CacheHistory, Gauges
from cachefleet_controlplane.history.sampler import Sampler, gauges, until_next
from tests.controlplane.fleet_views import fleet_view, unknown_worker, worker_status
from tests.controlplane.gateway.harness import pool as declared

KEY = "default/demo"


def test_load_and_blocks_of_a_pool() -> None:
    view = fleet_view(worker_status("demo-0"), worker_status("demo-1"), unknown_worker("demo-2"))
    found = gauges(view, {KEY: declared()}.get, lambda line: {("default", "tiny"): 3}[line])
    budget = 2 * 64  # the default budget is more than the engines have
    expected = Gauges(
        running=4, waiting=2, queued=3, held_blocks=80, idle_blocks=24, budget_blocks=budget, hit_ratio=0.7
    )
    assert found == {KEY: expected, FLEET: expected}


def test_pools_of_one_model_have_one_line_at_the_gateway() -> None:
    view = fleet_view(worker_status("demo-0"))
    [first] = view.pools
    two = replace(view, pools=(first, msgspec.structs.replace(first, key="default/other")))
    found = gauges(two, lambda _: None, lambda _: 3)
    assert [found[key].queued for key in (KEY, "default/other", FLEET)] == [3, 3, 3]
    assert found[KEY].budget_blocks is None, "it is not declared any more"


def test_what_nobody_tells_is_not_made_up() -> None:
    found = gauges(fleet_view(unknown_worker("demo-0"), queried=0, hits=0), {KEY: declared()}.get, lambda _: 0)
    assert (found[KEY].idle_blocks, found[KEY].budget_blocks, found[KEY].hit_ratio) == (None, None, None)


@given(st.floats(0, 2e9))
def test_samples_are_taken_near_the_end_of_steps_and_never_in_a_row(now: float) -> None:
    wait = until_next(now)
    assert 0.5 < wait <= STEP_SECONDS + 0.5
    assert (now + wait) % STEP_SECONDS == pytest.approx(STEP_SECONDS - 1, abs=1e-3)


async def test_it_samples_once_a_step() -> None:
    now, waits = [1_800_000_004.0], 0

    async def sleep(seconds: float) -> None:
        nonlocal waits
        waits += 1
        now[0] += seconds
        if waits > 3:
            raise asyncio.CancelledError

    history = CacheHistory()
    view = fleet_view(worker_status("demo-0"))
    sampler = Sampler(history, lambda: view, list, clock=lambda: now[0], sleep=sleep)
    with pytest.raises(asyncio.CancelledError):
        await sampler.run()
    steps = history.steps(KEY, now[0])
    assert [step.at for step in steps] == [1_800_000_000, 1_800_000_010, 1_800_000_020]
    assert all(step.gauges and step.gauges.running == 2 for step in steps)
