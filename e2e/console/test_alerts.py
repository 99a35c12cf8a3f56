"""The chart's alerts, as Prometheus reads them."""

from __future__ import annotations

import pytest

from e2e.console.prometheus import promtool
from tests.chart.helm import CHART

pytestmark = pytest.mark.console


def test_prometheus_takes_the_charts_rules() -> None:
    assert "SUCCESS" in promtool("check", "rules", CHART / "files" / "alerts.yaml")
