"""The chart's alerts and recording rules, as their file has them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Final

import yaml

from tests.chart.helm import CHART, Object

RULES: Final = CHART / "files" / "alerts.yaml"


@cache
def groups() -> list[Object]:
    """All groups of rules."""
    found: list[Object] = yaml.safe_load(RULES.read_text())["groups"]
    return found


@cache
def alerts() -> Mapping[str, Object]:
    """Every alert by its name."""
    return {rule["alert"]: rule for group in groups() for rule in group["rules"] if "alert" in rule}


@cache
def recorded() -> Mapping[str, str]:
    """Every recorded series' expression by its name."""
    return {rule["record"]: rule["expr"] for group in groups() for rule in group["rules"] if "record" in rule}
