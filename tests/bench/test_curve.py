"""The hit curve against full simulations of the fleets that it speaks of."""

import pytest

from bench.curve import SELF_MADE, SIZES, WORKLOADS, Workload, errors, points
from bench.replay_work import BLOCK, usable
from cachefleet_controlplane.capacity.pool_reuse import PoolReuse, ReusedPrompt, Window
from cachefleet_core.tenancy import TenantId

ALLOWED = {"self-made": 4.0, "mooncake": 1.0, "agents": 4.5, "tau": 4.0}
"""Points of the hit ratio; those of budgets that few prompts fill, or that routing does not fill, are the largest."""

OUTLINED = 1.0
"""Points by which an outline may be off."""


def off(workload: Workload, sizes: list[tuple[int, float]]) -> dict[str, float]:
    """Errors in points, by what was foretold."""
    found = errors(workload, workload.load(), sizes)
    return {one["row"]: points(one) for one in found if "times" in one["row"]}


def test_each_size_is_told_in_outline_beside_the_same_simulation() -> None:
    rows = [one for one in errors(SELF_MADE, SELF_MADE.load()[:150], [(2, 1.0)]) if "today" not in one["row"]]
    told, drawn = ([one for one in rows if name in one["row"]] for name in ("times", "in outline"))
    assert [one["peer"] for one in told] == [one["peer"] for one in drawn]
    assert all(abs(points(one)) <= OUTLINED for one in drawn), drawn


@pytest.mark.parametrize("size", SIZES)
def test_a_made_up_workload_is_foretold(size: tuple[int, float]) -> None:
    found = off(SELF_MADE, [size])
    assert all(abs(error) <= ALLOWED[SELF_MADE.name] for error in found.values()), found


def test_a_sample_of_a_recorded_workload_is_near_all_of_its_blocks() -> None:
    [mooncake] = [one for one in WORKLOADS if one.name == "mooncake"]
    try:
        requests = mooncake.load()
    except FileNotFoundError as error:
        pytest.skip(f"the trace is not there: {error}; CACHEFLEET_TRACES says where to look")
    few, every = PoolReuse(entries=16_384), PoolReuse(entries=1 << 20)
    few.fit(16_384.0)
    for request in requests:
        prompt = ReusedPrompt(
            keys=request.packed,
            block_size=BLOCK,
            prompt_tokens=request.tokens,
            completion_tokens=0,
            servable_blocks=min(usable(request), len(request.keys)),
            served_tokens=0,
            tenant=TenantId("default"),
        )
        few.note(prompt, 0.0)
        every.note(prompt, 0.0)
    assert (few.sampled, every.sampled) == (0.125, 1.0)
    sizes = [2.0**power for power in range(11, 17)]
    sampled, true = (one.curve(Window.RECENT, sizes, 0.0).shares for one in (few, every))
    assert sampled == pytest.approx(true, abs=0.01), true


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda one: one.name)
def test_recorded_workloads_are_foretold(workload: Workload) -> None:
    try:
        workload.load()
    except FileNotFoundError as error:
        pytest.skip(f"the trace is not there: {error}; CACHEFLEET_TRACES says where to look")
    rows = list(errors(workload, workload.load(), SIZES))
    for name, most in (("times the budget", ALLOWED[workload.name]), ("in outline", OUTLINED)):
        found = {one["row"]: points(one) for one in rows if name in one["row"]}
        assert len(found) == len(SIZES)
        assert all(abs(error) <= most for error in found.values()), found
