"""Shapes of the latest prompts, and the causes of what an ended request's prompt had that no worker held.

A shape has keyed digests of a prompt's parts and words, under a secret that this process makes for itself: no text, no
token id and no salt. All are kept in native code, within a bound of bytes, and end with the process.
"""

from __future__ import annotations

import secrets
from typing import Final

from cachefleet_native import PromptMemory, PromptShape

from cachefleet_controlplane.prompt_causes.prompt_cause import (
    LEAST_TOKENS,
    Difference,
    Examined,
    PartKind,
    PromptLoss,
    Relation,
    not_examined,
    prompt_losses,
)

DEFAULT_BYTES: Final = 32 * 1024 * 1024
"""Memory of all shapes: some 10,000 prompts of 4,096 tokens in blocks of 16."""
_Facts = tuple[tuple[int, int, int, bool, bool, bool], tuple[int, int, int, int], tuple[int, int, int, int]]
"""Of a relation, as native code tells it."""
_DIFFERENCES: Final = tuple(Difference)
_PARTS: Final = tuple(PartKind)


class PromptShapes:
    """Shapes of prompts in at most ``max_bytes``; 0 keeps none."""

    def __init__(self, max_bytes: int = DEFAULT_BYTES) -> None:
        self.on = max_bytes > 0
        self.read = PromptMemory(secrets.randbits(64), max_bytes, LEAST_TOKENS)
        """What reads shapes, and keeps them."""

    def __len__(self) -> int:
        return len(self.read)

    @property
    def size(self) -> int:
        """Memory of what is kept, about."""
        return self.read.bytes

    def keep(self, line: str, shape: PromptShape, keys: bytes, tokens: int) -> None:
        """Remember a prompt of so many tokens."""
        self.read.keep(line, shape, keys, tokens)

    def ended(
        self, line: str, shape: PromptShape | None, keys: bytes, prompt: Examined
    ) -> tuple[tuple[PromptLoss, ...], Relation | None]:
        """The causes of a prompt's first-seen tokens, and the relation to its nearest earlier one; keeps its shape.

        A ``line`` is a tenant's prompts of one model in one pool. No relation is told of a prompt that only goes on.
        """
        if shape is None:
            return not_examined(prompt.first_seen), None
        sizes = (prompt.prompt_tokens, prompt.first_seen, prompt.servable, prompt.block_size)
        found = self.read.ended(line, shape, keys, sizes)
        if found is None:
            return prompt_losses(None, prompt), None
        relation = _relation(found)
        return prompt_losses(relation, prompt), relation

    def nearest(self, line: str, shape: PromptShape, keys: bytes) -> Relation | None:
        """A prompt's relation to its nearest earlier one on its line; None where none has anything in common."""
        found = self.read.nearest(line, shape, keys)
        return None if found is None else _relation(found)


def _relation(found: _Facts) -> Relation:
    (blocks, tokens, text, salt, parameters, reasoned), (difference, part, role, index), behind = found
    before, after, same, reach = behind
    changed, where = _DIFFERENCES[difference], _PARTS[part]
    return Relation(
        blocks, tokens, text, before, after, same, salt, parameters, reasoned, changed, where, role, index, reach
    )
