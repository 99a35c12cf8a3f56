"""Token ids, as JSON, to what routing needs: their number and the keys of their blocks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from msgspec import Raw

from cachefleet_controlplane.gateway.request.rendered_prompt import Keyed
from cachefleet_core.block_keys import BlockKeyer
from cachefleet_core.continuation import ids_array, unpacked
from cachefleet_core.prompt_keys import PromptKeys
from cachefleet_core.request_bodies import token_ids


@dataclass(frozen=True, slots=True)
class Keying:
    """How one request's prompt is keyed.

    ``keyer`` returns what computes keys now, None where nothing does. A prompt longer than ``max_tokens`` has no keys:
    no worker takes it, and the engine is to refuse it. ``keep_ids``: the request needs the token ids as well.
    """

    keyer: Callable[[], BlockKeyer | None]
    max_tokens: int | None = None
    keep_ids: bool = False

    def read(self, ids: Raw) -> Keyed:
        """Key a JSON array of token ids. ``bodies.BodyError`` for anything else."""
        body = b'{"ids":%b}' % ids
        keyer = self.keyer()
        if keyer is not None and not self.keep_ids:
            tokens, keys = keyer.packed_json(body, "ids")
            return Keyed(tokens, keys, keyer.block_size) if self._keyable(tokens) else Keyed(tokens)
        numbers = token_ids(body, "ids")
        keyable = self._keyable(len(numbers))
        kept = ids_array(numbers) if self.keep_ids and keyable else None
        if keyer is None or not keyable:
            return Keyed(len(numbers), ids=kept)
        return Keyed(len(numbers), keyer.packed_keys(numbers), keyer.block_size, ids=kept)

    def take(self, prompt: PromptKeys) -> Keyed:
        """Take over keys that a worker computed itself."""
        if not self._keyable(prompt.tokens):
            return Keyed(prompt.tokens)
        kept = unpacked(prompt.ids) if self.keep_ids and prompt.ids else None
        return Keyed(prompt.tokens, prompt.keys, prompt.block_size, prompt.boundaries, kept)

    def _keyable(self, tokens: int) -> bool:
        return tokens > 0 and (self.max_tokens is None or tokens <= self.max_tokens)
