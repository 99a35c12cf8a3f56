"""The live picture as frozen values, for the admin API, metrics and tests."""

from __future__ import annotations

from dataclasses import dataclass

from cachefleet_controlplane.index.protocol import WorkerId
from cachefleet_core.contract import Difference, IndexContract
from cachefleet_core.pool.spec import PrefixCachePool
from cachefleet_core.reports import Capability, State, Warmth


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    """A fleet: the pools of one namespace that serve one model name.

    Where several namespaces serve the same name, the first namespace has the bare name and every one has
    "namespace/name".
    """

    name: str
    """As it was asked for."""
    upstream: str
    """As its workers know it."""
    namespace: str
    pools: tuple[str, ...]
    declared: tuple[PrefixCachePool, ...]
    max_model_len: int | None
    """The longest prompt and answer that any worker takes; None where nobody has told."""
    created: int
    """When it was first seen, in Unix seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HitRatio:
    """Prompt tokens that the engines looked up and found, over a sliding window; ratio None where none were."""

    window_seconds: float
    objective: float | None
    queried_tokens: int
    hit_tokens: int
    sampled_at: float
    """The end of the window, in Unix seconds."""

    @property
    def ratio(self) -> float | None:
        return self.hit_tokens / self.queried_tokens if self.queried_tokens else None


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolStatus:
    """One pool: what is declared, and what its workers say."""

    key: str
    model: str
    namespace: str
    generation: int
    contract: IndexContract | None
    """The one in force; None until a worker has announced one that fits the pool."""
    hit_ratio: HitRatio
    workers: int
    ready: int
    fresh: int
    """Workers whose blocks are known: live stream and a report that is not stale."""
    excluded: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerStatus:
    """One rank of one worker."""

    id: WorkerId
    name: str
    pool: str
    rank: int
    url: str
    agent: str
    listed: bool
    """The pool source knows it."""
    ready: bool
    """The pool source calls it ready."""
    connected: bool
    stream: str
    """unknown | awaiting | assembling | live | adrift | forgotten."""
    epoch: str
    sequence: int
    report: State | None
    """Its last State."""
    report_age: float | None
    stale: bool
    held_blocks: int
    indexed: bool
    """Its blocks fit into the index, which holds none of a worker whose blocks do not."""
    cache_value: float
    excluded: bool
    differences: tuple[Difference, ...]
    backing_off: bool
    inflight_requests: int
    inflight_tokens: int
    policy_generation: int
    """Generation of the pool whose policy is in force there; 0 where nobody has told."""
    block_bytes: int
    engine_version: str
    capabilities: tuple[Capability, ...]
    warmth: Warmth


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexStatus:
    """The index, and what it has not taken."""

    keys: int
    """Distinct blocks of a tier."""
    held: int
    """Blocks of a tier over all workers."""
    bytes: int
    """Its memory, estimated."""
    refused_frames: int
    """Frames that were not sound."""
    shed_frames: int
    """Frames not taken because it was full."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetView:
    """Everything at one moment."""

    policy: str
    pools: tuple[PoolStatus, ...]
    workers: tuple[WorkerStatus, ...]
    inflight_requests: int
    index: IndexStatus
