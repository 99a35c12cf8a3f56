"""How many blocks one rank of a worker can hold: a bound on what it may claim. Pure.

A worker announces how many blocks its engine has, and that binds it. It is its own word, so the memory that the pool
declares bounds it coarsely: SLACK times as many blocks as fit where a token takes what ``model.kvBytesPerToken`` says,
or as many as fit where it takes SMALLEST_TOKEN_BYTES and that is not set.
Blocks in the host's memory or on a disk are not announced: it may hold BELOW_FACTOR times as many there, whatever its
pool declares, since engines may be told of connectors elsewhere.
"""

from __future__ import annotations

from typing import Final

from cachefleet_core.budget import blocks, kv_cache_mib
from cachefleet_core.pool.spec import PoolSpec

SMALLEST_TOKEN_BYTES: Final = 256
"""Less than any model in use takes for a token on one device: a block of theirs takes kilobytes."""
SLACK: Final = 64
"""A block holds the layers of one KV group only (a sixth or less of them in hybrid models), on one device of those that
``kvBytesPerToken`` may have been computed for (8), in smaller numbers perhaps (fp8)."""
BELOW_FACTOR: Final = 15
UNKNOWN: Final = 2**32
"""Where neither is known: a pool that declares no room is not admitted, but may have workers from before."""


def most_blocks(spec: PoolSpec, announced: int) -> int:
    """The most keys that one rank may claim on its device; ``announced`` is 0 where its engine does not tell."""
    return min(filter(None, (announced, _declared(spec))), default=UNKNOWN)


def excess(on_device: int, below: int, most: int) -> str:
    """Why a rank that can hold ``most`` on its device cannot hold so many there and below; "" where it can."""
    for claimed, can, where in ((on_device, most, ""), (below, BELOW_FACTOR * most, " below the device")):
        if claimed > can:
            return f"it claims {claimed} blocks{where} and can hold {can}"
    return ""


def _declared(spec: PoolSpec) -> int:
    declared = spec.model.kv_bytes_per_token
    block_bytes = spec.block_size * (declared or SMALLEST_TOKEN_BYTES)
    return blocks(kv_cache_mib(spec), block_bytes) * (SLACK if declared else 1)
