"""The area under the ROC curve by which times are compared."""

import pytest

from bench.tenant_timing import area


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
