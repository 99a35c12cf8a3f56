"""Blocks of a prompt: those it needs, those a hit can have, and what is cached of them on one candidate. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from cachefleet_controlplane.routing.decision import STALE_AFTER_SECONDS, CandidateView, Prompt
from cachefleet_controlplane.routing.hit_trust import counted

OUTPUT_TOKENS_COUNTED: Final = 256
"""Output tokens beyond this are not counted when asking whether a request fits."""


@dataclass(slots=True)
class Cached:
    """What of a prompt is cached on a candidate, in blocks, and how old the report is that says so."""

    matched: int
    loadable: int
    sent: int
    report_age: float | None

    @classmethod
    def of(cls, view: CandidateView) -> Cached:
        """As a candidate for this prompt has it."""
        return cls(view.matched_blocks, view.loadable_blocks, view.sent_blocks, view.report_age)

    @property
    def stale(self) -> bool:
        """As a candidate is."""
        return self.report_age is None or self.report_age > STALE_AFTER_SECONDS


def cached_tokens(prompt: Prompt, cached: Cached, trust: int, *, stale: bool) -> tuple[int, int, int]:
    """Blocks held on its device; tokens with what it loads; tokens there with what was just sent, even while stale."""
    matched, below = (0, 0) if stale else (cached.matched, cached.loadable)
    held = usable_blocks(counted(matched, trust), prompt) if matched else 0
    sent = usable_blocks(counted(cached.sent, trust), prompt) if cached.sent else 0
    loaded = usable_blocks(counted(matched + below, trust), prompt) if below else held
    return held, loaded * prompt.block_size, max(held, sent) * prompt.block_size


def usable_tokens(blocks: int, prompt: Prompt) -> int:
    """How many tokens of a prompt ``blocks`` cached blocks save: the engine recomputes the last one."""
    return usable_blocks(blocks, prompt) * prompt.block_size


def usable_blocks(blocks: int, prompt: Prompt) -> int:
    """How many of a prompt's first ``blocks`` blocks the engine uses where it holds them."""
    if prompt.tokens < 1 or prompt.block_size < 1:
        return 0
    return min(blocks, (prompt.tokens - 1) // prompt.block_size)


def needed_blocks(prompt: Prompt) -> int:
    """Blocks that a request's prompts and the start of their answers fill; 0 where the block size is not known.

    Choices of one prompt share its blocks. A request of several is held to ``most_blocks``, but counts no less than one
    of them alone.
    """
    if prompt.block_size < 1:
        return 0
    answer = min(prompt.max_tokens, OUTPUT_TOKENS_COUNTED)
    one = -(-(prompt.tokens + answer) // prompt.block_size)
    if prompt.prompts == prompt.choices == 1:
        return one  # as nearly all
    blocks = prompt.prompts * (one + (prompt.choices - 1) * -(-answer // prompt.block_size))
    return max(one, min(blocks, prompt.most_blocks)) if prompt.most_blocks else blocks


def wanted_blocks(prompt: Prompt) -> int:
    """Free blocks that there must be for a request: more than it needs where it has several sequences.

    As many again, a quarter of a worker at most, are left to requests of others that come while it is computed.
    """
    needed = needed_blocks(prompt)
    return needed if prompt.prompts == prompt.choices == 1 else needed + min(needed, prompt.most_blocks // 2)
