"""Rows of the fleet's dashboard about tenants: what they are served, and whether their cache contracts were met."""

from __future__ import annotations

from typing import Final

from charts.dashboards.dashboard import Query, Row, graph, rates_by
from charts.dashboards.promql import (
    JOB,
    POOL,
    difference,
    highest,
    increase,
    rate,
    ratio,
    series,
    share_by,
    share_of_rates,
    summed,
)

_OF: Final = "pool, tenant"
_AMOUNTS: Final = {"charged": "{{tenant}} charged", "saved": "{{tenant}} saved", "wasted": "{{tenant}} wasted"}
TENANTS: Final = Row(
    "Tenants",
    (
        graph(
            "Prompt tokens of tenants",
            "Prompt tokens a second by tenant, cached ones included.",
            "suffix: tokens/s",
            rates_by("tenant", "cachefleet_tenant_prompt_tokens_total", JOB),
        ),
        graph(
            "Tokens of tenants from cache",
            "Share of each tenant's prompt tokens that was served from cache.",
            "percentunit",
            Query(
                share_of_rates(
                    summed(rate("cachefleet_tenant_cached_tokens_total", JOB), by="tenant"),
                    summed(rate("cachefleet_tenant_prompt_tokens_total", JOB), by="tenant"),
                ),
                "{{tenant}}",
            ),
        ),
        graph(
            "Tokens computed for tenants",
            "Prompt tokens that no cache had, and generated ones, a second: what tenants have shares of.",
            "suffix: tokens/s",
            Query(
                difference(
                    f"{summed(rate('cachefleet_tenant_prompt_tokens_total', JOB), by='tenant')} + "
                    f"{summed(rate('cachefleet_tenant_completion_tokens_total', JOB), by='tenant')}",
                    summed(rate("cachefleet_tenant_cached_tokens_total", JOB), by="tenant"),
                ),
                "{{tenant}}",
            ),
        ),
        graph(
            "Waiting of tenants",
            "Seconds that a request of a tenant waited for room, of those that did wait.",
            "s",
            Query(
                ratio(
                    summed(rate("cachefleet_tenant_queued_seconds_total", JOB), by="tenant"),
                    summed(rate("cachefleet_tenant_queued_requests_total", JOB), by="tenant"),
                ),
                "{{tenant}}",
            ),
        ),
        graph(
            "Amounts of tenants",
            "In the currency of spec.pricing: charged, saved by caches, and wasted on prompt tokens "
            "that were computed before.",
            "short",
            *(
                Query(summed(increase(f"cachefleet_tenant_{name}_total", JOB), by="tenant"), legend)
                for name, legend in _AMOUNTS.items()
            ),
        ),
        graph(
            "Idle blocks of tenants",
            "Blocks that each tenant has in the idle caches of a pool's workers: what shares divide.",
            "short",
            Query(
                highest(series("cachefleet_tenant_idle_blocks", JOB, POOL), by="pool, tenant"),
                "{{pool}} {{tenant}}",
            ),
        ),
    ),
)

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
