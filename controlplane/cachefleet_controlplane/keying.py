"""What routing needs of a prompt's token ids: their number and the keys of their blocks, read out of JSON."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from msgspec import Raw

from cachefleet_controlplane.gateway.memo import KeyMemo
from cachefleet_core.blocks import BlockKeyer
from cachefleet_core.bodies import token_ids


@dataclass(frozen=True, slots=True)
class Keyed:
    """A prompt: its tokens, and the packed keys of its blocks; ``block_size`` is 0 where these are not known."""

    tokens: int = 0
    keys: bytes = b""
    block_size: int = 0


NOTHING: Final = Keyed()


@dataclass(frozen=True, slots=True)
class Keying:
    """How one request's prompt is keyed.

    ``keyer`` gives what computes keys now, None where nothing does. A prompt longer than ``max_tokens`` has no keys: no
    worker takes it, and the refusal is the engine's to give. With a ``memo`` what was computed before is not again.
    """

    keyer: Callable[[], BlockKeyer | None]
    max_tokens: int | None = None
    memo: KeyMemo | None = None

    def read(self, ids: Raw) -> Keyed:
        """Of a JSON array of token ids. ``bodies.BodyError`` where it is none."""
        body = b'{"ids":%b}' % ids
        keyer = self.keyer()
        if keyer is not None and self.memo is None:
            tokens, keys = keyer.packed_json(body, "ids")
            return Keyed(tokens, keys, keyer.block_size) if self._keyable(tokens) else Keyed(tokens)
        numbers = token_ids(body, "ids")
        if keyer is None or self.memo is None or not self._keyable(len(numbers)):
            return Keyed(len(numbers))
        return Keyed(len(numbers), self.memo.keys(keyer, numbers), keyer.block_size)

    def _keyable(self, tokens: int) -> bool:
        return tokens > 0 and (self.max_tokens is None or tokens <= self.max_tokens)
