"""The reason of a decision, more specific where the prompt says more than its scores."""

from __future__ import annotations

from cachefleet_controlplane.routing.decision import Knowledge, Prompt, Reason


def specific_reason(reason: Reason, prompt: Prompt, *, predicted: int) -> Reason:
    """The most specific reason that applies.

    Load decided on a prompt shorter than a block since nothing of it can be cached. A longest prefix of which no token
    is ``predicted`` by the chosen worker's reports is one in flight; an estimate tells no reports from what was sent.
    """
    if prompt.knowledge is not Knowledge.EXACT:
        return reason
    if reason is Reason.LOAD_ONLY and 0 < prompt.tokens < prompt.block_size:
        return Reason.SHORT_PROMPT
    return Reason.PREFIX_IN_FLIGHT if reason is Reason.LONGEST_PREFIX and not predicted else reason
