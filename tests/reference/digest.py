"""Digest of a set of held blocks: a sum over its elements, one by one."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final, Protocol

from cachefleet_core.block_keys import MASK, Tier, splitmix64, unpack_keys

Keys = Collection[int] | bytes
"""Block keys one by one, or packed as ``block_keys.pack_keys`` does."""
_SALTS: Final = {Tier.DEVICE: 0, Tier.HOST: 0xA5A5_5A5A_C3C3_3C3C}


class AnyDigest(Protocol):
    """Interface of ``Digest``, for the native ones, too."""

    @property
    def value(self) -> int: ...
    def add(self, keys: Keys, tier: Tier = Tier.DEVICE, /) -> None: ...
    def remove(self, keys: Keys, tier: Tier = Tier.DEVICE, /) -> None: ...
    def clear(self) -> None: ...


class Digest:
    """The caller adds each element once, and removes only elements that are in."""

    def __init__(self) -> None:
        self.value = 0

    def add(self, keys: Keys, tier: Tier = Tier.DEVICE, /) -> None:
        self.value = (self.value + _sum(keys, tier)) & MASK

    def remove(self, keys: Keys, tier: Tier = Tier.DEVICE, /) -> None:
        self.value = (self.value - _sum(keys, tier)) & MASK

    def clear(self) -> None:
        self.value = 0


def _sum(keys: Keys, tier: Tier) -> int:
    each = unpack_keys(keys) if isinstance(keys, bytes) else keys
    return sum(splitmix64(key ^ _SALTS[tier]) for key in each)
