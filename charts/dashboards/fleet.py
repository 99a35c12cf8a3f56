"""Fleets: hit ratio, requests, tenants, decisions, conversations, control plane."""

from __future__ import annotations

from typing import Final

from charts.dashboards.capacity_row import CAPACITY
from charts.dashboards.control_plane_row import CONTROL_PLANE
from charts.dashboards.dashboard import Dashboard, Query, Row, Variable, figure, graph, rates_by
from charts.dashboards.decisions_row import DECISIONS
from charts.dashboards.promql import (
    JOB,
    MODEL,
    POOL,
    difference,
    highest,
    increase,
    quantile,
    rate,
    series,
    share_of_rates,
    summed,
)
from charts.dashboards.tenant_rows import CONTRACTS, TENANTS

_FAILED: Final = 'status_class="5xx"'

FLEET: Final = Dashboard(
    "fleet",
    "Fleet",
    (
        Variable("job", "Job", "label_values(cachefleet_store_up, job)"),
        Variable("pool", "Pool", 'label_values(cachefleet_pool_workers{job=~"$job"}, pool)'),
        Variable("model", "Model", 'label_values(cachefleet_prompt_tokens_total{job=~"$job"}, model)', all_values=".*"),
    ),
    (
        Row(
            "Now",
            (
                figure(
                    "Hit ratio",
                    "Share of prompt tokens that workers served from cache.",
                    "percentunit",
                    Query(
                        share_of_rates(
                            summed(rate("cachefleet_cached_tokens_total", JOB, MODEL)),
                            summed(rate("cachefleet_prompt_tokens_total", JOB, MODEL)),
                        )
                    ),
                ),
                figure(
                    "Computed",
                    "Prompt tokens a second that were not served from cache: what workers had to compute.",
                    "suffix: tokens/s",
                    Query(
                        difference(
                            summed(rate("cachefleet_prompt_tokens_total", JOB, MODEL)),
                            summed(rate("cachefleet_cached_tokens_total", JOB, MODEL)),
                        )
                    ),
                ),
                figure(
                    "Ready workers",
                    "Workers that can take requests, over all pools chosen.",
                    "short",
                    Query(summed(highest(series("cachefleet_pool_ready_workers", JOB, POOL), by="pool"))),
                ),
                figure(
                    "Requests",
                    "Answers a second.",
                    "reqps",
                    Query(summed(rate("cachefleet_requests_total", JOB, MODEL))),
                ),
                figure(
                    "Errors",
                    "Share of answers with a status of 500 and above.",
                    "percentunit",
                    Query(
                        share_of_rates(
                            f"({summed(rate('cachefleet_requests_total', JOB, MODEL, _FAILED))} or vector(0))",
                            summed(rate("cachefleet_requests_total", JOB, MODEL)),
                        )
                    ),
                ),
                figure(
                    "Waiting for room",
                    "Requests that no worker has room for now.",
                    "short",
                    Query(summed(series("cachefleet_queue_requests", JOB))),
                ),
            ),
        ),
        Row(
            "Pools",
            (
                graph(
                    "Hit ratio and objective",
                    "Tokens found in cache of those looked up, over the window of each pool's objective.",
                    "percentunit",
                    Query(highest(series("cachefleet_pool_hit_ratio", JOB, POOL), by="pool"), "{{pool}}"),
                    Query(
                        highest(series("cachefleet_pool_hit_ratio_objective", JOB, POOL), by="pool"),
                        "{{pool}} objective",
                    ),
                ),
                graph(
                    "Burn of the objective",
                    (
                        "Tokens computed over those that the objective leaves to be computed: 1 just meets it. "
                        "Alerts begin at the limits. Empty without the chart's recording rules, and of pools "
                        "without an objective."
                    ),
                    "short",
                    Query(series("pool:cachefleet_objective_burn:rate5m", POOL), "{{pool}} 5 min"),
                    Query(series("pool:cachefleet_objective_burn:rate1h", POOL), "{{pool}} 1 h"),
                    Query(series("pool:cachefleet_objective_burn:rate6h", POOL), "{{pool}} 6 h"),
                    Query(series("pool:cachefleet_objective_burn:limit_fast", POOL), "{{pool}} limit of 1 h"),
                    Query(series("pool:cachefleet_objective_burn:limit_slow", POOL), "{{pool}} limit of 6 h"),
                ),
                graph(
                    "Workers",
                    (
                        "Workers of each pool: all, ready, with reports that are fresh, and left out because their "
                        "contract differs."
                    ),
                    "short",
                    Query(highest(series("cachefleet_pool_workers", JOB, POOL), by="pool"), "{{pool}}"),
                    Query(highest(series("cachefleet_pool_ready_workers", JOB, POOL), by="pool"), "{{pool}} ready"),
                    Query(
                        highest(series("cachefleet_pool_fresh_workers", JOB, POOL), by="pool"),
                        "{{pool}} with fresh reports",
                    ),
                    Query(
                        highest(series("cachefleet_pool_excluded_workers", JOB, POOL), by="pool"), "{{pool}} left out"
                    ),
                ),
            ),
        ),
        CAPACITY,
        Row(
            "Requests",
            (
                graph(
                    "Answers by status",
                    "Answers a second by class of status; and clients that left before their answer ended.",
                    "reqps",
                    rates_by("status_class", "cachefleet_requests_total", JOB, MODEL),
                    Query(summed(rate("cachefleet_client_disconnects_total", JOB)), "client left"),
                ),
                graph(
                    "Time to first token",
                    "From a request's arrival to the first token of its stream.",
                    "s",
                    Query(quantile(0.5, "cachefleet_time_to_first_token_seconds", JOB, MODEL), "p50"),
                    Query(quantile(0.95, "cachefleet_time_to_first_token_seconds", JOB, MODEL), "p95"),
                    Query(quantile(0.99, "cachefleet_time_to_first_token_seconds", JOB, MODEL), "p99"),
                ),
                graph(
                    "Prompt tokens",
                    (
                        "Prompt tokens a second: all, those that the index promised on the chosen worker, and "
                        "those that the worker served from cache."
                    ),
                    "suffix: tokens/s",
                    Query(summed(rate("cachefleet_prompt_tokens_total", JOB, MODEL)), "all"),
                    Query(summed(rate("cachefleet_predicted_tokens_total", JOB, MODEL)), "expected from cache"),
                    Query(summed(rate("cachefleet_cached_tokens_total", JOB, MODEL)), "from cache"),
                ),
                graph(
                    "Under way",
                    "Requests being answered, and those that wait for room.",
                    "short",
                    Query(summed(series("cachefleet_requests_in_flight", JOB)), "being answered"),
                    Query(summed(series("cachefleet_queue_requests", JOB)), "waiting for room"),
                ),
                graph(
                    "Wait for room",
                    "Time that requests waited for room, by how the wait ended.",
                    "s",
                    Query(quantile(0.5, "cachefleet_queue_wait_seconds", JOB, by="outcome"), "p50 {{outcome}}"),
                    Query(quantile(0.95, "cachefleet_queue_wait_seconds", JOB, by="outcome"), "p95 {{outcome}}"),
                ),
                graph(
                    "Refused",
                    "Requests a second that were sent to no worker, by reason; of tenants over their limits, too.",
                    "reqps",
                    rates_by("reason", "cachefleet_admission_refusals_total", JOB),
                    rates_by("reason", "cachefleet_tenant_refusals_total", JOB, prefix="tenant: "),
                ),
            ),
        ),
        TENANTS,
        CONTRACTS,
        DECISIONS,
        Row(
            "Conversations",
            (
                graph(
                    "Turns",
                    "Turns of named conversations a second, by what became of them.",
                    "reqps",
                    rates_by("outcome", "cachefleet_continuation_turns_total", JOB),
                ),
                graph(
                    "Handles",
                    (
                        "Requests a second whose beginning a worker kept, by what became of its handle; refused: "
                        "sent whole instead, by the worker's reason."
                    ),
                    "reqps",
                    rates_by("outcome", "cachefleet_continuation_handles_total", JOB),
                    rates_by("code", "cachefleet_continuation_handle_refusals_total", JOB, prefix="refused: "),
                ),
                graph(
                    "Bytes spared",
                    "Bytes a second of bodies that workers were not sent, because they keep them.",
                    "Bps",
                    Query(summed(rate("cachefleet_continuation_bytes_spared_total", JOB)), "spared"),
                ),
                graph(
                    "Canaries",
                    (
                        "Verified prefixes a second that were compared with a plain full render, by result: a "
                        "mismatch is a defect."
                    ),
                    "reqps",
                    rates_by("result", "cachefleet_continuation_canaries_total", JOB),
                ),
                graph(
                    "Responses over WebSocket",
                    "Connections of clients, and those that ended, by reason.",
                    "short",
                    Query(summed(series("cachefleet_websocket_connections", JOB)), "open"),
                    Query(summed(increase("cachefleet_websocket_ends_total", JOB), by="reason"), "ended: {{reason}}"),
                ),
                graph(
                    "Time of conversations",
                    "What a turn costs to look up, to plan and to keep.",
                    "s",
                    Query(quantile(0.95, "cachefleet_continuation_lookup_seconds", JOB), "p95 look up"),
                    Query(quantile(0.95, "cachefleet_continuation_plan_seconds", JOB), "p95 plan"),
                    Query(quantile(0.95, "cachefleet_continuation_commit_seconds", JOB), "p95 keep"),
                ),
            ),
        ),
        CONTROL_PLANE,
    ),
)
