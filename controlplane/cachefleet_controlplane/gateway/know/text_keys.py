"""Keys and estimated length in tokens of a prompt's text, for prompts whose token ids are not known."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Callable
from functools import lru_cache
from typing import Final

from msgspec import Struct

from cachefleet_controlplane.gateway.apis.request_info import RequestInfo
from cachefleet_controlplane.routing.decision import NO_CHUNKS, Chunks
from cachefleet_controlplane.wire.json_members import Fields
from cachefleet_core.block_keys import BlockKeyer, Namespace
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


MakeKeyer = Callable[[bytes, Namespace, int], BlockKeyer]
"""BlockKeyer's constructor: of a secret key, a namespace and the tokens of a block."""

CHUNK_BYTES: Final = 512
KEY_BYTES: Final = 8
_ORDER: Final = ("instructions", "system", "tools", "messages", "input", "prompt")
"""Members that make a prompt; those that stay the same from turn to turn come first."""
_ENDS: Final = b"]"
"""Closes a list that the next turn makes longer."""


def visible(fields: Fields) -> bytes:
    """Return what a model sees of a body, ordered so that what grows is at its end."""
    parts = [bytes(fields[name]) for name in _ORDER if name in fields and bytes(fields[name]) != b"null"]
    return b"\n".join(parts).removesuffix(_ENDS)


def chunk_keys(text: bytes, *, secret: bytes, model: str, salt: str, keyer: MakeKeyer | None = None) -> bytes:
    """Return eight bytes for each full chunk, as the index takes keys. ``secret`` has at most 64 bytes.

    ``keyer`` computes them as block keys, with four bytes of text in place of each token: in native code that takes a
    tenth of the time.
    """
    if keyer is not None:
        words = array("I", text[: len(text) // CHUNK_BYTES * CHUNK_BYTES])
        return keyer(secret, Namespace(model, salt), CHUNK_BYTES // words.itemsize).packed_keys(words)
    hashed = hashlib.blake2b(digest_size=KEY_BYTES, key=secret)
    for name in (model, salt):
        hashed.update(len(name).to_bytes(4, "little") + name.encode())
    out = bytearray()
    for start in range(0, len(text) - CHUNK_BYTES + 1, CHUNK_BYTES):
        hashed.update(text[start : start + CHUNK_BYTES])
        out += hashed.digest()
    return bytes(out)


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

    def __init__(self, secret: bytes, *, keyer: type[BlockKeyer] | None = None) -> None:
        """``keyer``: see ``chunk_keys``."""
        self._secret = secret
        self._keyer: MakeKeyer | None = None if keyer is None else lru_cache(MAX_KEYERS)(keyer)
        self.estimates = TokenEstimates()

    def of(self, info: RequestInfo, *, model: str, salt: str) -> Text:
        """Key a request's first prompt (see ``render_ask``); prompts under different salts share no key."""
        if info.bypass is not None:
            return NO_TEXT
        text = visible(info.fields)
        keys = chunk_keys(text[:MAX_TEXT_BYTES], secret=self._secret, model=model, salt=salt, keyer=self._keyer)
        each = CHUNK_BYTES / self.estimates.bytes_per_token(model)
        return Text(len(text), self.estimates.tokens(model, len(text)), Chunks(keys, each))
