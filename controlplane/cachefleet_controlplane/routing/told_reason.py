"""The reason of a decision as it is told."""

from __future__ import annotations

from cachefleet_controlplane.routing.decision import Knowledge, Prompt, Reason


def told_reason(reason: Reason, prompt: Prompt) -> Reason:
    """The reason as it is told: load decided on a prompt shorter than a block since nothing of it can be cached."""
    short = prompt.knowledge is Knowledge.EXACT and 0 < prompt.tokens < prompt.block_size
    return Reason.SHORT_PROMPT if short and reason is Reason.LOAD_ONLY else reason
