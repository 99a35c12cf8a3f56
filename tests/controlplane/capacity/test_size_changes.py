"""Changes of a pool's size: what was foretold, when it has settled, what came; and what is no change."""

from dataclasses import replace
from typing import Any

import pytest

from cachefleet_controlplane.capacity.capacity_report import PoolCapacity
from cachefleet_controlplane.capacity.desired_workers import Desired, ScalingReason
from cachefleet_controlplane.capacity.hit_curve import HitCurve
from cachefleet_controlplane.capacity.pool_reuse import ReuseSums, Window
from cachefleet_controlplane.capacity.size_changes import (
    MOST_KEPT,
    SettlingBounds,
    SettlingPhase,
    SizeChange,
    SizeChanges,
)
from cachefleet_core.fleet_status.capacity_facts import MORE_BUDGET, MORE_WORKERS
from tests.controlplane.capacity.test_advice import POOL, Requests

BOUNDS = SettlingBounds()
BLOCK = 16


def report(workers: int = 2, *, desired: Desired | None = None, **changes: Any) -> PoolCapacity:
    """Of a pool whose prompts would need 49,152 blocks for 90 % hits; two workers of 8,192 give 30 %."""
    measures = replace(POOL, workers=workers, **changes)
    curve = HitCurve(measures, Requests(49_152))
    return PoolCapacity(
        measures=measures,
        window=Window.RECENT,
        asked=curve.now,
        sampled=1.0,
        error=curve.error,
        now=curve.at(workers),
        by_workers=(),
        by_budget=(),
        curve=curve,
        desired=desired,
    )


class Pool:
    """A pool that is looked at every ten seconds, as it answers ten requests of a thousand tokens each time."""

    def __init__(self, changes: SizeChanges | None = None) -> None:
        self.changes = changes or SizeChanges(BOUNDS)
        self.sums = ReuseSums()
        self.now = 1_800_000_000.0

    def looks(self, times: int, of: PoolCapacity, *, served: float = 0.3, requests: int = 10) -> None:
        for _ in range(times):
            self.now += 10
            tokens = 1000 * requests
            new = ReuseSums(requests, tokens, int(served * tokens), (1 - served) * tokens / BLOCK)
            self.sums = self.sums.plus(new)
            self.changes.step(of, self.sums, self.now)

    @property
    def pending(self) -> SizeChange:
        assert self.changes.pending is not None
        return self.changes.pending

    def phase(self) -> SettlingPhase:
        return self.pending.phase


def test_what_was_advised_is_compared_with_what_came() -> None:
    pool = Pool()
    pool.looks(3, report(desired=Desired(3, ScalingReason.TOKENS)))
    assert pool.changes.pending is None
    pool.looks(1, report(3))
    pending = pool.pending
    assert (pending.before.workers, pending.foretold.workers, pending.advised) == (2, 3, MORE_WORKERS)
    assert pending.before.hit_ratio == pytest.approx(0.3)
    assert pending.foretold.hit_ratio == pytest.approx(0.45)
    assert pending.foretold.computed_tokens_per_second == pytest.approx(5500)
    assert (pending.came_ratio, pending.error) == (None, None)
    pool.looks(40, report(3), served=0.0)
    assert pool.phase() is SettlingPhase.MEASURING, "what fills the caches does not count"
    pool.looks(100, report(3), served=0.4)
    [judged] = pool.changes.judged
    assert pool.changes.pending is None
    assert judged.came_ratio == pytest.approx(0.4)
    assert judged.error == pytest.approx(0.05)
    assert judged.came_computed == pytest.approx(6000)
    assert judged.computed_error == pytest.approx(-500)
    told = judged.shown()
    assert (told.phase, told.advised, told.error) == ("judged", MORE_WORKERS, judged.error)
    assert told.words.startswith("2 -> 3 workers: 45 % hits foretold, 40 % came (+5.0 points off)")
    assert pending.shown().words == "2 -> 3 workers: 45 % hits foretold, what comes is not known yet (filling)"


