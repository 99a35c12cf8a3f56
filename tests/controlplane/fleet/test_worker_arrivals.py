"""When a worker may be ready, which clients that found none are told."""

from __future__ import annotations

import pytest

from cachefleet_controlplane.fleet.fleet import Fleet
from cachefleet_controlplane.fleet.worker_arrivals import MOST_SECONDS, UNSEEN_SECONDS
from cachefleet_controlplane.index.block_index import BlockIndex
from cachefleet_controlplane.pools.source import PoolView, WorkerEndpoint
from tests.controlplane.fleets import pool


class World:
    """A fleet whose workers are listed by a test, and a clock."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.fleet = Fleet(BlockIndex(), index_key=bytes(32), clock=lambda: self.now)

    def listed(self, seconds: float = 0.0, **ready: bool) -> int:
        """Time passes, then these are listed; what clients are told."""
        self.now += seconds
        endpoints = tuple(WorkerEndpoint(name, f"http://{name}", is_ready) for name, is_ready in ready.items())
        declared = pool()
        self.fleet.update_pools([PoolView(declared, endpoints)])
        return self.fleet.ready_in(declared.spec.model.name)

    def after(self, seconds: float) -> int:
        self.now += seconds
        return self.fleet.ready_in(pool().spec.model.name)


def test_a_start_is_expected_to_take_as_long_as_the_last_one() -> None:
    world = World()
    assert world.listed() == UNSEEN_SECONDS
    assert world.listed(a=False) == 2
    assert world.listed(45, a=True) == 2, "it is there"
    assert world.listed(600) == 45, "none is left, nor on its way"
    assert world.listed(b=False) == 45
    assert world.after(30) == 15
    assert world.after(14) == 2


def test_one_that_is_late_is_expected_to_be_so_for_as_long_again() -> None:
    world = World()
    world.listed(a=False)
    assert [world.after(seconds) for seconds in (1, 9, 10, 20, 300)] == [2, 10, 20, 40, MOST_SECONDS]
    world.listed(a=True)
    world.listed(a=True, b=False)
    assert world.listed(1, b=False) == MOST_SECONDS


def test_the_next_of_several_counts() -> None:
    world = World()
    world.listed(a=False)
    world.listed(40, a=True)
    world.listed(b=False)
    assert world.listed(10, b=False, c=False) == 30


@pytest.mark.parametrize("seconds", [3, 10])
def test_one_that_was_ready_before_is_no_start(seconds: int) -> None:
    world = World()
    world.listed(a=False)
    world.listed(40, a=True)
    world.listed(a=False)
    assert world.listed(seconds, a=False) == max(2, seconds)
    world.listed(a=True)
    assert world.listed() == 40
