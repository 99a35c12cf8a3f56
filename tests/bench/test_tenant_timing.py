"""The area under the ROC curve by which times are compared."""

import pytest

from bench.tenant_timing import PLAIN, area, probed
from tests.chaos.measurements import measured

PROBES = 2000
PREFILL = 6_000
"""Tokens a second: so slow that what is to be seen is plain on a busy machine, too."""


@pytest.mark.parametrize(
    ("smaller", "larger", "expected"),
    [
        ([1.0, 2.0], [3.0, 4.0], 1.0),
        ([3.0, 4.0], [1.0, 2.0], 0.0),
        ([1.0, 1.0], [1.0], 0.5),
        ([1.0, 3.0], [2.0, 3.0], 0.625),
    ],
)
def test_the_area_is_the_chance_to_be_below(smaller: list[float], larger: list[float], expected: float) -> None:
    assert area(smaller, larger) == expected


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_tenants_probes_tell_it_nothing_and_the_victims_own_do() -> None:
    other, own = probed(PROBES, seed=1, prefill=PREFILL)
    measured(27, "area under the curve of another tenant's probes", other.area, unit="", at_least=0.45, at_most=0.55)
    measured(27, "area under that of the victim's own", own.area, unit="", at_least=PLAIN)
