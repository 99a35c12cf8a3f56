"""A fleet in outline against simulations: the same hits with one worker, and within a point with several."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.curve import SELF_MADE, WatchedRun
from bench.curve_outline import load_of, outlined
from bench.replay_work import BLOCK, synthetic
from cachefleet_controlplane.simulation.fleet_setup import Setup
from cachefleet_controlplane.simulation.workload import SimulatedRequest

FAST = Setup(workers=2, blocks=100, budget_blocks=20, prefill_tokens_per_second=1000.0, inter_token_seconds=0.01)
DONE = 10.0
"""Seconds after which any of these has ended."""


def asked(
    number: int, at: float, first: int, blocks: int, *, outputs: int = 1, answer: tuple[int, ...] = ()
) -> SimulatedRequest:
    """A prompt of whole blocks and a token."""
    return SimulatedRequest(number, at, tuple(range(first, first + blocks)), BLOCK * blocks + 1, outputs, answer)


def ratio(*blocks: int, of: int) -> object:
    return pytest.approx(BLOCK * sum(blocks) / of)


def test_what_was_computed_is_found_and_what_exceeds_the_budget_is_not() -> None:
    again = [asked(0, 0.0, 1, 15), asked(1, DONE, 1, 15)]
    assert outlined(load_of(again), FAST) == ratio(15, of=sum(one.tokens for one in again))
    others = [asked(0, 0.0, 1, 15), asked(1, DONE, 101, 15), asked(2, 2 * DONE, 1, 15)]
    one_worker = Setup(workers=1, blocks=100, budget_blocks=20)
    assert outlined(load_of(others), one_worker) == ratio(5, of=sum(one.tokens for one in others)), (
        "ends are evicted first"
    )
    assert outlined(load_of(others), FAST) == ratio(15, of=sum(one.tokens for one in others)), (
        "the other worker took the second"
    )


def test_an_answer_is_found_by_the_turn_that_goes_on_from_it() -> None:
    first = asked(0, 0.0, 1, 4, outputs=2 * BLOCK, answer=(5, 6))
    turn = asked(1, DONE, 1, 6)
    assert outlined(load_of([first, turn]), FAST) == ratio(6, of=first.tokens + turn.tokens)


def test_a_prefix_in_use_is_shared_unless_waiting_for_it_takes_longer() -> None:
    long = asked(0, 0.0, 1, 50)
    near, far = asked(1, 0.1, 1, 50), asked(1, 0.1, 1, 45)
    assert outlined(load_of([long, near]), FAST) == ratio(50, of=long.tokens + near.tokens)
    assert outlined(load_of([long, far]), FAST) == 0.0


ONE = Setup(workers=1, blocks=400, prefill_tokens_per_second=1000.0, batched_tokens=64, running=4, model_len=8192)
"""An engine with a queue now and then, that lacks room for answers."""


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from([0, 20, 100, 400]), st.floats(0.1, 4.0))
def test_one_worker_finds_what_a_simulated_engine_does(seed: int, budget: int, gap: float) -> None:
    setup = replace(ONE, budget_blocks=budget)
    requests = synthetic(conversations=6, turns=6, seed=seed, gap=gap)
    assert hits(requests, setup) == simulated(requests, setup)


def hits(requests: list[SimulatedRequest], setup: Setup) -> tuple[int, int]:
    """Prompt tokens, and those found, in outline."""
    prompt_tokens, hit_tokens, too_large = load_of(requests).play(setup, seconds=60.0) or (0, 0, 0)
    assert not too_large
    return prompt_tokens, hit_tokens


def simulated(requests: list[SimulatedRequest], setup: Setup) -> tuple[int, int]:
    """The same by a whole simulation."""
    run = WatchedRun(requests, setup)
    run.run()
    return sum(one.tokens for one in requests), BLOCK * sum(run.result.hits.values())


@pytest.mark.parametrize(("workers", "factor"), [(2, 1.0), (3, 0.5), (4, 0.25), (8, 1.0)])
def test_a_made_up_workload_is_within_a_point(workers: int, factor: float) -> None:
    budget = int((SELF_MADE.setup.budget_blocks or 0) * factor)
    assert off(SELF_MADE.load()[:300], replace(SELF_MADE.setup, workers=workers, budget_blocks=budget)) <= 1.0


def off(requests: list[SimulatedRequest], setup: Setup) -> float:
    """Points of the hit ratio between the outline and the simulation."""
    (tokens, outlined), (_, found) = hits(requests, setup), simulated(requests, setup)
    return 100 * abs(outlined - found) / tokens
