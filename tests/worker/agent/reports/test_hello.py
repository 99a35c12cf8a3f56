from __future__ import annotations

import pytest

from cachefleet_core.pool.adapter_reports import MAX_ADAPTERS
from cachefleet_worker.agent.reports.hello import MAX_NAME, fitting


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
