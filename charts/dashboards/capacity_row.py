"""Row of the fleet's dashboard about hit curves: what caches of another size would serve, and workers desired."""

from __future__ import annotations

from typing import Final

from charts.dashboards.dashboard import Query, Row, graph
from charts.dashboards.promql import JOB, POOL, highest, series

_AT: Final = "cachefleet_pool_hit_ratio_at"


def _distance(error: str) -> str:
    return f"abs({series(error, JOB, POOL)})"


CAPACITY: Final = Row(
    "Hit curves",
    (
        graph(
            "Hit ratio by workers",
            (
                "What so many more or fewer workers would have served of the requests of the last hours; +0 is "
                "today's number. Its own error is cachefleet_pool_hit_ratio_error. Empty of pools of which fewer "
                "than 50 requests are known."
            ),
            "percentunit",
            Query(highest(series(_AT, JOB, POOL, 'budget="1"'), by="pool, workers"), "{{pool}} {{workers}}"),
        ),
        graph(
            "Hit ratio by budget",
            "What so many times the budget would have served, with today's number of workers.",
            "percentunit",
            Query(highest(series(_AT, JOB, POOL, 'workers="+0"'), by="pool, budget"), "{{pool}} {{budget}} x"),
        ),
        graph(
            "Desired workers",
            (
                "As many as compute, with headroom, what their caches do not serve, and reach the objective; beside "
                "those that are ready. For autoscalers."
            ),
            "short",
            Query(highest(series("cachefleet_pool_desired_workers", JOB, POOL), by="pool"), "{{pool}} desired"),
            Query(highest(series("cachefleet_pool_ready_workers", JOB, POOL), by="pool"), "{{pool}} ready"),
        ),
        graph(
            "Error of curve and advice",
            (
                "How far the curve is off what is served now, and how far it was off, before the last judged change of "
                "the pool's size, what was served then; either way, of the hit ratio."
            ),
            "percentunit",
            Query(highest(_distance("cachefleet_pool_hit_ratio_error"), by="pool"), "{{pool}} now"),
            Query(highest(_distance("cachefleet_pool_advice_hit_ratio_error"), by="pool"), "{{pool}} change"),
        ),
    ),
)
