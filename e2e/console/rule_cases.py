"""Cases of alerts, and the file for `promtool test rules` that is made of them.

A case is an entry below its alert in ``rules/*.yaml``::

    CachefleetPoolDegraded:
    - name: what happens
      series: {'cachefleet_x{pool="ns/a"}': 1}    # each minute: a number, or promtool's notation, as in 0+60x30
      at: 15m                                     # when it is looked at
      fires: [{labels: {pool: ns/a}, value: "2"}] # left out: it is silent; value is how the alert's words show $value
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import yaml

from tests.chart.rules import alerts, groups

Json = dict[str, Any]

FOLDER: Final = Path(__file__).parent / "rules"
_DAY: Final = 1440
"""Minutes. Rules that look at longer times are computed every ten minutes, else their cases take a minute of CPU."""
_LABEL: Final = re.compile(r"\{\{ \$labels\.(\w+) \}\}")
_VALUE: Final = re.compile(r"\{\{ \$value[^}]*\}\}")


def cases(file: Path) -> dict[str, list[Json]]:
    """The cases of one file, by alert."""
    found: dict[str, list[Json]] = yaml.safe_load(file.read_text())
    return found


def write_unit_tests(of: Mapping[str, Sequence[Json]], folder: Path) -> list[Path]:
    """The files that promtool is given, one for each alert, with the rules that it is computed from alone."""
    longest = max(_minutes(case["at"]) for listed in of.values() for case in listed)
    return [_written(alert, listed, folder, every="10m" if longest > _DAY else "1m") for alert, listed in of.items()]


def _written(alert: str, listed: Sequence[Json], folder: Path, *, every: str) -> Path:
    rules, tests = folder / f"{alert}.rules.yaml", folder / f"{alert}.yaml"
    rules.write_text(yaml.safe_dump({"groups": read_by(alert)}))
    made = [_test(alert, case) for case in listed]
    tests.write_text(yaml.safe_dump({"rule_files": [rules.name], "evaluation_interval": every, "tests": made}))
    return tests


def read_by(alert: str) -> list[Json]:
    """The group of an alert, with that alert and the rules that it reads: others, above all those of days, take as
    long.
    """
    [group] = [group for group in groups() if any(rule.get("alert") == alert for rule in group["rules"])]
    kept: list[Json] = []
    for rule in reversed(group["rules"]):  # a rule reads those before it
        if rule.get("alert") == alert or _read(rule, kept):
            kept.insert(0, rule)
    return [{**group, "rules": kept}]


def _read(rule: Json, by: Sequence[Json]) -> bool:
    """Whether any of these rules reads what a rule records."""
    return "record" in rule and any(rule["record"] in one["expr"] for one in by)


def _test(alert: str, case: Json) -> Json:
    due = {"eval_time": case["at"], "alertname": alert, "exp_alerts": [_shown(alert, one) for one in _fires(case)]}
    return {
        "name": f"{alert}: {case['name']}",
        "interval": "1m",
        "input_series": [
            {"series": series, "values": _values(value, _minutes(case["at"]))}
            for series, value in case["series"].items()
        ],
        "alert_rule_test": [*_not_yet(alert), due],
    }


def _fires(case: Json) -> list[Json]:
    return [{"labels": {}, "value": ""} | one for one in case.get("fires", ())]


def _not_yet(alert: str) -> list[Json]:
    """A minute before an alert could have been true for long enough, it is silent."""
    wait = _minutes(alerts()[alert].get("for", "0m"))
    return [{"eval_time": f"{wait - 1}m", "alertname": alert, "exp_alerts": []}] if wait else []


def _shown(alert: str, one: Json) -> Json:
    rule = alerts()[alert]
    words = {name: _filled(text, one) for name, text in rule["annotations"].items()}
    return {"exp_labels": one["labels"] | rule["labels"], "exp_annotations": words}


def _filled(text: str, one: Json) -> str:
    named = _LABEL.sub(lambda match: str(one["labels"][match[1]]), text)
    return _VALUE.sub(str(one["value"]), named)


def _values(value: float | str, minutes: int) -> str:
    return value if isinstance(value, str) else f"{value}+0x{minutes}"


def _minutes(text: str) -> int:
    number, unit = int(text[:-1]), text[-1]
    return number * {"m": 1, "h": 60}[unit]
