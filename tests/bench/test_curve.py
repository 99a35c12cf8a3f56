"""The hit curve against full simulations of the fleets that it speaks of."""

import pytest

from bench.curve import SELF_MADE, SIZES, WORKLOADS, Workload, errors, points

ALLOWED = {"self-made": 4.0, "mooncake": 1.0, "agents": 4.5, "tau": 4.0}
"""Points of the hit ratio; those of budgets that few prompts fill, or that routing does not fill, are the largest."""


def off(workload: Workload, sizes: list[tuple[int, float]]) -> dict[str, float]:
    """Errors in points, by what was foretold."""
    found = errors(workload, workload.load(), sizes)
    return {one["row"]: points(one) for one in found if "times" in one["row"]}


@pytest.mark.parametrize("size", SIZES)
def test_a_made_up_workload_is_foretold(size: tuple[int, float]) -> None:
    found = off(SELF_MADE, [size])
    assert all(abs(error) <= ALLOWED[SELF_MADE.name] for error in found.values()), found


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda one: one.name)
def test_recorded_workloads_are_foretold(workload: Workload) -> None:
    try:
        workload.load()
    except FileNotFoundError as error:
        pytest.skip(f"the trace is not there: {error}; CACHEFLEET_TRACES says where to look")
    found = off(workload, list(SIZES))
    assert all(abs(error) <= ALLOWED[workload.name] for error in found.values()), found
