"""Caches block keys: of a prompt that begins like an earlier one only the rest is computed.

A prompt is cut into segments of SEGMENT_BLOCKS blocks. The keys of a segment are remembered under a digest of all
tokens that they cover, so a hit is exact, and no token is kept. Turns of a conversation, and conversations with one
system prompt, then cost a digest of their old part and keys of their new one.
"""

from __future__ import annotations

import hashlib
import sys
from array import array
from collections.abc import Iterator, Sequence
from itertools import count
from typing import Final
from weakref import WeakKeyDictionary

from cachefleet_core.block_keys import BlockKeyer, unpack_keys
from cachefleet_runtime.lru import LruMap

SEGMENT_BLOCKS: Final = 32
MAX_SEGMENTS: Final = 16_384
"""Half a million blocks, in about ten MiB."""
_SEGMENT_BYTES: Final = 8 * SEGMENT_BLOCKS
_TOKEN_BYTES: Final = 4
_DIGEST_BYTES: Final = 16


class KeyCache:
    """Keys by segment; the least recently used segments are dropped first."""

    def __init__(self, limit: int = MAX_SEGMENTS) -> None:
        self._known: LruMap[bytes, bytes] = LruMap(limit)
        self._seeds: WeakKeyDictionary[BlockKeyer, bytes] = WeakKeyDictionary()
        self._numbers = count()

    def keys(self, keyer: BlockKeyer, ids: Sequence[int]) -> bytes:
        """Return ``keyer.packed_keys(ids)``. ValueError for ids that it would refuse."""
        digests = self._digests(keyer, ids)
        segments = list(self._look_up(digests))
        old = len(segments) * SEGMENT_BLOCKS
        if segments:
            parent = unpack_keys(segments[-1][-8:])[0]
            segments.append(keyer.packed_keys(ids[old * keyer.block_size :], parent, old))
        else:
            segments.append(keyer.packed_keys(ids))
        out = b"".join(segments)
        self._remember(digests, out, old=old)
        return out

    def _look_up(self, digests: list[bytes]) -> Iterator[bytes]:
        """Yield the keys of the leading segments that are cached."""
        for digest in digests:
            segment = self._known.use(digest)
            if segment is None:
                return
            yield segment

    def _digests(self, keyer: BlockKeyer, ids: Sequence[int]) -> list[bytes]:
        """A digest for each whole segment: of all tokens that its keys cover, for this keyer alone."""
        step = SEGMENT_BLOCKS * keyer.block_size
        whole = keyer.blocks(len(ids)) // SEGMENT_BLOCKS
        if not whole:
            return []
        data = memoryview(_bytes(ids[: whole * step + keyer.lookahead]))
        hashed = hashlib.blake2b(self._seed(keyer), digest_size=_DIGEST_BYTES)
        out, done = [], 0
        for number in range(1, whole + 1):
            end = (number * step + keyer.lookahead) * _TOKEN_BYTES
            hashed.update(data[done:end])
            out.append(hashed.digest())
            done = end
        return out

    def _remember(self, digests: list[bytes], keys: bytes, *, old: int) -> None:
        for number in range(old // SEGMENT_BLOCKS, len(digests)):
            start = number * _SEGMENT_BYTES
            self._known.put(digests[number], keys[start : start + _SEGMENT_BYTES])

    def _seed(self, keyer: BlockKeyer) -> bytes:
        if keyer not in self._seeds:
            self._seeds[keyer] = next(self._numbers).to_bytes(8, sys.byteorder)
        return self._seeds[keyer]


def _bytes(ids: Sequence[int]) -> bytes:
    try:
        return array("I", ids).tobytes()
    except (OverflowError, TypeError) as error:
        raise ValueError(f"token ids must be integers from 0 to 4294967295: {error}") from error
