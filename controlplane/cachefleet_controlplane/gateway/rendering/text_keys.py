"""A prompt as its text tells of it: chunk keys, and its length estimated in tokens."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from cachefleet_controlplane.gateway.apis.request_info import RequestInfo
from cachefleet_controlplane.gateway.rendering.text_chunks import CHUNK_BYTES, MakeKeyer, chunk_keys, visible
from cachefleet_controlplane.gateway.rendering.token_estimates import TokenEstimates
from cachefleet_controlplane.routing.decision import NO_CHUNKS, Chunks
from cachefleet_core.blocks import BlockKeyer

MAX_TEXT_BYTES: Final = 1024 * 1024
"""What follows of a longer text has no keys."""
MAX_KEYERS: Final = 1024
"""Remembered, one for each model and salt: to make one costs more than the keys of a short prompt."""


@dataclass(frozen=True, slots=True)
class Text:
    """``size`` in bytes; ``chunks`` as long as they were estimated to be."""

    size: int = 0
    tokens: int = 0
    """Estimated."""
    chunks: Chunks = NO_CHUNKS

    def measured(self, tokens: int) -> Chunks:
        """The chunks of a text whose tokens are known."""
        return Chunks(self.chunks.keys, CHUNK_BYTES * tokens / self.size) if self.size and tokens else self.chunks


NO_TEXT: Final = Text()


class Texts:
    """``secret``, of 16 to 64 bytes that nobody else knows, seeds the keys; models are named as their fleet is."""

    def __init__(self, secret: bytes, *, keyer: type[BlockKeyer] | None = None) -> None:
        """``keyer``: see ``chunk_keys``."""
        self._secret = secret
        self._keyer: MakeKeyer | None = None if keyer is None else lru_cache(MAX_KEYERS)(keyer)
        self.estimates = TokenEstimates()

    def of(self, ask: RequestInfo, *, model: str, salt: str) -> Text:
        """Of a request's first prompt (see ``render_ask``); prompts under different salts share nothing."""
        if ask.bypass is not None:
            return NO_TEXT
        text = visible(ask.fields)
        keys = chunk_keys(text[:MAX_TEXT_BYTES], secret=self._secret, model=model, salt=salt, keyer=self._keyer)
        each = CHUNK_BYTES / self.estimates.bytes_per_token(model)
        return Text(len(text), self.estimates.tokens(model, len(text)), Chunks(keys, each))
