"""Frozen views of models, the index and the whole fleet, for the admin API, metrics and tests."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from msgspec import Struct

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
    keep_alive_seconds: int = field(init=False)
    """Seconds between comments to a stream that waits, the most that any of its pools says; 0 for none."""
    bounds_ahead: bool = field(init=False)
    """Whether any of its pools bounds what a worker is sent ahead, of all or of one tenant."""

    def __post_init__(self) -> None:
        bounds = [pool.spec.admission for pool in self.declared]
        seconds = max((one.keep_alive_seconds for one in bounds), default=0)
        ahead = any(one.max_ahead_seconds or one.shared_ahead_seconds or one.shared_requests for one in bounds)
        object.__setattr__(self, "keep_alive_seconds", seconds)
        object.__setattr__(self, "bounds_ahead", ahead)

    @property
    def is_adapter(self) -> bool:
        """Whether it is an adapter of the fleet's model."""
        return self.upstream != self.base


@dataclass(frozen=True, slots=True)
class AliasedModel:
    """A model that an alias means, and its share of the requests, relative to those of the others."""

    model: ServedModel
    weight: int


@dataclass(frozen=True, slots=True)
class ModelElsewhere:
    """A model, and the name of the control plane whose pools serve it."""

    model: ServedModel
    control_plane: str


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


class IdleCache(Struct, frozen=True):
    """What one tenant has of a pool's idle cache, over its workers; each tells the tenants with most."""

    pool: str
    tenant: str
    """Empty for former salts, and for what did not come through the gateway."""
    share: float
    """Its share of each worker's budget; over it its own blocks are evicted first."""
    blocks: int
    mib: int
    """Of the devices' memory, as far as workers tell the size of a block."""


class IdleCacheList(Struct, frozen=True):
    """All of them, by pool."""

    items: tuple[IdleCache, ...]


class HeldCache(Struct, frozen=True):
    """What one tenant with a contract has of one worker's idle cache."""

    pool: str
    tenant: str
    worker: str
    """Its id and epoch."""
    idle: int | None
    """Blocks; None where the worker does not tell, as one without the plugin, so that it keeps no contract."""
    evicted: int
    """Blocks evicted against the contract, since the engine's start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetView:
    """All pools and workers at one time."""

    policy: str
    pools: tuple[PoolFacts, ...]
    workers: tuple[WorkerFacts, ...]
    inflight_requests: int
    index: IndexStatus
    tenants: tuple[IdleCache, ...] = ()
    """What tenants have of the idle caches."""
    held: tuple[HeldCache, ...] = ()
    """The same of tenants with contracts, by worker; of workers that report and are ready."""
