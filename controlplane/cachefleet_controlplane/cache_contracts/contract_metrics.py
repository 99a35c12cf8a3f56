"""Cache contracts as Prometheus metrics, read at each scrape: as many series of each as there are contracts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from cachefleet_controlplane.cache_contracts.contract_minutes import Miss
from cachefleet_controlplane.cache_contracts.contract_records import ContractRecords

_OF: Final = ("pool", "tenant")
_MET: Final = "1 while a tenant's cache contract is met, by the last minute; absent before the first"
_JUDGED: Final = "Minutes in which a tenant's cache contract was judged"
_KEPT: Final = "Minutes of these in which it was met"
_MISSED: Final = "Minutes in which it was not met, by reason; one may have several"
_EVICTED: Final = "Blocks evicted within share and retention, since running requests needed room"


class ContractCollector(Collector):
    """Reads ``records`` once per scrape."""

    def __init__(self, records: ContractRecords) -> None:
        self._records = records

    def describe(self) -> Iterable[Metric]:
        """Nothing, so that registering does not read the fleet."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """All metrics of one time."""
        met = GaugeMetricFamily("cachefleet_contract_met", _MET, labels=_OF)
        judged = CounterMetricFamily("cachefleet_contract_minutes", _JUDGED, labels=_OF)
        kept = CounterMetricFamily("cachefleet_contract_met_minutes", _KEPT, labels=_OF)
        missed = CounterMetricFamily("cachefleet_contract_missed_minutes", _MISSED, labels=(*_OF, "reason"))
        evicted = CounterMetricFamily("cachefleet_contract_evicted_blocks", _EVICTED, labels=_OF)
        for name, minutes in self._records.totals():
            if minutes.last is not None:
                met.add_metric(name, float(not minutes.last))
            judged.add_metric(name, minutes.total.minutes)
            kept.add_metric(name, minutes.total.met)
            evicted.add_metric(name, minutes.total.evicted)
            for miss in Miss:
                missed.add_metric((*name, miss.value), minutes.total.misses[miss])
        yield from (met, judged, kept, missed, evicted)
