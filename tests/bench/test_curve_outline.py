"""A fleet in outline sends a request where it takes least, and keeps what its budget holds."""

import pytest

from bench.curve_outline import OutlineWorker, outlined
from bench.replay_work import BLOCK
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
    assert outlined(again, FAST) == ratio(15, of=sum(one.tokens for one in again))
    others = [asked(0, 0.0, 1, 15), asked(1, DONE, 101, 15), asked(2, 2 * DONE, 1, 15)]
    one_worker = Setup(workers=1, blocks=100, budget_blocks=20)
    assert outlined(others, one_worker) == ratio(5, of=sum(one.tokens for one in others)), "ends are evicted first"
    assert outlined(others, FAST) == ratio(15, of=sum(one.tokens for one in others)), "the other worker took the second"


def test_an_answer_is_found_by_the_turn_that_goes_on_from_it() -> None:
    first = asked(0, 0.0, 1, 4, outputs=2 * BLOCK, answer=(5, 6))
    turn = asked(1, DONE, 1, 6)
    assert outlined([first, turn], FAST) == ratio(6, of=first.tokens + turn.tokens)


def test_a_prefix_in_use_is_shared_unless_waiting_for_it_takes_longer() -> None:
    long = asked(0, 0.0, 1, 50)
    near, far = asked(1, 0.1, 1, 45), asked(1, 0.1, 1, 2)
    assert outlined([long, near], FAST) == ratio(45, of=long.tokens + near.tokens)
    assert outlined([long, far], FAST) == 0.0


def test_a_worker_makes_room_for_what_it_computes() -> None:
    worker = OutlineWorker(0, Setup(blocks=30, budget_blocks=None))
    old, new = asked(0, 0.0, 1, 20), asked(1, DONE, 101, 25)
    worker.take(old, 0)
    worker.leave(old)
    assert (worker.held(old), worker.requests) == (20, 0)
    worker.take(new, 0)
    assert (worker.held(old), worker.held(new), len(worker.idle)) == (5, 25, 5)
