"""Counts that wait in memory are there whenever metrics are read."""

from prometheus_client import Counter, generate_latest

from cachefleet_controlplane.exposition import PendingCounts, SettledRegistry


def test_counts_are_added_before_metrics_are_read_and_once() -> None:
    registry = SettledRegistry()
    counts = PendingCounts(Counter("asked", "", ["model", "status"], registry=registry), registry)
    assert registry.get_sample_value("asked_total", {"model": "a", "status": "2xx"}) is None
    counts.add("a", "2xx")
    counts.add("a", "2xx", amount=2)
    counts.add("b", "5xx")
    for _ in range(2):
        assert registry.get_sample_value("asked_total", {"model": "a", "status": "2xx"}) == 3
        assert b'asked_total{model="b",status="5xx"} 1.0' in generate_latest(registry)
    counts.add("a", "2xx")
    assert registry.get_sample_value("asked_total", {"model": "a", "status": "2xx"}) == 4
