"""The operator's dashboard over a real operator, which a real Prometheus watches."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from cachefleet_local.fleet.ports import take_ports
from e2e.cluster.bench import Bench
from e2e.cluster.kube import until
from e2e.console.prometheus import Target, prometheus
from e2e.console.shown_panels import ask
from tests.chart.dashboards import boards

pytestmark = pytest.mark.cluster

QUICK = {"facts_seconds": 0.2, "status_seconds": 0.5, "resync_seconds": 1}


def test_every_panel_of_the_operators_dashboard_shows_something(bench: Bench, tmp_path: Path) -> None:
    [board] = [board for board in boards() if board.name == "operator"]
    nobody = f"http://127.0.0.1:{take_ports({'nobody': 0})['nobody']}"
    operator = bench.operator(admin_url=nobody, tls="issued", **QUICK)
    begin = time.time()

    with prometheus(tmp_path, [Target("operator", "operator-0", f"127.0.0.1:{operator.port}")]) as watching:
        bench.create()

        def nothing_is_empty() -> bool:
            found = ask(watching, board, begin, time.time())
            assert [(query.panel, query.legend) for query, series in found.items() if not series] == []
            return True

        until(nothing_is_empty)
