"""Outlines correct what the curve says of other sizes, where they count."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from msgspec.structs import replace as changed

from cachefleet_controlplane.capacity.hit_curve import HitCurve
from cachefleet_controlplane.capacity.outlined_sizes import FRESH_SECONDS, OutlinedSizes
from cachefleet_controlplane.capacity.pool_measures import PoolMeasures
from cachefleet_controlplane.capacity.pool_reuse import ReuseCurve

POOL = PoolMeasures(key="default/p", workers=2, replicas=2, budget=1000, total=8000, used=0, held=2000)
MADE = OutlinedSizes(
    made_at=100.0,
    workers=2,
    budget=1000,
    requests=500,
    served=0.31,
    by_workers=[(1, 0.2), (2, 0.3), (4, 0.4)],
    by_budget=[(0.25, 0.25), (1.0, 0.3), (4.0, 0.5)],
)


def ask(capacities: Sequence[float]) -> ReuseCurve:
    """Hits that grow evenly, of which 0.2 are served by 2,000 blocks and 0.8 by 8,000."""
    return ReuseCurve(100.0, 1000.0, 1000.0, 200.0, 0.0, 10.0, [min(1.0, size / 10_000) for size in capacities])


def test_it_tells_how_much_more_or_less_another_size_serves_than_todays() -> None:
    curve = HitCurve(POOL, ask, MADE)
    found = [point.hit_ratio for point in curve.points([(2, 1.0), (1, 1.0), (4, 1.0), (2, 0.25), (2, 4.0)])]
    assert found == pytest.approx([0.2, 0.1, 0.3, 0.15, 0.4], abs=1e-4), "served now, and the outline's differences"
    assert curve.at(2).computed_tokens_per_second == pytest.approx(80, abs=0.1)


def test_between_its_sizes_the_curve_keeps_its_shape_and_beyond_them_its_last_correction() -> None:
    plain, curve = HitCurve(POOL, ask), HitCurve(POOL, ask, MADE)
    off = {size: curve.at(*size).hit_ratio - plain.at(*size).hit_ratio for size in [(3, 1.0), (4, 1.0), (6, 1.0)]}
    assert off[3, 1.0] == pytest.approx(off[4, 1.0] / 2, abs=1e-4)
    assert off[6, 1.0] == pytest.approx(off[4, 1.0], abs=1e-4)
    low = [curve.at(2, factor).hit_ratio - plain.at(2, factor).hit_ratio for factor in (0.25, 0.1, 0.0)]
    assert low == pytest.approx([low[0]] * 3, abs=1e-4)
    assert 0 <= curve.at(1, 0.0).hit_ratio <= curve.at(8, 4.0).hit_ratio <= 1


def test_without_it_the_curve_is_that_of_distances() -> None:
    curve = HitCurve(POOL, ask, MADE)
    assert curve.by_distances().at(4) == HitCurve(POOL, ask).at(4)
    assert curve.doubt == pytest.approx(0.01)
    assert curve.by_distances().doubt == abs(curve.error)


@pytest.mark.parametrize(
    ("made", "pool", "now"),
    [
        (MADE, POOL, 100.0 + FRESH_SECONDS),
        (MADE, replace(POOL, workers=3), 101.0),
        (MADE, replace(POOL, budget=1100), 101.0),
        (changed(MADE, served=0.2), POOL, 101.0),
    ],
    ids=["too old", "of another number of workers", "of another budget", "far off what was served"],
)
def test_one_that_does_not_count_tells_nothing(made: OutlinedSizes, pool: PoolMeasures, now: float) -> None:
    assert MADE.tells_of(POOL, 101.0)
    assert not made.tells_of(pool, now)
