"""Block keys and operations for tests, without tokens: what a key stands for does not matter to an index."""

from collections.abc import Iterable
from random import Random

from cachefleet_core.block_keys import BlockKey, Tier, pack_keys
from cachefleet_core.report_frames import Removed, Stored
from tests.reference.digest import Digest


def chain(seed: int, length: int) -> list[BlockKey]:
    """Distinct keys; the same for the same seed, longer ones beginning with the shorter."""
    random = Random(seed)
    return [BlockKey(random.getrandbits(64) | 1) for _ in range(length)]


def stored(keys: Iterable[int], parent: int = 0, tier: Tier = Tier.DEVICE) -> Stored:
    return Stored(parent, pack_keys(keys), tier)


def removed(keys: Iterable[int], tier: Tier = Tier.DEVICE) -> Removed:
    return Removed(pack_keys(keys), tier)


def digest_of(held: Iterable[tuple[int, Tier]]) -> int:
    digest = Digest()
    for key, tier in held:
        digest.add((key,), tier)
    return digest.value
