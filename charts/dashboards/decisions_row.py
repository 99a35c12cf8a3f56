"""Row of the fleet's dashboard about decisions: what they rest on, and what was lost against them."""

from __future__ import annotations

from typing import Final

from charts.dashboards.dashboard import Query, Row, graph, rates_by
from charts.dashboards.promql import JOB, POOL, highest, increase, quantile, rate, series, share_of_rates, summed


def _of_prompts(tokens: str) -> str:
    """The rate of these tokens as a share of all prompt tokens."""
    return share_of_rates(summed(rate(tokens, JOB)), summed(rate("cachefleet_prompt_tokens_total", JOB)))


DECISIONS: Final = Row(
    "Decisions",
    (
        graph(
            "By knowledge and verdict",
            ("Decisions a second. exact: the prompt's blocks were known; approximate: its text; load: nothing of it."),
            "reqps",
            Query(
                summed(rate("cachefleet_decisions_total", JOB), by="knowledge, verdict"),
                "{{knowledge}} {{verdict}}",
            ),
        ),
        graph(
            "Less cached than predicted",
            "Answers a second of which the worker served less from cache than the index promised, by cause.",
            "reqps",
            rates_by("cause", "cachefleet_prediction_shortfalls_total", JOB),
        ),
        graph(
            "How far predictions are off",
            "Prompt tokens that were served from cache less than predicted, and beyond it, of all prompt tokens.",
            "percentunit",
            Query(_of_prompts("cachefleet_prediction_shortfall_tokens_total"), "less"),
            Query(_of_prompts("cachefleet_prediction_surplus_tokens_total"), "beyond"),
        ),
        graph(
            "Tried elsewhere",
            (
                "Requests a second that were tried on another worker, by reason; gate: the worker held "
                "less than the threshold asks for."
            ),
            "reqps",
            rates_by("reason", "cachefleet_attempt_retries_total", JOB),
            Query(summed(rate("cachefleet_gate_refusals_total", JOB)), "gate"),
        ),
        graph(
            "Prefill on other workers",
            "Prompts a second that Prefill workers computed for others, by outcome.",
            "reqps",
            rates_by("outcome", "cachefleet_prefill_attempts_total", JOB),
        ),
        graph(
            "Rendering",
            "Time to learn a prompt's length and block keys, by the rung of the ladder that gave them.",
            "s",
            Query(quantile(0.95, "cachefleet_render_seconds", JOB, by="rung"), "p95 {{rung}}"),
        ),
        graph(
            "No block keys",
            (
                "Prompts a second of which no keys were learnt, by reason: failures, and those for which "
                "nobody is asked."
            ),
            "reqps",
            rates_by("reason", "cachefleet_render_failures_total", JOB),
            rates_by("reason", "cachefleet_render_bypasses_total", JOB, prefix="not asked: "),
        ),
        graph(
            "Time the gateway adds",
            "The gateway's own share of a request, without rendering and waiting for room.",
            "s",
            Query(quantile(0.5, "cachefleet_gateway_added_seconds", JOB), "p50"),
            Query(quantile(0.99, "cachefleet_gateway_added_seconds", JOB), "p99"),
        ),
        graph(
            "Hot prefixes",
            "Prefixes that several requests shared lately, and those that new workers were told of.",
            "short",
            Query(highest(series("cachefleet_hot_prefixes", JOB)), "shared"),
            Query(summed(increase("cachefleet_hot_warmed_prefixes_total", JOB)), "told to new workers"),
        ),
        graph(
            "Lost hits",
            (
                "Prompt tokens a second that were computed instead of served from cache, by cause; all "
                "causes together are what was computed."
            ),
            "suffix: tokens/s",
            rates_by("cause", "cachefleet_lost_tokens_total", JOB, POOL),
        ),
        graph(
            "Causes in prompts",
            (
                "First-seen prompt tokens a second, by what changed in their prompts since the nearest earlier "
                "one; all causes together are first_seen of the lost hits."
            ),
            "suffix: tokens/s",
            rates_by("cause", "cachefleet_first_seen_tokens_total", JOB, POOL),
        ),
    ),
)
