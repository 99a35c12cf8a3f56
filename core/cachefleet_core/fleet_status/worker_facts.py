"""One rank of a worker as a control plane reports it."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from cachefleet_core.fleet_status.fields import Count, Word
from cachefleet_core.index_contract import Difference
from cachefleet_core.pool.adapter_reports import AdapterReport
from cachefleet_core.report_frames import Capability
from cachefleet_core.warmth import Warmth

DOUBTED: Final = 0.5
"""A trust below this is a problem: less than a quarter of what the worker claims is served."""


class Load(Struct, frozen=True, kw_only=True, rename="camel"):
    """The figures of a worker's last report; null where its engine does not report one."""

    running: Count = 0
    waiting: Count = 0
    waiting_tokens: Count | None = None
    blocks_total: Count = 0
    blocks_free: Count = 0
    """Blocks a new request may take, idle cached ones included."""
    blocks_idle: Count | None = None
    preemptions: Count = 0
    prefill_tokens_per_second: float | None = None
    loaded_tokens_per_second: float | None = None
    inter_token_seconds: float | None = None
    prefix_queries: Count = 0
    """Prompt tokens looked up in the prefix cache since the engine started."""
    prefix_hits: Count = 0

    @property
    def hit_ratio(self) -> float | None:
        """Of the tokens that the engine has looked up since it started; None where there were none."""
        return self.prefix_hits / self.prefix_queries if self.prefix_queries else None


class WorkerFacts(Struct, frozen=True, kw_only=True, rename="camel"):
    """One rank of one worker."""

    id: str = ""
    name: str
    pool: str = ""
    rank: int = 0
    url: str = ""
    agent: str = ""
    listed: bool = False
    """Whether the source of pools lists it."""
    ready: bool = False
    """Whether the source of pools lists it as ready."""
    vouched: bool = True
    """Whether an agent has proved by a token of its pod that it is a worker; it gets no requests without that."""
    suspended: str = ""
    """Why its engine serves nothing though it answers (a ``Suspension``), so that it gets no requests; "" otherwise."""
    connected: bool = False
    stream: str = ""
    """Its StreamState: unknown, awaiting, assembling, live, adrift or forgotten."""
    epoch: str = ""
    sequence: Count = 0
    phase: Word | None = None
    """As its agent says (a ``Phase``); None before its first report."""
    phase_reason: str | None = None
    """Why it takes no traffic, or took some before it was warm; words, comma separated."""
    load: Load | None = None
    """None before its first report."""
    report_age_seconds: float | None = None
    stale: bool = True
    held_blocks: Count = 0
    """Blocks that the index has for it."""
    held_bytes: Count | None = None
    """On each device; None where the engine does not tell a block's size."""
    block_bytes: Count = 0
    """Of one block on one device; 0 where the engine does not tell."""
    indexed: bool = True
    """Whether its blocks are in the index: not where they did not fit, or were more than it can hold."""
    cache_value: float = 0.0
    """What its cache is worth, for choosing which worker to give up; comparable within a pool."""
    promised_blocks: Count = 0
    """Idle blocks of tenants with cache contracts, which count more where a worker is chosen to go."""
    trust: float = 1.0
    """Share of what it claims to hold that decisions count on, by what its engine has served."""
    excluded: bool = False
    differences: tuple[Difference, ...] = ()
    """Fields in which its contract is not its pool's."""
    blind: bool = False
    """Whether its engine serves from a cache of which the index holds nothing."""
    not_indexed: str = ""
    """Why hits on its engine cannot be told from its blocks, so that it is routed to by text or load."""
    configuration: tuple[Difference, ...] = ()
    """Fields in which its engine has something else than its pool asks for, by vLLM's names."""
    backing_off: bool = False
    """Whether it is not connected to for a moment, after a failure."""
    key_refused: bool = False
    """Whether it refused the gateway's key, and has not taken it since."""
    inflight_requests: Count = 0
    inflight_tokens: Count = 0
    elsewhere_requests: Count = 0
    """Requests of other replicas in flight there, as these tell."""
    waiting_tokens: Count = 0
    """Prompt tokens sent there and not computed yet, by whomever."""
    backlog_seconds: float | None = None
    """How long these take at the rate of it or its pool; None where none has measured that."""
    policy_generation: Count = 0
    """Generation of the pool spec whose policy is in force there; 0 where it has not reported."""
    engine_version: str = ""
    capabilities: tuple[Capability, ...] = ()
    warmth: Warmth = Warmth()
    adapters: AdapterReport | None = None
    """None where there are none."""

    @property
    def doubted(self) -> bool:
        """Whether its engine serves little of what it claims to hold."""
        return self.trust < DOUBTED

    @property
    def warmed(self) -> bool:
        """Whether all warm prefixes are cached."""
        return self.warmth.done >= self.warmth.total

    @property
    def fresh(self) -> bool:
        """Whether the index has its present blocks: stream live, report not stale, indexed."""
        return self.stream == "live" and not self.stale and self.indexed

    @property
    def idle_bytes(self) -> int | None:
        """Idle cached blocks on each of its devices, in bytes; None where its engine does not report them."""
        blocks = self.load.blocks_idle if self.load else None
        return blocks * self.block_bytes if blocks is not None and self.block_bytes else None


class WorkerList(Struct, frozen=True, kw_only=True, rename="camel"):
    """Workers by id, and how many there are beyond the limit asked for."""

    items: tuple[WorkerFacts, ...]
    total: Count = 0
    next: str | None = None
    """To be given as ``after`` for those that follow; None where there are none."""
