"""The operator: pools' conditions, its own work and what it asks of the API server."""

from __future__ import annotations

from typing import Final

from charts.dashboards.dashboard import Dashboard, Query, Row, Variable, figure, graph, rates_by
from charts.dashboards.promql import JOB, NAMESPACE, POOL, difference, highest, lowest, quantile, rate, series, summed

OPERATOR: Final = Dashboard(
    "operator",
    "Operator",
    (
        Variable("job", "Job", "label_values(cachefleet_operator_leading, job)"),
        Variable("namespace", "Namespace", 'label_values(cachefleet_operator_pool_condition{job=~"$job"}, namespace)'),
        Variable(
            "pool",
            "Pool",
            'label_values(cachefleet_operator_pool_condition{job=~"$job", namespace=~"$namespace"}, pool)',
        ),
        Variable("condition", "Condition", 'label_values(cachefleet_operator_pool_condition{job=~"$job"}, type)'),
    ),
    (
        Row(
            "Now",
            (
                figure(
                    "Leaders",
                    "Operators that hold the Lease: one.",
                    "short",
                    Query(summed(series("cachefleet_operator_leading", JOB))),
                ),
                figure(
                    "Pools waiting",
                    "Pools that wait to be reconciled.",
                    "short",
                    Query(highest(series("cachefleet_operator_queue_depth", JOB))),
                ),
                figure(
                    "Held up",
                    "1 while something keeps the operator that leads from reconciling; its /readyz says what.",
                    "short",
                    Query(highest(series("cachefleet_operator_waiting", JOB))),
                    highest=1,
                ),
                figure(
                    "Since the last change",
                    "Since a watch told of anything.",
                    "s",
                    Query(highest(series("cachefleet_operator_watch_age_seconds", JOB))),
                ),
                figure(
                    "First certificate to end",
                    "Time until the first certificate ends; a third of its life is left when it is renewed.",
                    "s",
                    Query(
                        difference(
                            lowest(series("cachefleet_operator_certificate_expiry_timestamp_seconds", JOB)), "time()"
                        )
                    ),
                ),
                figure(
                    "Version",
                    "Of the processes that run.",
                    "short",
                    Query(highest(series("cachefleet_operator_build_info", JOB), by="version"), "{{version}}"),
                    text_mode="name",
                ),
            ),
        ),
        Row(
            "Pools",
            (
                graph(
                    "Conditions of pools",
                    "1 true, 0 false, -1 unknown.",
                    "short",
                    Query(
                        highest(
                            series("cachefleet_operator_pool_condition", JOB, NAMESPACE, POOL, 'type=~"$condition"'),
                            by="namespace, pool, type",
                        ),
                        "{{namespace}}/{{pool}} {{type}}",
                    ),
                    highest=1,
                    lowest=-1,
                    width=24,
                ),
            ),
        ),
        Row(
            "Reconciliation",
            (
                graph(
                    "Reconciliations",
                    "Passes over a pool a second, by outcome.",
                    "ops",
                    rates_by("outcome", "cachefleet_operator_reconciles_total", JOB),
                ),
                graph(
                    "Time of a reconciliation",
                    "Of one pass over one pool.",
                    "s",
                    Query(quantile(0.5, "cachefleet_operator_reconcile_seconds", JOB), "p50"),
                    Query(quantile(0.99, "cachefleet_operator_reconcile_seconds", JOB), "p99"),
                ),
                graph(
                    "Queue",
                    "Pools that wait to be reconciled, at each replica.",
                    "short",
                    Query(series("cachefleet_operator_queue_depth", JOB), "{{pod}}"),
                ),
            ),
        ),
        Row(
            "What it asks",
            (
                graph(
                    "Requests to the API server",
                    "Requests a second by verb and kind of object.",
                    "reqps",
                    Query(
                        summed(rate("cachefleet_operator_api_request_seconds_count", JOB), by="verb, kind"),
                        "{{verb}} {{kind}}",
                    ),
                ),
                graph(
                    "Refused or failed there",
                    "Requests a second with another status than 2xx; code 0: no answer.",
                    "reqps",
                    Query(
                        summed(
                            rate("cachefleet_operator_api_request_seconds_count", JOB, 'code!~"2.."'),
                            by="verb, kind, code",
                        ),
                        "{{verb}} {{kind}} {{code}}",
                    ),
                ),
                graph(
                    "Time of these requests",
                    "The slowest in a hundred, by verb.",
                    "s",
                    Query(quantile(0.99, "cachefleet_operator_api_request_seconds", JOB, by="verb"), "p99 {{verb}}"),
                ),
                graph(
                    "Control plane asked in vain",
                    "Questions a second to the control plane that had no answer, by reason.",
                    "reqps",
                    rates_by("reason", "cachefleet_operator_facts_failures_total", JOB),
                ),
                graph(
                    "Who leads",
                    "1 for the replica that holds the Lease.",
                    "short",
                    Query(series("cachefleet_operator_leading", JOB), "{{pod}}"),
                    highest=1,
                ),
            ),
        ),
    ),
)
