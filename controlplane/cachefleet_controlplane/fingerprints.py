"""The digest of many blocks at once: what ``blocks.Digest`` adds for each, summed several times faster.

Python integers of any length serve as vector registers: keys lie in lanes of 128 bits, and as each lane's value is
below 2**64, a product with a 64-bit constant stays inside its lane; shifts spill only into bits that are masked away.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Collection, Sequence
from typing import Final

from cachefleet_core.blocks import _TIER_SALT, GOLDEN, MASK, Digest, Tier

LANES: Final = 1024
FEW: Final = 16
"""Up to this many, one by one is faster."""
_LANE_BITS: Final = 128
_ONES: Final = sum(1 << (_LANE_BITS * lane) for lane in range(LANES))
_LOW: Final = _ONES * MASK


def fingerprint(keys: Collection[int], tier: Tier = Tier.DEVICE) -> int:
    """By how much a Digest grows, modulo 2**64, when ``keys`` are added in ``tier``."""
    if len(keys) <= FEW or sys.byteorder == "big":
        return _one_by_one(keys, tier)
    listed = list(keys)
    return sum(_lanes(listed[i : i + LANES], _TIER_SALT[tier]) for i in range(0, len(listed), LANES)) & MASK


def _one_by_one(keys: Collection[int], tier: Tier) -> int:
    digest = Digest()
    for key in keys:
        digest.add(key, tier)
    return digest.value


def _lanes(keys: Sequence[int], salt: int) -> int:
    """The sum of ``splitmix64(key ^ salt)``, as in ``blocks``."""
    size = len(keys)
    wide = array("Q", bytes(16 * size))
    wide[::2] = array("Q", keys)
    low, ones = _LOW, _ONES
    if size < LANES:
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
