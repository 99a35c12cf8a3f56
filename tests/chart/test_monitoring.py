"""Monitors, alerts and dashboards name only what there is."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from cachefleet_controlplane.wiring.control_plane import ControlPlane
from cachefleet_controlplane.wiring.settings import Settings
from cachefleet_core.tenancy import FleetKey
from cachefleet_operator.manifests.container import AGENT_PORT, ENGINE_PORT
from cachefleet_operator.metrics import Metrics as OperatorMetrics
from cachefleet_worker.agent.metrics import AgentMetrics
from tests.chart.helm import CHART, Object, template
from tests.chart.matrix import MATRIX
from tests.chart.rules import recorded

pytestmark = pytest.mark.cluster

NAME = re.compile(r"(?<![\w:])cachefleet_[a-z_]+|\bpool:cachefleet_[a-z_]+:\w+")
BY = re.compile(r"\bby \(([^)]*)\)")
SELECTOR = re.compile(r"(cachefleet_[a-z_]+)\{([^}]*)\}")
# What Prometheus adds to every target, and le of histograms.
TARGET = {"pod", "job", "instance", "namespace", "container", "le"}
DASHBOARDS = sorted((CHART / "dashboards").glob("*.json"))


def registries() -> Iterator[CollectorRegistry]:
    yield OperatorMetrics("0").registry
    yield AgentMetrics().registry
    with TemporaryDirectory() as folder:
        key = Path(folder) / "fleet.key"
        key.write_text(FleetKey.generate().format())
        # As in a cluster; its constructor opens no connection.
        own: dict[str, Any] = {"fleet_key_file": key, "pool_source": "kubernetes", "auth": "kubernetes"}
        yield ControlPlane(Settings(**own, data_dir=Path(folder))).metrics.registry


@cache
def known() -> dict[str, frozenset[str]]:
    """Every series' name, with its labels."""
    found: dict[str, frozenset[str]] = {}
    for registry in registries():
        for collector in list(registry._collector_to_names):
            for family in collector.collect():
                labels: Any = getattr(collector, "_labelnames", None) or getattr(family, "_labelnames", ())
                found |= dict.fromkeys(names(family.name, family.type), frozenset(labels))
    return found | dict.fromkeys(recorded(), frozenset({"pool"}))


def names(name: str, kind: str) -> list[str]:
    endings = {"counter": ["_total"], "histogram": ["_bucket", "_sum", "_count"], "info": ["_info"], "gauge": [""]}
    return [name + ending for ending in endings[kind]]


def everything() -> list[Object]:
    [found] = template(MATRIX["monitored"]).of("PrometheusRule")
    return [rule for group in found["spec"]["groups"] for rule in group["rules"]]


def rules() -> list[Object]:
    return [rule for rule in everything() if "alert" in rule]


def expressions() -> Iterator[tuple[str, str]]:
    """Of all rules and dashboards, with where each is."""
    yield from ((rule.get("alert") or rule["record"], rule["expr"]) for rule in everything())
    for file in DASHBOARDS:
        board = json.loads(file.read_text())
        for panel in board["panels"]:
            yield from ((f"{file.name}: {panel['title']}", t["expr"]) for t in panel.get("targets", ()))
        for variable in board["templating"]["list"]:
            if variable["type"] == "query":
                yield file.name, variable["definition"]


def test_every_metric_exists() -> None:
    missing = {name: where for where, text in expressions() for name in NAME.findall(text) if name not in known()}

    assert missing == {}


def test_every_expression_asks_for_something() -> None:
    assert [where for where, text in expressions() if not NAME.search(text)] == []


def test_every_label_exists() -> None:
    wrong = []
    for where, text in expressions():
        labels = frozenset().union(*(known()[name] for name in NAME.findall(text))) | TARGET | {"version"}
        by = {label.strip() for group in BY.findall(text) for label in group.split(",")}
        wrong += [(where, label) for label in sorted(by - labels)]
        for name, selector in SELECTOR.findall(text):
            asked = set(re.findall(r"(\w+)\s*[=!]", selector))
            wrong += [(where, label) for label in sorted(asked - known()[name] - TARGET)]
    assert wrong == []


def test_an_alert_on_the_first_of_something_can_see_it() -> None:
    """A counter that begins with 1 has no increase: its series must be there before, at 0."""
    wanted = {name for rule in rules() for name in re.findall(r"increase\((\w+)\[\w+\]\)\)? > 0", rule["expr"])}
    there = {s.name for registry in registries() for family in registry.collect() for s in family.samples}

    assert wanted >= {"cachefleet_agent_withdrawals_total", "cachefleet_task_errors_total"}
    assert wanted - there == set()


def test_expressions_are_balanced() -> None:
    for where, text in expressions():
        for opened, closed in ("()", "{}", "[]"):
            assert text.count(opened) == text.count(closed), where


def test_a_pool_whose_pods_have_no_node_is_without_workers() -> None:
    """They have no address, so the control plane does not know of them; a pool that wants none is Ready."""
    [rule] = [rule for rule in rules() if rule["alert"] == "CachefleetPoolWithoutWorkers"]
    of_operator = dict(re.findall(r'pool_condition\{type="(\w+)"\}[^=]*== ([01])', rule["expr"]))

    assert of_operator == {"BudgetAdmitted": "1", "WorkersAvailable": "0", "Ready": "0"}


