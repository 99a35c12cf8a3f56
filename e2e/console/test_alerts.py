"""The chart's alerts and recording rules, as Prometheus reads and computes them."""

from __future__ import annotations

from pathlib import Path

import pytest

from e2e.console.prometheus import promtool
from e2e.console.rule_cases import FOLDER, cases, write_unit_tests
from tests.chart.rules import RULES, alerts

pytestmark = pytest.mark.console

FILES = sorted(FOLDER.glob("*.yaml"))


def test_prometheus_takes_the_charts_rules() -> None:
    assert "SUCCESS" in promtool("check", "rules", RULES)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_alerts_fire_and_are_silent_when_they_should(file: Path, tmp_path: Path) -> None:
    assert "SUCCESS" in promtool("test", "rules", *write_unit_tests(cases(file), tmp_path))


def test_every_alert_has_a_case_in_which_it_fires_and_one_in_which_it_is_silent() -> None:
    found = [(alert, listed) for file in FILES for alert, listed in cases(file).items()]

    assert sorted(alert for alert, _ in found) == sorted(alerts()), "each alert once, and none that there is not"
    for alert, listed in found:
        assert any(case.get("fires") for case in listed), f"{alert} never fires"
        assert not all(case.get("fires") for case in listed), f"{alert} is never silent"
