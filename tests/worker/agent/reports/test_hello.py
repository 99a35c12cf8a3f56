from __future__ import annotations

import pytest

from cachefleet_core.pool.adapter_reports import MAX_ADAPTERS
from cachefleet_core.report_frames import MAX_ENDPOINTS
from cachefleet_worker.agent.reports.hello import MAX_NAME, fitting, fitting_paths


@pytest.mark.parametrize(
    ("paths", "told"),
    [
        (None, None),
        ((), ()),
        (("/classify", "/v1/" + "x" * (MAX_NAME - 4)), ("/classify", "/v1/" + "x" * (MAX_NAME - 4))),
        (("/v1/" + "x" * (MAX_NAME - 3),), None),
        (tuple(map(str, range(MAX_ENDPOINTS + 1))), None),
    ],
)
def test_endpoints_are_told_all_or_not_at_all(paths: tuple[str, ...] | None, told: object) -> None:
    assert fitting_paths(paths) == told


@pytest.mark.parametrize(
    ("names", "told"),
    [
        ((), ()),
        (("sql", "chat"), ("sql", "chat")),
        (("x" * MAX_NAME,), ("x" * MAX_NAME,)),
        (("x" * (MAX_NAME + 1),), None),
        (("",), None),
        (tuple(map(str, range(MAX_ADAPTERS + 1))), None),
    ],
)
def test_adapters_are_told_all_or_not_at_all(names: tuple[str, ...], told: object) -> None:
    assert fitting(names) == told