@pytest.mark.parametrize(
    ("alert", "only"),
    [
        ("CachefleetWorkerReportsStale", "cachefleet_worker_ready) == 1"),
        ("CachefleetAgentAlone", 'cachefleet_agent_engine_polls_total{outcome="answered"}[5m]) > 0'),
    ],
)
def test_a_worker_that_still_loads_its_weights_is_no_cause_for_alarm(alert: str, only: str) -> None:
    [rule] = [rule for rule in rules() if rule["alert"] == alert]

    assert rule["expr"].rstrip().endswith(only)


def test_alerts_say_how_bad_and_what_to_do() -> None:
    found = [rule["alert"] for rule in rules()]

    assert len(found) == len(set(found)) >= 15
    for rule in rules():
        assert rule["labels"]["severity"] in {"critical", "warning"}
        assert rule["alert"].startswith("Cachefleet")
        assert {"summary", "description", "runbook_url"} == rule["annotations"].keys()


def test_runbooks_are_where_the_installation_says() -> None:
    assert {rule["annotations"]["runbook_url"].partition("/")[0] for rule in rules()} == {"docs"}
    base = "https://git.example.com/cachefleet/blob/main/docs/"
    values = {"monitoring": {"rules": {"enabled": True, "runbooks": base}}}
    [found] = template(values).of("PrometheusRule")
    shown = [rule for group in found["spec"]["groups"] for rule in group["rules"] if "alert" in rule]
    assert {rule["annotations"]["runbook_url"].partition("#")[0] for rule in shown} == {
        f"{base}troubleshooting.md",
        f"{base}operations.md",
    }


def test_labels_in_an_alert_s_words_are_those_of_its_series() -> None:
    for rule in rules():
        shown = set(re.findall(r"\$labels\.(\w+)", json.dumps(rule["annotations"])))
        by = {label.strip() for group in BY.findall(rule["expr"]) for label in group.split(",")}
        kept = by if BY.search(rule["expr"]) else set().union(*(known()[n] for n in NAME.findall(rule["expr"])))
        assert shown <= kept | TARGET, rule["alert"]


def test_the_part_of_healthy_outcomes_is_spelt_as_the_operator_does() -> None:
    [rule] = [rule for rule in rules() if rule["alert"] == "CachefleetReconcileFails"]
    from cachefleet_operator.reconcile.reconciler import Outcome  # noqa: PLC0415  # another part's, for this test alone

    assert set(re.findall(r'outcome!~"([^"]+)"', rule["expr"])[0].split("|")) <= {str(outcome) for outcome in Outcome}


@pytest.mark.parametrize("file", DASHBOARDS, ids=lambda file: Path(file).stem)
def test_a_dashboard_is_one_that_grafana_takes(file: Path) -> None:
    board = json.loads(file.read_text())
    panels = board["panels"]

    assert board["uid"] == f"cachefleet-{file.stem}"
    assert len({panel["id"] for panel in panels}) == len(panels)
    assert len({panel["title"] for panel in panels if panel["type"] == "row"}) == sum(
        p["type"] == "row" for p in panels
    )
    for panel in panels:
        place = panel["gridPos"]
        assert 0 <= place["x"] < place["x"] + place["w"] <= 24
    cells = [(p["gridPos"]["x"] + x, p["gridPos"]["y"]) for p in panels for x in range(p["gridPos"]["w"])]
    assert len(cells) == len(set(cells)), "panels overlap"


def test_dashboards_travel_in_config_maps() -> None:
    maps = template(MATRIX["monitored"]).of("ConfigMap")

    assert len(maps) == len(DASHBOARDS) >= 3
    for found in maps:
        assert found["metadata"]["labels"]["grafana_dashboard"] == "1"
        [content] = found["data"].values()
        assert json.loads(content)["uid"].startswith("cachefleet-")


def test_monitors_find_the_ports() -> None:
    objects = template(MATRIX["monitored"])
    [service], [operator] = (
        objects.of("ServiceMonitor"),
        [o for o in objects.of("PodMonitor") if o["metadata"]["name"].endswith("-operator")],
    )
    labels = objects.one("Service", "-controlplane")["metadata"]["labels"]

    assert service["spec"]["selector"]["matchLabels"].items() <= labels.items()
    others = [o for o in objects.of("Service") if not o["metadata"]["name"].endswith("-controlplane")]
    assert not any(
        service["spec"]["selector"]["matchLabels"].items() <= o["metadata"]["labels"].items() for o in others
    )
    assert [end["port"] for end in service["spec"]["endpoints"]] == ["internal"]
    # Else Prometheus would put the port's name in place of the label "endpoint" of requests.
    assert all(end["honorLabels"] for end in service["spec"]["endpoints"])
    assert [end["port"] for end in operator["spec"]["podMetricsEndpoints"]] == ["metrics"]
    assert objects.one("PodMonitor", "-workers")["spec"]["namespaceSelector"] == {"any": True}
    assert {o["metadata"]["labels"]["release"] for o in objects.of("PodMonitor")} == {"prometheus"}


def test_workers_are_watched_on_both_ports() -> None:
    monitor = template(MATRIX["monitored"]).one("PodMonitor", "-workers")["spec"]

    assert {end["port"] for end in monitor["podMetricsEndpoints"]} == {"agent-tls", "engine-tls"}
    assert (AGENT_PORT, ENGINE_PORT) == (8082, 8000), "the network policies name these"


def test_in_listed_namespaces_workers_are_sought_there() -> None:
    values = {**MATRIX["monitored"], "namespaces": ["serving"]}

    assert template(values).one("PodMonitor", "-workers")["spec"]["namespaceSelector"] == {"matchNames": ["serving"]}


def test_none_of_it_comes_unasked() -> None:
    kinds = {found["kind"] for found in template()}

    assert not kinds & {"ServiceMonitor", "PodMonitor", "PrometheusRule", "ConfigMap"}
