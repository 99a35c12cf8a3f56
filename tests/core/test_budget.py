from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachefleet_core.budget import (
    BudgetReason,
    blocks,
    budget_blocks,
    kv_cache_mib,
    mebibytes,
    plan_budget,
    request_mib,
)
from cachefleet_core.pool.spec import PoolSpec, read_pool
from tests.core.invalid_pools import VALID, merged

KIB_32 = 32 * 1024


def spec(memory: int = 9286, budget: int = 1024, **patch: Any) -> PoolSpec:
    """A pool on a device with ``memory`` MiB left beside weights of 0."""
    base = {"model": {"weightsMiB": 0}, "device": {"memoryMiB": memory}, "prefixCache": {"budgetMiB": budget}}
    return read_pool(merged(merged(VALID, {"spec": base}), {"spec": patch})).spec


@pytest.mark.parametrize(
    ("memory", "prefix_cache", "kv_cache", "running"),
    [
        (9286, {"budgetMiB": 1024}, 5738, 4714),
        (9286, {"enabled": False}, 5738, 5738),
        (9286, {"budgetMiB": 0}, 5738, 5738),
        (100, {"budgetMiB": 1024}, 0, 0),
        (3548, {"budgetMiB": 0}, 0, 0),
        (4000, {"budgetMiB": 1024}, 452, 0),
    ],
)
@pytest.mark.requirement("C15")
def test_worked_figures(memory: int, prefix_cache: dict[str, Any], kv_cache: int, running: int) -> None:
    """The figures of the requirements: 2048 and 1500 MiB set aside, never below 0."""
    plan = plan_budget(spec(memory, prefixCache=prefix_cache))

    assert (plan.kv_cache_mib, plan.running_mib) == (kv_cache, running)


def test_weights_and_what_is_set_aside_count() -> None:
    asked: dict[str, Any] = {"model": {"weightsMiB": 31250}, "device": {"memoryMiB": 81920}}

    assert kv_cache_mib(spec(**asked)) == 47122
    assert kv_cache_mib(spec(model={"weightsMiB": 1}, device={"memoryMiB": 9, "activationMiB": 2, "floorMiB": 3})) == 3


def test_a_budget_above_the_kv_cache_is_refused_with_both_numbers() -> None:
    plan = plan_budget(spec(budget=5739), KIB_32)

    assert (plan.admitted, plan.reason) == (False, BudgetReason.EXCEEDS_KV_CACHE)
    assert plan.message.startswith("prefixCache.budgetMiB is 5739 MiB, the KV cache of a device is 5738 MiB: lower it")


def test_a_disabled_cache_asks_for_no_budget() -> None:
    plan = plan_budget(spec(prefixCache={"enabled": False, "budgetMiB": 99999}), KIB_32)

    assert (plan.budget_mib, plan.admitted) == (0, True)


def test_without_the_bytes_of_a_token_it_is_unknown() -> None:
    plan = plan_budget(spec())

    assert (plan.admitted, plan.reason) == (None, BudgetReason.UNKNOWN_TOKEN_SIZE)


@pytest.mark.parametrize("memory", [100, 3548, 4572])
def test_no_running_share_at_all_needs_no_bytes_of_a_token_to_be_refused(memory: int) -> None:
    plan = plan_budget(spec(memory, budget=1024 if memory == 4572 else 0))

    assert (plan.admitted, plan.reason) == (False, BudgetReason.NO_ROOM_FOR_REQUESTS)
    advice = "lower engine.maxModelLen" + (" or prefixCache.budgetMiB" if memory == 4572 else "")
    assert plan.message.endswith(f"needs 1 MiB of KV cache, 0 MiB are left for running requests: {advice}")


@pytest.mark.requirement("C15")
def test_the_request_of_the_requirements_is_refused_with_both_numbers() -> None:
    """67,881 + 8,192 tokens of 32 KiB are 2,377 MiB and some; in whole blocks, with vLLM's own, 2,378."""
    asked = spec(6948, engine={"maxModelLen": 67_881 + 8_192}, model={"kvBytesPerToken": KIB_32})
    plan = plan_budget(asked)

    assert plan.running_mib == 2376
    assert (plan.admitted, plan.reason) == (False, BudgetReason.NO_ROOM_FOR_REQUESTS)
    assert plan.message == (
        "one request of 76073 tokens needs 2378 MiB of KV cache, 2376 MiB are left for running requests: "
        "lower engine.maxModelLen or prefixCache.budgetMiB"
    )


@given(st.integers(1, 100_000), st.integers(1, 1_000_000), st.sampled_from([1, 16, 32, 100]))
def test_a_running_share_is_admitted_exactly_where_a_request_fits(length: int, per_token: int, size: int) -> None:
    asked: dict[str, Any] = {"engine": {"maxModelLen": length, "blockSize": size}}
    needed = request_mib(spec(**asked), per_token)
    usable = blocks(needed, size * per_token) - 1

    assert usable * size >= length
    assert (blocks(needed - 1, size * per_token) - 1) * size < length
    for running, fits in ((needed - 1, False), (needed, True)):
        assert plan_budget(spec(2048 + 1500 + 1024 + running, **asked), per_token).admitted is fits


def test_what_a_worker_reports_wins_over_the_pool() -> None:
    asked = spec(model={"kvBytesPerToken": 1_000_000})

    assert plan_budget(asked).admitted is False
    assert plan_budget(asked, 1000).admitted is True


def test_an_admitted_budget_says_how_memory_is_divided() -> None:
    assert plan_budget(spec(), 1000).message == "1024 MiB idle and 4714 MiB running in 5738 MiB of KV cache"


def test_blocks_are_whole() -> None:
    assert blocks(2, 16384) == 128
    assert blocks(1, 1024 * 1024 + 1) == 0
    assert blocks(0, 1) == 0
    assert mebibytes(128, 16384) == 2
    assert mebibytes(129, 16384) == 3
    assert mebibytes(0, 16384) == 0


@pytest.mark.parametrize(
    ("prefix_cache", "block_bytes", "total", "kept"),
    [
        ({"budgetMiB": 2}, 16_384, 1000, 128),
        ({"budgetMiB": 2}, 16_384, 100, 100),
        ({"budgetMiB": 2}, 16_384, 0, 128),
        ({"budgetMiB": 2}, 0, 100, 100),
        ({"budgetMiB": 0}, 0, 100, 0),
        ({"enabled": False}, 16_384, 100, 0),
    ],
)
def test_an_engine_keeps_no_more_idle_blocks_than_it_has(
    prefix_cache: dict[str, Any], block_bytes: int, total: int, kept: int
) -> None:
    assert budget_blocks(spec(prefixCache=prefix_cache), block_bytes=block_bytes, total=total) == kept


@given(st.integers(0, 2**24), st.integers(1, 2**40))
def test_blocks_and_mib_are_inverse_up_to_rounding(mib: int, block_bytes: int) -> None:
    assert mebibytes(blocks(mib, block_bytes), block_bytes) <= mib
    assert mebibytes(blocks(mib, block_bytes) + 1, block_bytes) > mib or (mib * 2**20) % block_bytes


@pytest.mark.parametrize(("mib", "block_bytes"), [(-1, 1), (1, 0), (1, -1)])
def test_no_blocks_of_nothing(mib: int, block_bytes: int) -> None:
    with pytest.raises(ValueError, match="need MiB of at least 0 and a block of at least 1 byte"):
        blocks(mib, block_bytes)
