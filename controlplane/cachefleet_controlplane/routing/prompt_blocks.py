"""Blocks of a prompt: those it needs, and those a hit can have. Pure."""

from __future__ import annotations

from typing import Final

from cachefleet_controlplane.routing.decision import Prompt

KEY_BYTES: Final = 8
OUTPUT_TOKENS_COUNTED: Final = 256
"""Output tokens beyond this are not counted when asking whether a request fits."""


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


def expected_tokens(prompt: Prompt, uncached: int) -> int:
    """Tokens that a request computes as far as is known before: ``uncached`` ones of each prompt, and its answers."""
    answers = prompt.prompts * prompt.choices
    return max(1, prompt.prompts * uncached + answers * min(prompt.max_tokens, OUTPUT_TOKENS_COUNTED))
