"""What a part encoder makes of its tokenizer: a copy of its own, and what stands around every text."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from cachefleet_worker.plugin.tokens.encoding_plan import Plan
from cachefleet_worker.plugin.tokens.segments import PartEncoder, private_copy
from cachefleet_worker.plugin.tokens.token_cache import TokenCache
from tests.worker.plugin.tokens.styles import trained

TEXT = "Some words of a text that is longer than five tokens.<|im_end|>"


class Moody:
    """Ends every text with a token that depends on it."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tokenizer, name)

    def encode(self, text: str, *, add_special_tokens: bool) -> Any:
        ids = self._tokenizer.encode(text, add_special_tokens=False).ids
        return SimpleNamespace(ids=[*ids, len(text)] if add_special_tokens else ids)


def planned(tokenizer: Any) -> tuple[Any, Plan]:
    copy, plan = private_copy(tokenizer)
    assert isinstance(plan, Plan)
    return copy, plan


def test_truncation_and_padding_of_the_original_are_not_copied() -> None:
    tokenizer = trained("qwen")
    whole = tokenizer.encode(TEXT).ids
    tokenizer.enable_truncation(5)
    tokenizer.enable_padding(length=100)
    copy, plan = planned(tokenizer)
    assert copy.encode(TEXT).ids == whole
    assert PartEncoder(copy, plan, TokenCache(1 << 20)).encode(TEXT, "") == whole
    assert tokenizer.truncation is not None


def test_a_frame_that_depends_on_the_text_is_left_to_the_plain_encoder() -> None:
    copy, plan = planned(trained("qwen"))
    encoder = PartEncoder(Moody(copy), plan, TokenCache(1 << 20))
    assert encoder.encode(TEXT, "", add_special_tokens=True) is None
    assert encoder.encode(TEXT, "") == copy.encode(TEXT).ids
