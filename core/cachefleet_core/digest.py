"""Digest of a set of held blocks, by which both ends of a report stream compare what they have.

``sum over the set of splitmix64(key xor salt of the tier)``, modulo 2**64. Many keys at once are summed several times
faster than one by one, so changes are gathered: Python integers of any length serve as vector registers. Keys lie in
lanes of 128 bits, and as each lane's value is below 2**64, a product with a 64-bit constant stays inside its lane;
shifts spill only into bits that are masked away.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Collection, Sequence
from typing import Final, Protocol

from cachefleet_core.block_keys import GOLDEN, MASK, Tier, splitmix64, unpack_keys

_TIER_SALT: Final = {Tier.DEVICE: 0, Tier.HOST: 0xA5A5_5A5A_C3C3_3C3C}
_LANES: Final = 1024
_FEW: Final = 16
"""Up to this many keys, summing one by one is faster."""
_LANE_BITS: Final = 128
_ONES: Final = sum(1 << (_LANE_BITS * lane) for lane in range(_LANES))
_LOW: Final = _ONES * MASK


Keys = Collection[int] | bytes
"""Block keys one by one, or packed as ``blocks.pack_keys`` does."""


class AnyDigest(Protocol):
    """Interface of ``Digest``, for the native and the Python backend."""

    @property
    def value(self) -> int: ...
    def add(self, keys: Keys, tier: Tier = Tier.DEVICE, /) -> None: ...
    def remove(self, keys: Keys, tier: Tier = Tier.DEVICE, /) -> None: ...
    def clear(self) -> None: ...


class Digest:
    """A commutative fingerprint of a set of (key, tier), kept in constant time per change.

    Order and history do not matter. The set itself is not held: the caller adds each element once and removes only
    elements that are in. Up to _LANES changes of a kind wait to be summed together.
    """

    __slots__ = ("_added", "_removed", "_value")

    def __init__(self) -> None:
        self.clear()

    @property
    def value(self) -> int:
        """The digest, 64 bits. Sums the changes that wait."""
        for tier in Tier:
            self._settle(tier)
        return self._value

    def add(self, keys: Keys, tier: Tier = Tier.DEVICE) -> None:
        """Add keys, none of which may be in the set."""
        self._change(self._added[tier], keys, tier)

    def remove(self, keys: Keys, tier: Tier = Tier.DEVICE) -> None:
        """Remove keys, each of which must be in the set."""
        self._change(self._removed[tier], keys, tier)

    def clear(self) -> None:
        """Reset to the empty set."""
        self._value = 0
        self._added: tuple[list[int], ...] = tuple([] for _ in Tier)
        self._removed: tuple[list[int], ...] = tuple([] for _ in Tier)

    def _change(self, waiting: list[int], keys: Keys, tier: Tier) -> None:
        waiting += unpack_keys(keys) if isinstance(keys, bytes) else keys
        if len(waiting) >= _LANES:
            self._settle(tier)

    def _settle(self, tier: Tier) -> None:
        added, removed = self._added[tier], self._removed[tier]
        self._value = (self._value + _sum(added, tier) - _sum(removed, tier)) & MASK
        added.clear()
        removed.clear()


def engine_number(block_hash: int | bytes) -> int:
    """An engine's block hash as 64 bits, for checksums of engine hashes: the last 8 bytes of a longer hash."""
    return block_hash if isinstance(block_hash, int) else int.from_bytes(block_hash[-8:], "big")


def _sum(keys: list[int], tier: Tier) -> int:
    salt = _TIER_SALT[tier]
    if len(keys) <= _FEW or sys.byteorder == "big":
        return sum(splitmix64(key ^ salt) for key in keys)
    return sum(_lanes(keys[i : i + _LANES], salt) for i in range(0, len(keys), _LANES))


def _lanes(keys: Sequence[int], salt: int) -> int:
    """The sum of ``splitmix64(key ^ salt)``, as in ``blocks``."""
    size = len(keys)
    wide = array("Q", bytes(16 * size))
    wide[::2] = array("Q", keys)
    low, ones = _LOW, _ONES
    if size < _LANES:
        extent = (1 << (_LANE_BITS * size)) - 1
        low, ones = low & extent, ones & extent
    z = int.from_bytes(wide.tobytes(), "little") ^ (ones * salt)
    z = (z + ones * GOLDEN) & low
    z = ((z ^ (z >> 30)) & low) * 0xBF58476D1CE4E5B9 & low
    z = ((z ^ (z >> 27)) & low) * 0x94D049BB133111EB & low
    z = (z ^ (z >> 31)) & low
    out = array("Q")
    out.frombytes(z.to_bytes(16 * size, "little"))
    return sum(out)
