"""How many blocks one rank of a worker can hold: a bound on what it may claim. Pure.

A worker announces how many blocks its engine has, and that binds it. It is its own word, so the memory that the pool
declares bounds it coarsely: SLACK times as many blocks as fit where a token takes what ``model.kvBytesPerToken`` says,
or as many as fit where it takes SMALLEST_TOKEN_BYTES and that is not set.
Blocks in host memory are not announced; a pool whose engines move any there may hold HOST_FACTOR times as many.
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
HOST_FACTOR: Final = 16
UNKNOWN: Final = 2**32
"""Where neither is known: a pool that declares no room is not admitted, but may have workers from before."""
_OFFLOADING: Final = "--kv-offloading"


def most_blocks(spec: PoolSpec, announced: int) -> int:
    """The most (key, tier) that one rank may claim; ``announced`` is 0 where its engine does not tell."""
    device = min(filter(None, (announced, _declared(spec))), default=UNKNOWN)
    return device * HOST_FACTOR if _offloads(spec) else device


def _declared(spec: PoolSpec) -> int:
    declared = spec.model.kv_bytes_per_token
    block_bytes = spec.block_size * (declared or SMALLEST_TOKEN_BYTES)
    return blocks(kv_cache_mib(spec), block_bytes) * (SLACK if declared else 1)


def _offloads(spec: PoolSpec) -> bool:
    """Whether engines keep blocks in host memory, as far as the pool tells."""
    names = (argument.replace("_", "-") for argument in spec.engine.extra_args)
    return spec.engine.kv_transfer.kv_connector is not None or any(name.startswith(_OFFLOADING) for name in names)
