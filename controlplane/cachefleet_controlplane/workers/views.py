"""Frozen views of models, pools and workers, for the admin API, metrics and tests."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from cachefleet_controlplane.index.protocol import WorkerId
from cachefleet_core.index_contract import Difference, IndexContract
from cachefleet_core.pool.adapter_reports import AdapterReport
from cachefleet_core.pool.spec import PrefixCachePool
from cachefleet_core.report_frames import Capability, State
from cachefleet_core.warmth import Warmth


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


@dataclass(frozen=True, slots=True)
class AdapterConflict:
    """Why an adapter of a pool is not asked for by its name alone."""

    adapter: str
    owner: str
    """The pool that the name means; "" where a rule lets no pool of this namespace have it."""
    nameless: bool
    """Whether "namespace/adapter" does not mean it either, so that nobody can ask for it."""


FAIR_SHARE: Final = 0.1
"""Of the tokens that engines have looked up, those of answers that tell must be so many at least to speak for all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HitRatio:
    """Prompt tokens of a sliding window, and those from cache: by the engines' counters, and by their answers.

    What was served counts where answers tell of a fair part of all. The counters are of an engine's own blocks alone,
    so they know nothing of a connector's; and what did not come through this replica only they know.
    """

    window_seconds: float
    objective: float | None
    queried_tokens: int
    hit_tokens: int
    sampled_at: float
    """The end of the window, in Unix seconds."""
    min_tokens: int = 0
    """Prompt tokens from which on the ratio is compared with the objective."""
    answered_tokens: int = 0
    """Of prompts whose answers told what came from cache."""
    served_tokens: int = 0

    @property
    def by_answers(self) -> bool:
        """Whether answers tell enough to go by them."""
        fair = 0 < self.answered_tokens >= FAIR_SHARE * self.queried_tokens
        return fair and (self.answered_tokens >= self.min_tokens or self.queried_tokens < self.min_tokens)

    @property
    def tokens(self) -> int:
        """Prompt tokens that the ratio is of."""
        return self.answered_tokens if self.by_answers else self.queried_tokens

    @property
    def cached(self) -> int:
        """Those of ``tokens`` that came from cache."""
        return self.served_tokens if self.by_answers else self.hit_tokens

    @property
    def ratio(self) -> float | None:
        """Share of prompt tokens from cache; None where there were none."""
        return self.cached / self.tokens if self.tokens else None

    @property
    def counted(self) -> float | None:
        """The ratio by the engines' counters alone."""
        return self.hit_tokens / self.queried_tokens if self.queried_tokens else None

    @property
    def sampled(self) -> bool:
        """Whether there were enough to compare the ratio with the objective."""
        return self.tokens >= self.min_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolStatus:
    """One pool: its declaration, and counts of its workers."""

    key: str
    model: str
    namespace: str
    generation: int
    contract: IndexContract | None
    """The contract in force; None until a worker has announced one that fits the pool."""
    hit_ratio: HitRatio
    workers: int
    ready: int
    fresh: int
    """Workers whose blocks are known: live stream, and a report that is not stale."""
    excluded: int
    replicas: int = 1
    """Workers that its spec asks for."""
    admitted: bool = True
    """Whether its workers are told a policy: not before a budget of it is known to be admitted."""
    budget_mib: int = 0
    """The admitted budget for idle cached blocks, of each device."""
    adapter_conflicts: tuple[AdapterConflict, ...] = ()


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
    """Whether the pool source lists it."""
    ready: bool
    """Whether the pool source lists it as ready."""
    vouched: bool
    """Whether an agent has proved by a token of its pod that it is a worker; without that it gets no requests."""
    suspended: str = ""
    """Why its engine serves nothing though it answers (a ``Suspension``), so that it gets no requests; "" otherwise."""
    connected: bool
    stream: str
    """Its StreamState."""
    epoch: str
    sequence: int
    report: State | None
    """Its last State."""
    report_age: float | None
    stale: bool
    held_blocks: int
    indexed: bool
    """Whether its blocks are in the index: not where they did not fit, or were more than it can hold."""
    cache_value: float
    trust: float
    """Share of its claims that is counted on, by what it has served."""
    excluded: bool
    differences: tuple[Difference, ...]
    blind: bool = False
    """Whether its engine serves from a cache of which the index holds nothing."""
    not_indexed: str = ""
    """Why hits on its engine cannot be told from its blocks, so that none are reported; "" where they can."""
    configuration: tuple[Difference, ...] = ()
    """Fields in which its engine has something else than its pool asks for."""
    backing_off: bool
    key_refused: bool
    """It refused the gateway's key, and has not taken it since."""
    inflight_requests: int
    inflight_tokens: int
    policy_generation: int
    """Generation of the pool spec whose policy is in force there; 0 where it has not reported."""
    block_bytes: int
    engine_version: str
    capabilities: tuple[Capability, ...]
    warmth: Warmth
    adapters: AdapterReport | None = None
    """None where there are none."""


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
    pools: tuple[PoolStatus, ...]
    workers: tuple[WorkerStatus, ...]
    inflight_requests: int
    index: IndexStatus
    tenants: tuple[TenantIdle, ...] = ()
    """What tenants have of the idle caches."""
