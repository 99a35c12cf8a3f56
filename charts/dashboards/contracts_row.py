"""Row of the fleet's dashboard about tenants' cache contracts: for how much of the time they were met, and why not."""

from __future__ import annotations

from typing import Final

from charts.dashboards.dashboard import Query, Row, graph
from charts.dashboards.promql import JOB, POOL, rate, share_by, share_of_rates, summed

_OF: Final = "pool, tenant"

CONTRACTS: Final = Row(
    "Contracts",
    (
        graph(
            "Time that contracts were met",
            "Share of judged minutes in which a tenant's cache contract was met. Empty where no pool has contracts.",
            "percentunit",
            Query(
                share_of_rates(
                    summed(rate("cachefleet_contract_met_minutes_total", JOB, POOL), by=_OF),
                    summed(rate("cachefleet_contract_minutes_total", JOB, POOL), by=_OF),
                ),
                "{{pool}} {{tenant}}",
            ),
            width=12,
        ),
        graph(
            "Why contracts were not met",
            (
                "Share of judged minutes by reason; one may have several. not_enforced: a worker without plugin or "
                "budget; evicted: running requests needed the room; hit_objective: too few tokens from cache."
            ),
            "percentunit",
            Query(
                share_by(
                    summed(rate("cachefleet_contract_missed_minutes_total", JOB, POOL), by=f"{_OF}, reason"),
                    summed(rate("cachefleet_contract_minutes_total", JOB, POOL), by=_OF),
                    _OF,
                ),
                "{{pool}} {{tenant}} {{reason}}",
            ),
            width=12,
        ),
    ),
)
