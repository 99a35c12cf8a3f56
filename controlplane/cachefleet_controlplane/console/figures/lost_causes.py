"""What each cause of lost tokens is called, and what to do about it."""

from __future__ import annotations

from typing import Final, NamedTuple


class Advice(NamedTuple):
    """A cause's name for people, and what to do."""

    name: str
    action: str


_RENDERER: Final = "See the pool's render profile: cachefleet doctor says where worker and gateway render differently."

CAUSES: Final = {
    "first_seen": Advice(
        "first seen",
        "Nothing is wrong. Where these prompts share a beginning that is asked for often, declare it as a warm prefix.",
    ),
    "evicted": Advice(
        "evicted",
        "The idle cache is too small for what comes back: raise prefixCache.budgetMiB, add a worker, or have prompts "
        "of one conversation keep their beginning (keepShare).",
    ),
    "held_elsewhere": Advice(
        "held elsewhere",
        "The worker that holds it was busier than computing it again would take: add workers, or let requests wait "
        "longer. The request's candidates show both costs.",
    ),
    "stale": Advice("stale report", "The holder's reports are late: look at its agent, its network, and its CPU."),
    "restarted": Advice("restarted", "The holder started anew with an empty cache: its log says why it ended."),
    "salted": Advice("salt changed", "The tenant's salt version was raised: its cache begins anew, once."),
    "window": Advice("window gone", "The last blocks of a sliding window or a state were evicted: raise the budget."),
    "moved": Advice("another worker", "The chosen worker did not answer, and another one did: see the request's legs."),
    "rendered_differently": Advice("rendered differently", _RENDERER),
    "not_loaded": Advice(
        "not loaded", "What is in the host's memory or on a disk was not loaded: see the log of the engine's connector."
    ),
    "in_flight": Advice(
        "in flight",
        "A request sent there before was to leave it, and failed, was overtaken or evicted: nothing is wrong.",
    ),
    "unreported": Advice(
        "not reported yet",
        "The answer came before the worker told what it had evicted: where it lasts, raise prefixCache.budgetMiB.",
    ),
    "not_rendered": Advice(
        "not rendered", "The prompt's blocks were not known: a renderer failed or was too slow (see Alerts)."
    ),
    "not_read": Advice(
        "cache not read", "The request asks for what only a full computation gives, such as prompt logprobs."
    ),
    "last_block": Advice("last block", "Nothing to do: what is behind the last whole block is always computed."),
    "not_told": Advice("not told", "The engine did not say what it served: enable prompt token details in its usage."),
    "unknown": Advice("unknown", "Nothing that is known explains it. Where it lasts, report a request's page."),
}


_IN_PROMPT: Final = {
    "time": "a time or date",
    "id": "an id or counter",
    "tools": "other tools",
    "new": "new text",
    "parameters": "other parameters",
    "salt": "another salt",
    "system_prompt": "another system prompt",
    "history_dropped": "dropped history",
    "history_edited": "edited history",
    "reasoning_dropped": "dropped reasoning",
}


def prompt_cause_name(cause: str) -> str:
    """What to call a cause in the prompt."""
    return _IN_PROMPT.get(cause, cause.replace("_", " "))


def advice(cause: str) -> Advice:
    """What to call a cause and do about it, for causes of later versions, too."""
    return CAUSES.get(cause, Advice(cause.replace("_", " "), ""))
