"""Token ids, as JSON, to what routing needs: their number and the keys of their blocks."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from msgspec import Raw, Struct

from cachefleet_controlplane.gateway.rendering.key_cache import KeyCache
from cachefleet_core.block_keys import BlockKeyer, pack_keys
from cachefleet_core.continuation import ids_array
from cachefleet_core.prompt_keys import PromptKeys
from cachefleet_core.request_bodies import token_ids


class Keyed(Struct, frozen=True):
    """A prompt's token count and the packed keys of its blocks; ``block_size`` is 0 where keys are not known."""

    tokens: int = 0
    keys: bytes = b""
    block_size: int = 0
    boundaries: tuple[int, ...] = ()
    """Safe boundaries that the worker proposes, in tokens; empty where it proposes none."""
    ids: array[int] | None = None
    """Only where they were asked for; kept no longer than their request."""

    def __repr__(self) -> str:
        """Without token ids, which no log may hold."""
        return f"Keyed(tokens={self.tokens}, block_size={self.block_size})"


NOTHING: Final = Keyed()


@dataclass(frozen=True, slots=True)
class Keying:
    """How one request's prompt is keyed.

    ``keyer`` returns what computes keys now, None where nothing does. A prompt longer than ``max_tokens`` has no keys:
    no worker takes it, and the engine is to refuse it. ``cache`` has keys computed before. ``keep_ids``: the request
    needs the token ids as well.
    """

    keyer: Callable[[], BlockKeyer | None]
    max_tokens: int | None = None
    cache: KeyCache | None = None
    keep_ids: bool = False

    def read(self, ids: Raw) -> Keyed:
        """Key a JSON array of token ids. ``bodies.BodyError`` for anything else."""
        body = b'{"ids":%b}' % ids
        keyer = self.keyer()
        if keyer is not None and self.cache is None and not self.keep_ids:
            tokens, keys = keyer.packed_json(body, "ids")
            return Keyed(tokens, keys, keyer.block_size) if self._keyable(tokens) else Keyed(tokens)
        numbers = token_ids(body, "ids")
        keyable = self._keyable(len(numbers))
        kept = ids_array(numbers) if self.keep_ids and keyable else None
        if keyer is None or not (self.cache or self.keep_ids) or not keyable:
            return Keyed(len(numbers), ids=kept)
        keys = self.cache.keys(keyer, numbers) if self.cache is not None else keyer.packed_keys(numbers)
        return Keyed(len(numbers), keys, keyer.block_size, ids=kept)

    def take(self, prompt: PromptKeys) -> Keyed:
        """Take over keys that a worker computed itself."""
        if not self._keyable(prompt.tokens):
            return Keyed(prompt.tokens)
        kept = ids_array(prompt.ids) if self.keep_ids and prompt.ids else None
        return Keyed(prompt.tokens, pack_keys(prompt.keys), prompt.block_size, prompt.boundaries, kept)

    def _keyable(self, tokens: int) -> bool:
        return tokens > 0 and (self.max_tokens is None or tokens <= self.max_tokens)
