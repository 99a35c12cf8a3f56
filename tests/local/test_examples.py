"""Every example is a sound pool file."""

from __future__ import annotations

from pathlib import Path

import pytest

from cachefleet_core.budget import MIB, BudgetReason, plan_budget
from cachefleet_core.pool.manifest import documents
from cachefleet_core.pool.spec import KIND, read_pool
from cachefleet_local.models.tiny_model import SIZES
from tests.local.pools import EXAMPLES, example


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.yaml")), ids=lambda path: path.stem)
def test_an_example_parses_and_its_budget_is_admitted(path: Path) -> None:
    pools = [read_pool(each) for _, each in documents(path.read_text()) if each["kind"] == KIND]
    assert pools
    plans = [(pool.spec.device.claims is not None, plan_budget(pool.spec)) for pool in pools]
    # The memory of claimed devices is read in a cluster.
    assert all(
        plan.admitted or (claims and plan.reason == BudgetReason.UNKNOWN_DEVICE_MEMORY) for claims, plan in plans
    )


@pytest.mark.parametrize(("name", "mib"), [("cpu-two-workers", 6), ("demo", 24)])
def test_the_comment_of_a_cpu_pool_says_its_size_truly(name: str, mib: int) -> None:
    (pool,) = example(name)
    kv_cache = plan_budget(pool.spec).kv_cache_mib
    bytes_per_token = SIZES[pool.spec.model.source].kv_bytes_per_token
    assert pool.spec.model.kv_bytes_per_token == bytes_per_token
    assert (kv_cache, kv_cache * MIB // bytes_per_token) == (mib, 12288)


def test_the_gpu_pools_comment_says_its_sizes_truly() -> None:
    (pool,) = example("gpu-qwen")
    plan = plan_budget(pool.spec)
    assert (plan.kv_cache_mib, plan.budget_mib, plan.running_mib) == (47122, 24576, 22546)
