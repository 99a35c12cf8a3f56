"""Prometheus gauges read from a view at each scrape: one series per pool, one per worker rank, removed with them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from cachefleet_controlplane.tenants.tenant_metrics import MAX_TENANTS, OTHER
from cachefleet_controlplane.workers.views import FleetView, IdleCache, IndexStatus
from cachefleet_core.fleet_status.pool_facts import PoolFacts
from cachefleet_core.fleet_status.worker_facts import Load, WorkerFacts

_RANK: Final = ("pool", "worker", "rank")

_INDEX: Final[Mapping[str, tuple[str, Callable[[IndexStatus], float]]]] = {
    "index_keys": ("Distinct block keys in the index", lambda index: index.keys),
    "index_held_blocks": ("Blocks in the index over all workers", lambda index: index.held),
    "index_bytes": ("Memory of the index, estimated", lambda index: index.bytes),
}
_INDEX_TOTALS: Final[Mapping[str, tuple[str, Callable[[IndexStatus], float]]]] = {
    "index_refused_frames": ("Report frames whose blocks were not sound", lambda index: index.refused_frames),
    "index_excess_claims": (
        "Report frames that claimed more blocks than their worker can hold",
        lambda index: index.excess_claims,
    ),
    "index_shed_frames": ("Report frames not taken, the index being full", lambda index: index.shed_frames),
}
_POOL: Final[Mapping[str, tuple[str, Callable[[PoolFacts], float | None]]]] = {
    "pool_replicas": ("Workers that there are to be, as spec.replicas says", lambda pool: pool.replicas),
    "pool_workers": ("Workers there are", lambda pool: pool.workers.total),
    "pool_ready_workers": ("Workers that can take requests", lambda pool: pool.workers.ready),
    "pool_fresh_workers": ("Workers whose blocks are known", lambda pool: pool.workers.fresh),
    "pool_excluded_workers": ("Workers left out because their contract differs", lambda pool: pool.workers.excluded),
    "pool_queued_requests": ("Requests that wait for room on a worker", lambda pool: pool.queued_requests),
    "pool_queued_blocks": ("Blocks that these need", lambda pool: pool.queued_blocks),
    "pool_idle_seconds": (
        "Since a request of this replica last had a worker, or lacked one",
        lambda pool: pool.idle_seconds,
    ),
    "pool_hit_ratio": ("Prompt tokens found in cache, of those looked up", lambda pool: pool.hit_ratio.value),
    "pool_hit_ratio_objective": ("The hit ratio asked for", lambda pool: pool.hit_ratio.objective),
    "pool_hit_ratio_sampled": ("1 where enough was looked up to judge it", lambda pool: pool.hit_ratio.sampled),
}
_WORKER: Final[Mapping[str, tuple[str, Callable[[WorkerFacts], float | None]]]] = {
    "worker_ready": ("1 where the worker can take requests", lambda worker: worker.ready and not worker.suspended),
    "worker_stale": ("1 where its reports are too old to trust", lambda worker: worker.stale),
    "worker_excluded": ("1 where its contract differs", lambda worker: worker.excluded),
    "worker_key_refused": ("1 where it refuses the gateway's key", lambda worker: worker.key_refused),
    "worker_report_age_seconds": ("Age of its last report", lambda worker: worker.report_age_seconds),
    "worker_held_blocks": ("Blocks the index has for it", lambda worker: worker.held_blocks),
    "worker_indexed": ("0 where its blocks did not fit into the index", lambda worker: worker.indexed),
    "worker_index_blind": (
        "1 where its engine serves from a cache of which the index holds nothing, or cannot",
        lambda worker: worker.blind or bool(worker.not_indexed),
    ),
    "worker_cache_value": ("What its cache is worth", lambda worker: worker.cache_value),
    "worker_trust": ("Share of its claims that is counted on", lambda worker: worker.trust),
    "worker_inflight_requests": ("Requests sent there and not answered", lambda worker: worker.inflight_requests),
    "worker_elsewhere_requests": (
        "Requests that other replicas sent there, as they tell",
        lambda worker: worker.elsewhere_requests,
    ),
    "worker_inflight_tokens": ("Prompt tokens sent there and not prefilled", lambda worker: worker.inflight_tokens),
    "worker_waiting_tokens": (
        "Prompt tokens sent there by whomever and not prefilled",
        lambda worker: worker.waiting_tokens,
    ),
    "worker_backlog_seconds": ("How long these take at its measured rate", lambda worker: worker.backlog_seconds),
}
_LOAD: Final[Mapping[str, tuple[str, Callable[[Load], float | None]]]] = {
    "worker_running_requests": ("Requests its engine runs", lambda load: load.running),
    "worker_waiting_requests": ("Requests its engine holds back", lambda load: load.waiting),
    "worker_blocks": ("Blocks its engine has", lambda load: load.blocks_total),
    "worker_free_blocks": ("Blocks a request may take", lambda load: load.blocks_free),
    "worker_idle_blocks": ("Idle cached blocks", lambda load: load.blocks_idle),
}
_UNSERVED: Final = "Requests held while no worker is ready, and those refused for that in the last minute"
_UNLISTED: Final = "Ranks of workers that report and that no pool lists"
_SUSPENDED: Final = "1 while its engine answers and serves nothing: asleep, paused, updating_weights, stuck"
_TENANT_IDLE: Final = "Idle cached blocks of a tenant over a pool's workers, as far as they tell"
_LOAD_TOTALS: Final[Mapping[str, tuple[str, Callable[[Load], float | None]]]] = {
    "worker_preemptions": ("Requests its engine preempted", lambda load: load.preemptions),
    "worker_prefix_queried_tokens": ("Prompt tokens its engine looked up", lambda load: load.prefix_queries),
    "worker_prefix_hit_tokens": ("Prompt tokens its engine found", lambda load: load.prefix_hits),
}


class FleetCollector(Collector):
    """Calls ``view`` once per scrape, in the event loop that owns the fleet."""

    def __init__(self, view: Callable[[], FleetView]) -> None:
        self._view = view

    def describe(self) -> Iterable[Metric]:
        """Nothing, so that registering does not read the fleet."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """All metrics of one view; values that are None have no sample."""
        view = self._view()
        workers = [worker for worker in view.workers if worker.listed]  # of others there may be very many
        for name, (text, size) in _INDEX.items():
            yield _gauge(name, text, size(view.index))
        for name, (text, count) in _INDEX_TOTALS.items():
            yield CounterMetricFamily(f"cachefleet_{name}", text, value=count(view.index))
        yield _gauge("unlisted_workers", _UNLISTED, len(view.workers) - len(workers))
        yield _gauge("fleet_inflight_requests", "Requests under way to workers", view.inflight_requests)
        for name, (text, read) in _POOL.items():
            yield _family(GaugeMetricFamily, name, text, ("pool",), (((p.key,), read(p)) for p in view.pools))
        unserved = (((pool.key, pool.model), pool.unserved_requests) for pool in view.pools)
        yield _family(GaugeMetricFamily, "pool_unserved_requests", _UNSERVED, ("pool", "model"), unserved)
        for name, (text, of) in _WORKER.items():
            yield _family(GaugeMetricFamily, name, text, _RANK, ((_rank(w), of(w)) for w in workers))
        suspended = (((*_rank(w), w.suspended), 1.0) for w in workers if w.suspended)
        yield _family(GaugeMetricFamily, "worker_suspended", _SUSPENDED, (*_RANK, "state"), suspended)
        told_of = tenant_idle(view.tenants)
        yield _family(GaugeMetricFamily, "tenant_idle_blocks", _TENANT_IDLE, ("pool", "tenant"), told_of)
        for kind, table in ((GaugeMetricFamily, _LOAD), (CounterMetricFamily, _LOAD_TOTALS)):
            for name, (text, told) in table.items():
                values = ((_rank(w), told(w.load)) for w in workers if w.load is not None)
                yield _family(kind, name, text, _RANK, values)


def tenant_idle(tenants: Iterable[IdleCache]) -> list[tuple[tuple[str, str], int]]:
    """Blocks by pool and tenant: of a pool the MAX_TENANTS with most by name, all else as OTHER."""
    blocks: Counter[tuple[str, str]] = Counter()
    named: Counter[str] = Counter()
    for one in tenants:
        known = bool(one.tenant) and named[one.pool] < MAX_TENANTS
        named[one.pool] += known
        blocks[one.pool, one.tenant if known else OTHER] += one.blocks
    return list(blocks.items())


def _rank(worker: WorkerFacts) -> tuple[str, str, str]:
    return worker.pool, worker.name, str(worker.rank)


def _gauge(name: str, text: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"cachefleet_{name}", text, value=value)


def _family(
    kind: type[GaugeMetricFamily | CounterMetricFamily],
    name: str,
    text: str,
    labels: tuple[str, ...],
    values: Iterable[tuple[tuple[str, ...], float | None]],
) -> Metric:
    """One metric family; None values have no sample."""
    family = kind(f"cachefleet_{name}", text, labels=labels)
    for sample, value in values:
        if value is not None:
            family.add_metric(sample, value)
    return family
