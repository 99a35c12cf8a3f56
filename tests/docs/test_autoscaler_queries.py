"""Queries for autoscalers name series that a control plane has, with their labels."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from cachefleet_controlplane.fleet.fleet_metrics import FleetCollector
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
    for family in FleetCollector(lambda: view).collect():
        for sample in family.samples:
            yield sample.name, frozenset(sample.labels)


def test_every_series_of_a_query_exists_and_has_its_labels() -> None:
    known = dict(_series())
    assert list(queries()) == ["active", "backlog", "tokens", "blocks"]
    for query in queries().values():
        for name, labels in re.findall(r"(cachefleet_\w+)\{([^}]*)\}", query):
            assert known[name] >= set(re.findall(r"(\w+)=", labels))
        assert "{" not in re.sub(r"cachefleet_\w+\{[^}]*\}", "", query)
        assert set(re.findall(r'pool="([^"]*)"', query)) == {POOL}


def test_the_table_has_what_the_queries_have() -> None:
    page = (ROOT / "docs/operations.md").read_text()
    assert re.findall(r"^\| \*(\w+)\* \|", page, re.MULTILINE) == list(queries())
