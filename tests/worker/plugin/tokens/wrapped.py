"""What the cache asks of a tokenizer of transformers, without transformers; the engine tests use real ones."""

from __future__ import annotations

from typing import Any

from tokenizers import Tokenizer


class Wrapped:
    """A tokenizer of the tokenizers library in a class whose ways to encode are transformers' own."""

    split_special_tokens = False
    chat_template: str | None = None

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def get_added_vocab(self) -> dict[str, int]:
        return {token.content: number for number, token in self._tokenizer.get_added_tokens_decoder().items()}


class OwnWay(Wrapped):
    """Lower-cases, say, before it encodes."""

    def __call__(self, text: str, **_options: Any) -> dict[str, list[int]]:
        return {"input_ids": self._tokenizer.encode(text.lower()).ids}
