"""Block keys by native code: the same keys as ``BlockKeyer``, many times faster.

Importing this module needs ``cachefleet_native``: ask ``native.native_code`` for the class instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import cachefleet_native

from cachefleet_core.block_keys import MASK, NO_PARENT, BlockKey, BlockKeyer
from cachefleet_core.request_bodies import BodyError


class NativeBlockKeyer(BlockKeyer):
    """Computes the keys of token sequences in one namespace at one block size; errors are those of BlockKeyer."""

    def _prepare(self, secrets: tuple[int, int, int, int]) -> None:
        self.native = cachefleet_native.Keyer(secrets, self.block_size, self.lookahead)

    def keys(self, tokens: Sequence[int], parent: BlockKey = NO_PARENT, position: int = 0) -> list[BlockKey]:
        return cast("list[BlockKey]", self.native.keys(tokens, parent, position & MASK))

    def packed_keys(self, tokens: Sequence[int], parent: BlockKey = NO_PARENT, position: int = 0) -> bytes:
        return self.native.packed(tokens, parent, position & MASK)

    def packed_json(self, body: bytes, field: str) -> tuple[int, bytes]:
        try:
            return self.native.json(body, field)
        except ValueError as error:
            raise BodyError(str(error)) from error
