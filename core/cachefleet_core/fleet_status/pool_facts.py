"""A pool as a control plane reports it."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Final

from msgspec import Meta, Struct, field

from cachefleet_core.fleet_status.fields import Count, Ratio
from cachefleet_core.fleet_status.worker_facts import WorkerFacts

BY_ANSWERS: Final = "answers"
BY_ENGINES: Final = "engines"
NEVER: Final = datetime(1970, 1, 1, tzinfo=UTC)
"""In place of the time of a sample that there is not."""


class ContractFacts(Struct, frozen=True, rename="camel"):
    """What all workers of a pool must agree on (``IndexContract``), with its fingerprint."""

    fingerprint: Annotated[str, Meta(max_length=128)]
    weights: str = ""
    revision: str = ""
    tokenizer: str = ""
    block_size: int = 0
    key_version: int = 0
    lookahead: int = 0
    """Tokens after a block that its hash in the engine, and so its key, covers."""


class HitRatio(Struct, frozen=True, rename="camel"):
    """Share of prompt tokens from cache in the last windowSeconds; value null where there were none.

    A replica that has just started knows of nothing before that; windowSeconds is the objective's, where there is one.
    """

    value: Ratio | None = None
    window_seconds: float = 0.0
    objective: Ratio | None = None
    by: Annotated[str, Meta(max_length=16, extra_json_schema={"enum": [BY_ANSWERS, BY_ENGINES]})] = BY_ENGINES
    """What value goes by: what answers told, servedTokens of answeredTokens; or the engines' counters, hitTokens of
    queriedTokens, where answers tell of less than a tenth of these."""
    tokens: Count = 0
    """Prompt tokens that value is of."""
    queried_tokens: Count = 0
    hit_tokens: Count = 0
    answered_tokens: Count = 0
    served_tokens: Count = 0
    counted: Ratio | None = None
    """The ratio by the engines' counters, which know their own blocks alone."""
    sampled: bool = True
    """Whether tokens are no fewer than the objective's minTokens, so that value is compared with it."""
    sampled_at: Annotated[datetime, Meta(tz=True)] = NEVER
    """The end of the window."""

    @property
    def by_answers(self) -> bool:
        """Whether enough answers report cached tokens to use them for the ratio."""
        return self.by == BY_ANSWERS

    @property
    def cached_tokens(self) -> int:
        """Those of ``tokens`` that came from cache."""
        return self.served_tokens if self.by_answers else self.hit_tokens

    @property
    def missed(self) -> bool:
        """Whether enough was looked up, and value is below the objective."""
        return self.sampled and self.value is not None and self.objective is not None and self.value < self.objective


class WorkerCounts(Struct, frozen=True, kw_only=True, rename="camel"):
    """How many workers there are, can take requests, have known blocks, and are left out for their contract."""

    total: Count = 0
    ready: Count = 0
    fresh: Count = 0
    excluded: Count = 0


class AdapterConflict(Struct, frozen=True, rename="camel"):
    """Why an adapter of a pool is not asked for by its name alone."""

    adapter: str
    owner: str = ""
    """The pool that the name means; "" where a rule lets no pool of this namespace have it."""
    nameless: bool = False
    """Whether "namespace/adapter" does not mean it either, so that nobody can ask for it."""


class AliasConflict(Struct, frozen=True, rename="camel"):
    """Why an alias of a pool's model does not mean the model."""

    alias: str
    owner: str = ""
    """The pool that it means; "" where a rule lets no pool of this namespace have it."""
    nameless: bool = False
    """Whether "namespace/alias" does not mean the model either."""


class PoolFacts(Struct, frozen=True, kw_only=True, rename="camel"):
    """One pool, as one replica of the control plane sees it."""

    key: str
    namespace: str = ""
    name: str = ""
    model: str = ""
    generation: Count = 0
    contract: ContractFacts | None = None
    """The contract in force; None until a worker has announced one that fits the pool."""
    hit_ratio: HitRatio = HitRatio()
    workers: WorkerCounts = WorkerCounts()
    replicas: Count = 1
    """Workers that its spec asks for."""
    admitted: bool = True
    """Whether its workers are told a policy: not before a budget of it is known to be admitted."""
    budget_mib: Count = field(name="budgetMiB", default=0)
    """The admitted budget for idle cached blocks, of each device; 0 where there is none."""
    adapter_conflicts: tuple[AdapterConflict, ...] = ()
    alias_conflicts: tuple[AliasConflict, ...] = ()
    unserved_requests: Count = 0
    """Requests for its model held here while no worker is ready, and those refused for that in the last minute."""
    queued_requests: Count = 0
    """Requests for its model that wait here for room on a worker."""
    queued_blocks: Count = 0
    """Blocks that these need."""
    idle_seconds: Annotated[float, Meta(ge=0)] = 0.0
    """Since a request was last with a worker of it or unserved; since this replica has known the pool, without any."""


class PoolDetail(PoolFacts, frozen=True, kw_only=True, rename="camel"):
    """One pool and its workers."""

    members: tuple[WorkerFacts, ...] = ()


class PoolList(Struct, frozen=True, kw_only=True, rename="camel"):
    """All pools."""

    items: tuple[PoolFacts, ...]
