"""Answers of the admin API as pydantic models: camelCase outside; times in seconds, sizes in tokens and bytes."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from cachefleet_controlplane.routing.decision import RoutingPolicy

Ratio = Annotated[float, Field(ge=0, le=1)]


class Schema(BaseModel):
    """Camel case outside, frozen, made from objects with the same attributes."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, frozen=True, from_attributes=True)


class FieldProblem(Schema):
    """One field of a request that cannot be accepted."""

    field: str
    message: str


class Problem(Schema):
    """An error, as in RFC 9457."""

    type: str = "about:blank"
    title: str
    status: int
    detail: str
    errors: tuple[FieldProblem, ...] = ()


class Contract(Schema):
    """What all workers of a pool must agree on."""

    fingerprint: str
    weights: str
    revision: str
    tokenizer: str
    block_size: int
    key_version: int
    lookahead: int = 0
    """Tokens after a block that its hash in the engine, and so its key, covers."""


class HitRatio(Schema):
    """Share of prompt tokens from cache in the last windowSeconds; value null where there were none.

    A replica that has just started knows of nothing before that; windowSeconds is the objective's, where there is one.
    sampled is false while tokens are fewer than the objective's minTokens.
    """

    value: Ratio | None
    window_seconds: float
    objective: Ratio | None
    by: Literal["answers", "engines"] = "engines"
    """What value goes by: what answers told, servedTokens of answeredTokens; or the engines' counters, hitTokens of
    queriedTokens, where answers tell of less than a tenth of these."""
    tokens: int = 0
    """Prompt tokens that value is of."""
    queried_tokens: int
    hit_tokens: int
    answered_tokens: int = 0
    served_tokens: int = 0
    counted: Ratio | None = None
    """The ratio by the engines' counters, which know their own blocks alone."""
    sampled: bool
    sampled_at: datetime


class WorkerCounts(Schema):
    """How many workers there are, can take requests, have known blocks, and are left out for their contract."""

    total: int
    ready: int
    fresh: int
    excluded: int


class AdapterConflict(Schema):
    """Why an adapter of a pool is not asked for by its name alone."""

    adapter: str
    owner: str
    """The pool that the name means; empty where a rule lets no pool of this namespace have it."""
    nameless: bool
    """NAMESPACE/ADAPTER does not mean it either, so nobody can ask for it."""


class Pool(Schema):
    """One pool as this replica sees it."""

    key: str
    namespace: str
    name: str
    model: str
    generation: int
    contract: Contract | None
    hit_ratio: HitRatio
    workers: WorkerCounts
    budget_mib: int = Field(0, serialization_alias="budgetMiB")
    """The admitted budget for idle cached blocks, of each device; 0 where there is none."""
    adapter_conflicts: tuple[AdapterConflict, ...] = ()


class Load(Schema):
    """A worker's last report; what its engine cannot tell is null."""

    running: int
    waiting: int
    waiting_tokens: int | None
    blocks_total: int
    blocks_free: int
    blocks_idle: int | None
    preemptions: int
    prefill_tokens_per_second: float | None
    loaded_tokens_per_second: float | None
    inter_token_seconds: float | None
    prefix_queries: int
    prefix_hits: int


class Difference(Schema):
    """One field in which a worker's contract is not its pool's."""

    field: str
    expected: str
    actual: str


class Capability(Schema):
    """What one feature of the worker plugin does there, and why it is not better."""

    feature: str
    mode: str
    reason: str


class WarmProblem(Schema):
    """A warm prefix that is not cached and will not be by waiting."""

    name: str
    kind: str
    """too_long, refused or failing."""
    tokens: int
    """What it takes, where it is too long."""
    limit: int
    attempts: int
    detail: str
    """Where it is too long the field of the pool that bounds it, else the last error."""


class Warmth(Schema):
    """How far the warm prefixes are cached."""

    done: int
    total: int
    failed: tuple[str, ...]
    problems: tuple[WarmProblem, ...] = ()


class AdapterProblem(Schema):
    """An adapter that could not be loaded, or not be taken away; it is tried again."""

    name: str
    detail: str
    """In the engine's words."""


class Adapters(Schema):
    """The adapters of a worker."""

    served: tuple[str, ...] | None
    """Those that requests for them reach it; null where it does not tell."""
    busy: tuple[str, ...] = ()
    """Those with requests there."""
    slots: int = 0
    """How many fit on its device at once; 0 where it does not tell."""
    loading: tuple[str, ...] = ()
    problems: tuple[AdapterProblem, ...] = ()


class Worker(Schema):
    """One rank of one worker as this replica sees it."""

    id: str
    name: str
    pool: str
    rank: int
    url: str
    agent: str
    listed: bool
    """The source of pools knows it."""
    ready: bool
    """The source of pools calls it ready."""
    vouched: bool = True
    """An agent has proved by a token of its pod that it is a worker; it gets no requests without that."""
    suspended: str = ""
    """Why its engine serves nothing though it answers: asleep, paused, updating_weights or stuck; it gets no requests.
    "" where it serves.
    """
    connected: bool
    stream: str
    """unknown, awaiting, assembling, live, adrift or forgotten."""
    epoch: str
    sequence: int
    phase: str | None
    """As its agent says; null before its first report."""
    phase_reason: str | None
    """Why it takes no traffic, or took some before it was warm; words, comma separated."""
    load: Load | None
    report_age_seconds: float | None
    stale: bool
    held_blocks: int
    held_bytes: int | None
    """On each device; null where the engine does not tell a block's size."""
    block_bytes: int = 0
    """Of one block on one device; 0 where the engine does not tell."""
    indexed: bool = True
    """Its blocks are in the index; false where they did not fit, until it restarts."""
    cache_value: float
    """What its cache is worth, for choosing which worker to give up; comparable within a pool."""
    trust: float
    """Share of what it claims to hold that decisions count on, by what its engine has served."""
    excluded: bool
    differences: tuple[Difference, ...]
    blind: bool = False
    """Its engine serves from a cache of which the index holds nothing."""
    not_indexed: str = ""
    """Why hits on its engine cannot be told from its blocks, so that it is routed to by text or load."""
    configuration: tuple[Difference, ...] = ()
    """Fields in which its engine has something else than its pool asks for, by vLLM's names."""
    backing_off: bool
    """Not connected to for a moment, after a failure."""
    key_refused: bool = False
    """It refused the gateway's key; it gets a request only where no other can, or every 30 s to find out."""
    inflight_requests: int
    inflight_tokens: int
    policy_generation: int
    engine_version: str
    capabilities: tuple[Capability, ...]
    warmth: Warmth
    adapters: Adapters | None = None


class PoolDetail(Pool):
    """One pool and its workers."""

    members: tuple[Worker, ...]


class PoolList(Schema):
    """All pools."""

    items: tuple[Pool, ...]


class WorkerList(Schema):
    """Workers by id, and how many there are beyond the limit asked for."""

    items: tuple[Worker, ...]
    total: int
    next: str | None = None
    """To be given as ``after`` for those that follow; null where there are none."""


class Routing(Schema):
    """What decides where requests go, on this replica, until it is set again or the replica restarts."""

    model_config = ConfigDict(extra="forbid")

    policy: RoutingPolicy
