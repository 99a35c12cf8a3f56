"""Keys and estimated length in tokens of a prompt's text, for prompts whose token ids are not known."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial
from typing import Final

from cachefleet_native import Keyer
from msgspec import Struct

from cachefleet_controlplane.gateway.apis.request_info import RequestInfo
from cachefleet_controlplane.routing.decision import NO_CHUNKS, Chunks
from cachefleet_core.block_keys import Namespace
from cachefleet_core.native_block_keys import NativeBlockKeyer
from cachefleet_runtime.lru import LruMap

START: Final = 4.0
"""Bytes per token assumed until a prompt of the model was seen."""
SMOOTHING: Final = 0.1
LEAST: Final = 0.25
MOST: Final = 64.0
"""LEAST and MOST bound how far one unusual text moves the mean, in bytes per token."""
MAX_MODELS: Final = 1024


class TokenEstimates:
    """Mean bytes per token of the MAX_MODELS models seen last, smoothed."""

    def __init__(self, limit: int = MAX_MODELS) -> None:
        self._means: LruMap[str, float] = LruMap(limit)

    def bytes_per_token(self, model: str) -> float:
        """Return the mean; START for a model that was not seen."""
        return self._means.get(model, START)

    def tokens(self, model: str, size: int) -> int:
        """Estimate the tokens of a text of ``size`` bytes; at least one where there is a text."""
        return max(1, round(size / self.bytes_per_token(model))) if size else 0

    def learn(self, model: str, *, size: int, tokens: int) -> None:
        """Update the mean: a text of ``size`` bytes had so many tokens."""
        if size < 1 or tokens < 1:
            return
        ratio = min(MOST, max(LEAST, size / tokens))
        mean = self.bytes_per_token(model)
        self._means.put(model, mean + SMOOTHING * (ratio - mean))


CHUNK_BYTES: Final = 512
KEY_BYTES: Final = 8


def text_keyer(secret: bytes, model: str, salt: str) -> Keyer:
    """Return the keyer of text, which takes four bytes for a token. ``secret`` has from 16 to 64 bytes."""
    return NativeBlockKeyer(secret, Namespace(model, salt), CHUNK_BYTES // 4).native


MAX_TEXT_BYTES: Final = 1024 * 1024
"""The rest of a longer text has no keys."""
MAX_KEYERS: Final = 1024
"""Keyers cached, one for each model and salt: to make one costs more than the keys of a short prompt."""


class Text(Struct, frozen=True):
    """A prompt's text: its size in bytes, and chunk keys with the estimated tokens of each chunk."""

    size: int = 0
    tokens: int = 0
    """Estimated."""
    chunks: Chunks = NO_CHUNKS

    def measured(self, tokens: int) -> Chunks:
        """Return the chunks with their true length, for a text of so many tokens."""
        return Chunks(self.chunks.keys, CHUNK_BYTES * tokens / self.size) if self.size and tokens else self.chunks


NO_TEXT: Final = Text()


class Texts:
    """Keys prompts by text under ``secret``, 16 to 64 bytes known to no client; models are "namespace/name"."""

    def __init__(self, secret: bytes) -> None:
        self._keyer: Callable[[str, str], Keyer] = lru_cache(MAX_KEYERS)(partial(text_keyer, secret))
        self.estimates = TokenEstimates()

    def of(self, info: RequestInfo, *, model: str, salt: str) -> Text:
        """Key a request's first prompt (see ``render_ask``); prompts under different salts share no key."""
        if info.bypass is not None:
            return NO_TEXT
        size, keys = info.ask.text_keys(self._keyer(model, salt), MAX_TEXT_BYTES)
        each = CHUNK_BYTES / self.estimates.bytes_per_token(model)
        return Text(size, self.estimates.tokens(model, size), Chunks(keys, each))
