"""Workers: their engines, what is routed to them, and their agents."""

from __future__ import annotations

from typing import Final

from charts.dashboards.dashboard import Dashboard, Query, Row, Variable, graph, rates_by
from charts.dashboards.promql import (
    AGENTS,
    JOB,
    POOL,
    WORKER,
    highest,
    increase,
    lowest,
    rate,
    ratio,
    series,
    share_of_rates,
    summed,
)

RANK: Final = (JOB, POOL, WORKER)


def each_rank(expression: str) -> str:
    """One line for each worker, or for each of its data-parallel ranks."""
    return highest(expression, by="worker, rank")


WORKERS: Final = Dashboard(
    "workers",
    "Workers",
    (
        Variable("job", "Job", "label_values(cachefleet_store_up, job)"),
        Variable("agents", "Job of agents", "label_values(cachefleet_agent_connections, job)"),
        Variable("pool", "Pool", 'label_values(cachefleet_pool_workers{job=~"$job"}, pool)'),
        Variable("worker", "Worker", 'label_values(cachefleet_worker_ready{job=~"$job", pool=~"$pool"}, worker)'),
    ),
    (
        Row(
            "Engines",
            (
                graph(
                    "Prompt tokens from cache",
                    "Share of the prompt tokens looked up that the engine itself found in its cache.",
                    "percentunit",
                    Query(
                        share_of_rates(
                            each_rank(rate("cachefleet_worker_prefix_hit_tokens_total", *RANK)),
                            each_rank(rate("cachefleet_worker_prefix_queried_tokens_total", *RANK)),
                        ),
                        "{{worker}} {{rank}}",
                    ),
                ),
                graph(
                    "Running",
                    "Requests that the engine runs.",
                    "short",
                    Query(each_rank(series("cachefleet_worker_running_requests", *RANK)), "{{worker}} {{rank}}"),
                ),
                graph(
                    "Held back by the engine",
                    "Requests that wait in the engine.",
                    "short",
                    Query(each_rank(series("cachefleet_worker_waiting_requests", *RANK)), "{{worker}} {{rank}}"),
                ),
                graph(
                    "Free blocks",
                    "Share of the KV cache that a request may take, idle cached blocks among it.",
                    "percentunit",
                    Query(
                        ratio(
                            each_rank(series("cachefleet_worker_free_blocks", *RANK)),
                            each_rank(series("cachefleet_worker_blocks", *RANK)),
                        ),
                        "{{worker}} {{rank}}",
                    ),
                ),
                graph(
                    "Idle cached blocks",
                    "Share of the KV cache that holds blocks of no running request: what the pool's budget bounds.",
                    "percentunit",
                    Query(
                        ratio(
                            each_rank(series("cachefleet_worker_idle_blocks", *RANK)),
                            each_rank(series("cachefleet_worker_blocks", *RANK)),
                        ),
                        "{{worker}} {{rank}}",
                    ),
                ),
                graph(
                    "Preemptions",
                    "Requests a second that the engine preempted, its KV cache being too small for them.",
                    "reqps",
                    Query(each_rank(rate("cachefleet_worker_preemptions_total", *RANK)), "{{worker}} {{rank}}"),
                ),
            ),
        ),
        Row(
            "Routing",
            (
                graph(
                    "Requests under way",
                    "Requests sent there and not answered, over all replicas.",
                    "short",
                    Query(
                        summed(series("cachefleet_worker_inflight_requests", *RANK), by="worker, rank"),
                        "{{worker}} {{rank}}",
                    ),
                ),
                graph(
                    "Prompt tokens not yet computed",
                    "Of requests sent there: what waits to be computed.",
                    "short",
                    Query(
                        summed(series("cachefleet_worker_inflight_tokens", *RANK), by="worker, rank"),
                        "{{worker}} {{rank}}",
                    ),
                ),
                graph(
                    "Worth of the cache",
                    "What is held there and asked for; scale-in removes the worker with the least.",
                    "short",
                    Query(each_rank(series("cachefleet_worker_cache_value", *RANK)), "{{worker}} {{rank}}"),
                ),
                graph(
                    "Trust",
                    (
                        "Share of what a worker claims to hold that is counted on: below 1 where its engine served "
                        "less than its agent said."
                    ),
                    "percentunit",
                    Query(lowest(series("cachefleet_worker_trust", *RANK), by="worker, rank"), "{{worker}} {{rank}}"),
                ),
                graph(
                    "Blocks in the index",
                    "Blocks that the index has for the worker.",
                    "short",
                    Query(each_rank(series("cachefleet_worker_held_blocks", *RANK)), "{{worker}} {{rank}}"),
                ),
                graph(
                    "Age of the last report",
                    "Older than 5 s its blocks are not counted on.",
                    "s",
                    Query(
                        lowest(series("cachefleet_worker_report_age_seconds", *RANK), by="worker, rank"),
                        "{{worker}} {{rank}}",
                    ),
                ),
                graph(
                    "State",
                    (
                        "1 where it is so. A key that is refused, blocks that are not indexed and a blind index "
                        "have runbooks."
                    ),
                    "short",
                    Query(each_rank(series("cachefleet_worker_ready", *RANK)), "{{worker}} {{rank}} ready"),
                    Query(
                        lowest(series("cachefleet_worker_stale", *RANK), by="worker, rank"), "{{worker}} {{rank}} stale"
                    ),
                    Query(each_rank(series("cachefleet_worker_excluded", *RANK)), "{{worker}} {{rank}} left out"),
                    Query(each_rank(series("cachefleet_worker_key_refused", *RANK)), "{{worker}} {{rank}} key refused"),
                    Query(each_rank(series("cachefleet_worker_index_blind", *RANK)), "{{worker}} {{rank}} index blind"),
                    highest=1,
                    width=24,
                ),
            ),
        ),
        Row(
            "Agents",
            (
                graph(
                    "Control planes reached",
                    "Replicas that each agent is connected to.",
                    "short",
                    Query(series("cachefleet_agent_connections", AGENTS), "{{pod}}"),
                ),
                graph(
                    "Evictions",
                    "Removals from the cache a second that each engine told of, mostly of one block each.",
                    "ops",
                    rates_by("pod", "cachefleet_agent_events_total", AGENTS, 'outcome="removed"'),
                ),
                graph(
                    "Caches begun anew",
                    "Epochs that agents began, by cause: restarts of the engine, cleared caches, lost events.",
                    "short",
                    Query(
                        summed(increase("cachefleet_agent_epochs_total", AGENTS), by="pod, cause"), "{{pod}} {{cause}}"
                    ),
                ),
                graph(
                    "Engine events",
                    "KV cache events a second by what became of them; blocks that are not reported, by reason.",
                    "ops",
                    rates_by("outcome", "cachefleet_agent_events_total", AGENTS),
                ),
                graph(
                    "Turns of the event stream",
                    "Gaps, replays, losses and the like, a second.",
                    "ops",
                    rates_by("what", "cachefleet_agent_stream_total", AGENTS),
                ),
                graph(
                    "Policies given to engines",
                    "Changes of threshold, budget and the like, by outcome.",
                    "short",
                    Query(summed(increase("cachefleet_agent_policies_total", AGENTS), by="outcome"), "{{outcome}}"),
                ),
                graph(
                    "Prefixes warmed",
                    "Warm and hot prefixes that were cached before a worker takes traffic, by outcome.",
                    "short",
                    Query(
                        summed(increase("cachefleet_agent_warmed_prefixes_total", AGENTS), by="outcome"), "{{outcome}}"
                    ),
                ),
                graph(
                    "Features that are off",
                    "Features of the plugin that are not in force on a worker; its capability document says why.",
                    "short",
                    Query(
                        highest(series("cachefleet_agent_capability", AGENTS, 'mode="off"'), by="pod, feature"),
                        "{{pod}} {{feature}}",
                    ),
                    highest=1,
                ),
                graph(
                    "Taken out of traffic",
                    "Engines that an agent withdrew, by what it found.",
                    "short",
                    Query(
                        summed(increase("cachefleet_agent_withdrawals_total", AGENTS), by="pod, finding"),
                        "{{pod}} {{finding}}",
                    ),
                ),
            ),
        ),
    ),
)
