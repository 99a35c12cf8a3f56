"""The values of hot prefixes: which prompts may share blocks, bounds, and prefixes as others see them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from cachefleet_controlplane.index.worker_id import WorkerId
from cachefleet_core.tenancy import TenantId

PREFIX_BYTES: Final = 256 * 1024
"""Memory of keys and ids for each prefix that may be kept, on average."""
_ENTRIES: Final = 64


@dataclass(frozen=True, slots=True)
class Line:
    """Which prompts may share blocks: those of one fleet, contract, tenant and salt (the last two "" where tenants
    share).
    """

    model: str
    contract: str
    tenant: TenantId
    salt: str = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class HotBounds:
    """Prefixes kept, and bytes of their ids and of the keys that prompts are compared by."""

    entries: int = _ENTRIES
    bytes: int = _ENTRIES * PREFIX_BYTES
    half_life_seconds: float = 600.0
    """After how long without a request a prefix counts half."""


@dataclass(frozen=True, slots=True)
class WantedPrefix:
    """A hot prefix without ids: its last key, and its length in blocks."""

    key: bytes
    blocks: int


@dataclass(frozen=True, slots=True)
class HotPrefix:
    """A prefix worth caching: ids as little-endian u32."""

    line: Line
    ids: bytes = field(repr=False)
    heat: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackedPrefix:
    """A prefix that requests share, with what is counted of it; keys as packed."""

    line: Line
    first: bytes
    """The key of its first block."""
    last: bytes
    """The key of its last block."""
    blocks: int
    requests: int
    heat: float
    saved_blocks: int
    """Of it, served from caches in all of these requests."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownPrefix:
    """A beginning that prompts share, and who holds it; ``name`` is a keyed hash."""

    name: str
    tenant: TenantId
    """"" where tenants share their blocks."""
    model: str
    """As "namespace/name"."""
    tokens: int
    requests: int
    heat: float
    saved_tokens: int
    holders: tuple[WorkerId, ...]
    """The first of them, where there are many."""
    holder_count: int
    warm: bool
    """A declared warm prefix begins with it."""
