"""Checks of a transformers tokenizer: whether it encodes as the tokenizers library does, and its message marks."""

from __future__ import annotations

import random
from typing import Any, Final

from cachefleet_worker.plugin.tokens.boundaries import Marks, detect
from cachefleet_worker.plugin.tokens.encoding_plan import PlainOnly, Reason
from cachefleet_worker.plugin.tokens.exactness_check import SEED, check
from cachefleet_worker.plugin.tokens.segments import PartEncoder, private_copy
from cachefleet_worker.plugin.tokens.token_cache import TokenCache

_WAYS: Final = ("__call__", "encode", "_encode_plus", "_batch_encode_plus", "encode_plus", "batch_encode_plus")
"""Methods by which a model's own class could encode otherwise than the tokenizers library."""
_PLAIN_MODULES: Final = ("transformers.tokenization_utils", "vllm.tokenizers.hf")
"""Modules that may define those methods."""


def prepared(tokenizer: Any, cache: TokenCache, *, owner: int) -> PartEncoder | PlainOnly:
    """A proven encoder for a transformers tokenizer. Takes a second or two for a large vocabulary."""
    refusal = _unlike_others(tokenizer)
    if refusal is not None:
        return refusal
    copy, plan = private_copy(tokenizer._tokenizer)  # noqa: SLF001 - transformers has no public name for it in all versions
    if isinstance(plan, PlainOnly):
        return plan
    return check(copy, plan, rng=random.Random(SEED)) or PartEncoder(copy, plan, cache, owner=owner)  # noqa: S311


def marks_of(tokenizer: Any) -> Marks | None:
    """The tokens that mark messages in a tokenizer's ids; None where unknown."""
    added = getattr(tokenizer, "get_added_vocab", None)
    template = getattr(tokenizer, "chat_template", None)
    return detect(added(), template if isinstance(template, str) else "") if added else None


def _unlike_others(tokenizer: Any) -> PlainOnly | None:
    from tokenizers import Tokenizer  # noqa: PLC0415 - vLLM brings it; nothing else here needs it

    if type(getattr(tokenizer, "_tokenizer", None)) is not Tokenizer:
        return PlainOnly(Reason.NOT_FAST)
    if getattr(tokenizer, "split_special_tokens", False) or tokenizer._tokenizer.encode_special_tokens:  # noqa: SLF001
        return PlainOnly(Reason.SPLITS_SPECIALS)
    for name in _WAYS:
        owner = next((cls for cls in type(tokenizer).__mro__ if name in vars(cls)), None)
        if owner is not None and not owner.__module__.startswith(_PLAIN_MODULES):
            return PlainOnly(Reason.OVERRIDDEN, f"{owner.__name__}.{name}")
    return None
