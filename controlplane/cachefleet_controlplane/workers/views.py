"""Frozen views of models, the index and the whole fleet, for the admin API, metrics and tests."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from cachefleet_core.fleet_status.pool_facts import PoolFacts
from cachefleet_core.fleet_status.worker_facts import WorkerFacts
from cachefleet_core.pool.spec import PrefixCachePool


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    """A fleet: the pools of one namespace that serve one model name.

    Where several namespaces serve the same name, one of them has the bare name (``cachefleet_core.pool.model_names``),
    and every one has "namespace/name".
    """

    name: str
    """The name that was asked for."""
    upstream: str
    """The name that its workers use: the model's, or the adapter's where that was asked for."""
    base: str
    """The model's name."""
    namespace: str
    pools: tuple[str, ...]
    declared: tuple[PrefixCachePool, ...]
    max_model_len: int | None
    """The longest prompt and answer, in tokens, that any worker takes; None where none tells."""
    created: int
    """When it was first seen, in Unix seconds."""

    @property
    def is_adapter(self) -> bool:
        """Whether it is an adapter of the fleet's model."""
        return self.upstream != self.base


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexStatus:
    """Size of the index, and frames it has refused."""

    keys: int
    """Distinct blocks by tier."""
    held: int
    """Blocks by tier, summed over all workers."""
    bytes: int
    """Its memory, estimated."""
    refused_frames: int
    """Frames that were malformed."""
    shed_frames: int
    """Frames not applied because it was full, or their worker's blocks are left out of it."""
    excess_claims: int
    """Frames after which a worker claimed more blocks than it can hold."""


OTHERS: Final = ""
"""In place of a tenant's name: tenants that are gone, former salts, requests that did not come by the gateway."""


@dataclass(frozen=True, slots=True)
class TenantIdle:
    """What one tenant has of the idle cache of a pool, over all of its workers."""

    pool: str
    tenant: str
    """OTHERS for salts of no tenant there is."""
    share: float
    """Its share of the budget of each worker."""
    blocks: int
    mib: int
    """Of the devices' memory, as far as workers tell the size of a block."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetView:
    """All pools and workers at one time."""

    policy: str
    pools: tuple[PoolFacts, ...]
    workers: tuple[WorkerFacts, ...]
    inflight_requests: int
    index: IndexStatus
    tenants: tuple[TenantIdle, ...] = ()
    """What tenants have of the idle caches."""
