"""Queries for autoscalers name series that a control plane has, with their labels."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import reduce
from typing import Any, Final

import yaml

from cachefleet_controlplane.capacity.capacity_metrics import CapacityCollector
from cachefleet_controlplane.capacity.capacity_report import CapacityReports
from cachefleet_controlplane.capacity.pool_reuse import PoolReuses
from cachefleet_controlplane.fleet.fleet_metrics import FleetCollector
from tests.controlplane.capacity.test_capacity_report import asked, models
from tests.controlplane.fleet_views import fleet_view, worker_status
from tests.docs.examples import ROOT, blocks

POOL: Final = "NAMESPACE/NAME"


def queries() -> dict[str, str]:
    """The queries of docs/operations.md by their names."""
    [block] = [block for block in blocks() if block.language == "promql"]
    found = re.findall(r"^# (\w+)\n((?:(?!# ).+\n)+)", block.text, re.MULTILINE)
    return {name: " ".join(query.split()) for name, query in found}


def _series() -> Iterator[tuple[str, frozenset[str]]]:
    view = fleet_view(worker_status("demo-0", waiting_tokens=1, backlog_seconds=1.0))
    reuses = PoolReuses()
    asked(reuses, 200)
    reports = CapacityReports(reuses, lambda: view, models, clock=lambda: 1.0)
    for collector in (FleetCollector(lambda: view), CapacityCollector(reports.all)):
        for family in collector.collect():
            for sample in family.samples:
                yield sample.name, frozenset(sample.labels)


def test_every_series_of_a_query_exists_and_has_its_labels() -> None:
    known = dict(_series())
    assert list(queries()) == ["active", "backlog", "tokens", "blocks", "desired"]
    for query in queries().values():
        for name, labels in re.findall(r"(cachefleet_\w+)\{([^}]*)\}", query):
            assert known[name] >= set(re.findall(r"(\w+)=", labels))
        assert "{" not in re.sub(r"cachefleet_\w+\{[^}]*\}", "", query)
        assert set(re.findall(r'pool="([^"]*)"', query)) == {POOL}


def test_the_table_has_what_the_queries_have() -> None:
    page = (ROOT / "docs/operations.md").read_text()
    assert re.findall(r"^\| \*(\w+)\* \|", page, re.MULTILINE) == list(queries())


def adapter_rules() -> list[dict[str, Any]]:
    """The rules of examples/autoscaling/prometheus-adapter.yaml."""
    text = (ROOT / "examples/autoscaling/prometheus-adapter.yaml").read_text()
    rules: list[dict[str, Any]] = yaml.safe_load(text)["rules"]["external"]
    return rules


def adapter_queries(pool: str) -> dict[str, str]:
    """The queries of an adapter's rules by the names of its metrics, as it fills them in."""
    rules = adapter_rules()
    namespace, _, name = pool.partition("/")
    found = {rule["name"]["as"]: rule["metricsQuery"] for rule in rules}
    given = {"<<.LabelValuesByName.pool_namespace>>": namespace, "<<.LabelValuesByName.pool>>": name}
    return {metric: reduce(lambda text, one: text.replace(*one), given.items(), q) for metric, q in found.items()}


def test_an_adapter_s_rules_have_the_same_queries() -> None:
    page, told = queries(), adapter_queries(POOL)
    assert _bare(told["cachefleet_pool_active"]) == _bare(page["active"])
    assert _bare(told["cachefleet_pool_backlog_seconds"]) == _bare(page["backlog"])
    assert _bare(told["cachefleet_pool_busy_blocks"]) == _bare(f"({page['blocks']}) * (({page['active']}) > bool 0)")
    wanted = f"({page['desired']}) * (({page['active']}) > bool 0)"
    assert _bare(told["cachefleet_pool_wanted_workers"]) == _bare(wanted)
    assert not [query for query in told.values() if "<<" in query]


def _bare(query: str) -> str:
    return re.sub(r"\s+", "", query)


def test_an_adapter_finds_its_metrics_by_a_series_that_is_there() -> None:
    rules = adapter_rules()
    series = {name for name, _ in _series()}
    assert {rule["seriesQuery"] for rule in rules} <= series
    assert not adapter_queries(POOL).keys() & series, "a metric of the adapter is none of ours"
