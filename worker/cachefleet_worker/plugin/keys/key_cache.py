"""Block keys of token sequences; each shared beginning is hashed once: pure.

A sequence is split into chunks of whole blocks. The keys of a chunk follow from the key before it, which commits to all
tokens before, from its own tokens and those that its last key looks ahead to; so these, with the namespace, are its
cache key. Native code hashes a
sequence faster than its chunks can be looked up, so its keys are not cached; nor are those of prompts with media.
"""

from __future__ import annotations

import threading
from array import array
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import Final

from cachefleet_core.block_identity.media import MediaKeyer, Placed, media_of_blocks
from cachefleet_core.block_keys import BlockKey, BlockKeyer, Namespace, pack_keys
from cachefleet_core.native import PYTHON, Code

CHUNK_TOKENS: Final = 512
"""Tokens per chunk: a follow-up turn hashes its own tokens and fewer than so many shared ones."""
NAMESPACES: Final = 1024
_ENTRY_BYTES: Final = 320
_KEY_BYTES: Final = 8


class TokenIdError(ValueError):
    """Numbers that are no token ids."""


Name = tuple[int, bytes, bytes]
"""A chunk's cache key: its keyer's serial number, the packed key before it (none: b""), the tokens it covers."""


class KeyCache:
    """One per process; thread-safe. ``max_bytes`` bounds the cached keys."""

    def __init__(self, index_key: bytes, *, max_bytes: int, code: Code = PYTHON) -> None:
        self._index_key = index_key
        self._make = code.keyer
        self._remembers = code.name == "python"
        self._max_bytes = max_bytes
        self._bytes = 0
        self._chunks: OrderedDict[Name, bytes] = OrderedDict()
        self._keyers: OrderedDict[tuple[Namespace, int, int], tuple[int, BlockKeyer]] = OrderedDict()
        self._serial = 0
        self._lock = threading.Lock()
        self.hits = 0
        self.misses = 0

    def keys(
        self,
        namespace: Namespace,
        block_size: int,
        ids: Sequence[int],
        media: Sequence[Placed] = (),
        *,
        lookahead: int = 0,
    ) -> bytes:
        """The packed keys of the blocks of ``ids``. TokenIdError where an id is no 32-bit number."""
        serial, keyer = self._keyer(namespace, block_size, lookahead)
        tokens = packed(ids)
        if media:
            full = keyer.blocks(len(tokens))
            blocks = media_of_blocks(media, block_size=block_size, blocks=full, lookahead=lookahead)
            return pack_keys(MediaKeyer(self._index_key, namespace, keyer).keys(tokens, blocks))
        if not self._remembers:
            return keyer.packed_keys(tokens)
        return b"".join(self._chunk_keys(serial, keyer, tokens))

    def stats(self) -> dict[str, int]:
        """Chunks found and hashed since the start, and chunks and bytes cached now."""
        return {"hits": self.hits, "misses": self.misses, "chunks": len(self._chunks), "bytes": self._bytes}

    def _chunk_keys(self, serial: int, keyer: BlockKeyer, tokens: array[int]) -> Iterator[bytes]:
        size, ahead = keyer.block_size, keyer.lookahead
        full = keyer.blocks(len(tokens)) * size
        step = max(1, CHUNK_TOKENS // size) * size
        parent = b""
        for start in range(0, full, step):
            chunk = tokens[start : min(start + step, full) + ahead]
            name = (serial, parent, chunk.tobytes())
            found = self._get(name)
            if found is None:
                found = keyer.packed_keys(chunk, BlockKey(int.from_bytes(parent, "little")), start // size)
                if len(chunk) == step + ahead:  # a shorter one will grow with the next turn
                    self._put(name, found)
            yield found
            parent = found[-_KEY_BYTES:]

    def _keyer(self, namespace: Namespace, block_size: int, lookahead: int = 0) -> tuple[int, BlockKeyer]:
        name = (namespace, block_size, lookahead)
        with self._lock:
            known = self._keyers.get(name)
            if known is None:
                self._serial += 1
                known = (self._serial, self._make(self._index_key, *name))
                self._keyers[name] = known
                if len(self._keyers) > NAMESPACES:
                    self._keyers.popitem(last=False)
            else:
                self._keyers.move_to_end(name)
            return known

    def _get(self, name: Name) -> bytes | None:
        with self._lock:
            found = self._chunks.get(name)
            if found is None:
                self.misses += 1
                return None
            self.hits += 1
            self._chunks.move_to_end(name)
            return found

    def _put(self, name: Name, keys: bytes) -> None:
        with self._lock:
            if name not in self._chunks:
                self._bytes += _size(name, keys)
            self._chunks[name] = keys
            while self._bytes > self._max_bytes:
                self._bytes -= _size(*self._chunks.popitem(last=False))


def _size(name: Name, keys: bytes) -> int:
    return _ENTRY_BYTES + len(name[2]) + len(keys)


def packed(ids: Sequence[int]) -> array[int]:
    """Token ids as unsigned 32-bit numbers. TokenIdError."""
    if isinstance(ids, array):
        return ids
    try:
        return array("I", ids)
    except (OverflowError, TypeError) as error:
        raise TokenIdError(f"token ids must be integers from 0 to 4294967295: {error}") from error
