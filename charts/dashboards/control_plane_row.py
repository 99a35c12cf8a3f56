"""The control plane itself: its index, agents' reports, its store, and unexpected errors."""

from __future__ import annotations

from typing import Final

from charts.dashboards.dashboard import Query, Row, graph, rates_by
from charts.dashboards.promql import (
    JOB,
    highest,
    increase,
    rate,
    series,
    summed,
)

CONTROL_PLANE: Final = Row(
    "Control plane",
    (
        graph(
            "Index",
            "Distinct blocks that the index knows, and blocks over all workers that hold them.",
            "short",
            Query(highest(series("cachefleet_index_keys", JOB)), "distinct blocks"),
            Query(highest(series("cachefleet_index_held_blocks", JOB)), "blocks over all workers"),
        ),
        graph(
            "Memory of the index",
            "Of each replica, estimated.",
            "bytes",
            Query(series("cachefleet_index_bytes", JOB), "{{pod}}"),
        ),
        graph(
            "Reports",
            "Frames a second from agents, by type; divergence and resync: the index asked for a snapshot.",
            "ops",
            rates_by("type", "cachefleet_report_frames_total", JOB),
            Query(summed(rate("cachefleet_report_divergence_total", JOB)), "divergence"),
            rates_by("reason", "cachefleet_report_resyncs_total", JOB, prefix="resync "),
        ),
        graph(
            "Agents connected",
            "Agents that report to each replica; all of them report to every replica.",
            "short",
            Query(series("cachefleet_report_connections", JOB), "{{pod}}"),
        ),
        graph(
            "Reports not taken",
            "Connections and frames a second that were refused, by reason.",
            "ops",
            rates_by("reason", "cachefleet_report_rejections_total", JOB),
            rates_by("reason", "cachefleet_report_frames_malformed_total", JOB, prefix="malformed: "),
            Query(summed(rate("cachefleet_index_shed_frames_total", JOB)), "index full"),
            Query(summed(rate("cachefleet_index_excess_claims_total", JOB)), "more than the worker can hold"),
        ),
        graph(
            "Caches that begin anew",
            "New lives of workers' caches: each begins empty.",
            "short",
            Query(summed(increase("cachefleet_report_epochs_total", JOB)), "epochs"),
        ),
        graph(
            "Store",
            "1 while a replica's store takes records.",
            "short",
            Query(series("cachefleet_store_up", JOB), "{{pod}}"),
            highest=1,
        ),
        graph(
            "Store, in trouble",
            "Failures of the store a second by kind, and decision records that were dropped.",
            "ops",
            rates_by("kind", "cachefleet_store_errors_total", JOB, prefix="errors "),
            Query(summed(rate("cachefleet_store_dropped_total", JOB)), "dropped"),
        ),
        graph(
            "Unexpected errors",
            "Errors that a task met and was started again for, and failures of the source of pools.",
            "short",
            Query(summed(increase("cachefleet_task_errors_total", JOB), by="task"), "{{task}}"),
            Query(summed(increase("cachefleet_pool_source_errors_total", JOB), by="kind"), "pools: {{kind}}"),
        ),
    ),
)