def test_a_budget_is_foretold_as_a_number_of_workers_is() -> None:
    pool = Pool()
    pool.looks(1, report())
    pool.looks(1, report(budget=12_288, budget_mib=12_288))
    assert pool.pending.foretold.hit_ratio == pytest.approx(0.45)
    assert pool.pending.foretold.budget_mib == 12_288
    assert pool.pending.advised == MORE_BUDGET
    assert pool.pending.shown().words.startswith("8 GiB -> 12 GiB budget: 45 % hits foretold")
    pool.looks(1, report(budget=12_290, budget_mib=12_288))
    assert pool.phase() is SettlingPhase.FILLING, "a little more or less memory is the same budget"


def test_caches_are_filled_when_all_could_have_been_replaced_and_after_an_hour_at_the_latest() -> None:
    pool = Pool()
    pool.looks(1, report())
    pool.looks(1, report(3))
    each = 0.7 * 10_000 / BLOCK
    needed = int(report(3).measures.own / each)
    pool.looks(needed, report(3))
    assert pool.phase() is SettlingPhase.FILLING
    pool.looks(1, report(3))
    assert pool.phase() is SettlingPhase.MEASURING
    slow = Pool()
    slow.looks(1, report())
    slow.looks(1, report(3))
    slow.looks(359, report(3), served=1.0)
    assert slow.phase() is SettlingPhase.FILLING
    slow.looks(1, report(3), served=1.0)
    assert slow.phase() is SettlingPhase.MEASURING


def test_few_requests_are_waited_for_a_day() -> None:
    pool = Pool()
    pool.looks(1, report())
    pool.looks(1, report(3))
    pool.looks(int(BOUNDS.most_seconds / 10), report(3), requests=0)
    assert pool.phase() is SettlingPhase.FILLING
    pool.looks(1, report(3), requests=0)
    assert pool.changes.pending is None
    assert not pool.changes.judged


def test_a_pool_that_is_back_at_its_size_while_its_caches_fill_has_not_changed() -> None:
    pool = Pool()
    pool.looks(1, report())
    pool.looks(2, report(3))
    pool.looks(1, report())
    assert pool.changes.pending is None
    pool.looks(2, report(3))
    first = pool.pending
    pool.looks(1, report(4))
    assert (pool.pending.before.workers, pool.pending.foretold.workers) == (2, 4), "by the curve of before"
    assert pool.pending.foretold.hit_ratio > first.foretold.hit_ratio


def test_another_size_while_it_is_measured_is_a_change_of_its_own() -> None:
    pool = Pool()
    pool.looks(1, report())
    pool.looks(1, report(3))
    pool.looks(40, report(3), served=0.0)
    assert pool.phase() is SettlingPhase.MEASURING
    pool.looks(1, report(2))
    assert not pool.changes.judged
    assert (pool.pending.before.workers, pool.pending.foretold.workers) == (3, 2)


def test_a_restart_goes_on_with_what_was_kept() -> None:
    pool = Pool()
    pool.looks(1, report())
    pool.looks(41, report(3), served=0.0)
    kept = pool.pending
    again = SizeChanges(BOUNDS)
    again.restore([kept])
    pool.changes, pool.sums = again, ReuseSums(500, 500_000, 0, 1.0)
    pool.looks(1, report(3))
    assert pool.pending.sums == kept.sums, "what this process saw before it looked is no part of it"
    pool.looks(70, report(3), served=0.45)
    [judged] = pool.changes.judged
    assert judged.error == pytest.approx(0.0, abs=0.02)
    other = SizeChanges(BOUNDS)
    other.restore([kept])
    pool.changes = other
    pool.looks(1, report(2))
    assert other.pending is None, "it had another size when it was looked at again"


def test_few_judged_changes_are_kept() -> None:
    changes = SizeChanges(BOUNDS)
    pool = Pool(changes)
    pool.looks(1, report())
    for turn in range(MOST_KEPT + 2):
        pool.looks(200, report(3 - turn % 2), served=0.0)
    assert len(changes.judged) == MOST_KEPT
    assert changes.judged[-1].at > changes.judged[0].at


def test_a_budget_that_there_was_not_is_not_foretold() -> None:
    pool = Pool()
    pool.looks(1, report(budget=0, budget_mib=1))
    pool.looks(1, report(budget=8192))
    assert pool.changes.pending is None
