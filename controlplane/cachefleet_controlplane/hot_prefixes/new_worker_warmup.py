"""Tells new workers of the hottest prefixes: once in an epoch that began with an empty cache, after the standing Warm.

Those of tenants with a cache contract come first, within its share, so that they are there when a worker is replaced.

This Warm is not standing: the agent tries each prompt once, after the pool's own prefixes. The worker takes no traffic
meanwhile, for as long as its pool allows for warming. It is sent as soon as the agent has received the standing Warm,
while the worker still waits for that. Every replica of the control plane sends what it knows; a prefix that two of them
name is computed once.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from prometheus_client import Counter

from cachefleet_controlplane.hot_prefixes.hot_prefix import HotPrefix, Line
from cachefleet_controlplane.hot_prefixes.leaving_workers import LeavingWorkers
from cachefleet_controlplane.hot_prefixes.tracker import HotPrefixes
from cachefleet_controlplane.metrics import Metrics
from cachefleet_controlplane.workers.views import ServedModel
from cachefleet_controlplane.workers.warm_prefixes import MAX_BYTES
from cachefleet_core.budget import budget_blocks
from cachefleet_core.pool.spec import PrefixCachePool
from cachefleet_core.report_frames import Hello, Phase, State, Warm
from cachefleet_core.tenancy import TenantId
from cachefleet_core.warmth import Prefix
from cachefleet_runtime.lru import LruMap

logger = logging.getLogger(__name__)

MAX_PREFIXES: Final = 256
"""The protocol's bound of prefixes in one frame."""
MAX_REMEMBERED: Final = 8192
"""Workers whose epoch is kept; more than may report."""
_TOKEN_BYTES: Final = 4
MAX_IDS_BYTES: Final = 1024 * 1024
"""The protocol's bound of one prefix's ids."""
_PREFIX_BYTES: Final = 2048
"""Upper bound of a prefix's bytes in a frame besides its ids."""
_BYTES_A_TOKEN: Final = 3
"""Of text; a low estimate."""
_TAKING: Final = (Phase.WARMING, Phase.READY)
"""Phases in which a worker accepts prompts of its agent."""


WARM_TOKENS: Final = 1_048_576
"""How many tokens a new worker is to compute for hot prefixes at most, within its pool's budget of idle blocks."""
WARM_SECONDS: Final = 60.0
"""How long that may take, at the pace of the workers there are."""
UNMEASURED_TOKENS: Final = 65_536
"""Token bound where no worker has reported a prefill rate."""


class Workers(Protocol):
    """What is needed of ``fleet.Fleet``."""

    def models(self) -> list[ServedModel]:
        """Every model that a pool serves."""
        ...

    def prefill_rate(self, pool: str) -> float | None:
        """Prompt tokens that a worker of a pool computes a second; None where none has measured it."""
        ...


@dataclass(frozen=True, slots=True)
class _NewWorker:
    epoch: str
    empty: bool
    """It held nothing at its first State, and has not been told."""


class NewWorkerWarmUp:
    """Decides what a reporting worker is told to cache; ``tokens`` and ``seconds`` bound what it computes for that."""

    def __init__(
        self,
        hot: HotPrefixes,
        fleet: Workers,
        metrics: Metrics,
        *,
        tokens: int = WARM_TOKENS,
        seconds: float = WARM_SECONDS,
        clock: Callable[[], float] = time.monotonic,
        leaving: LeavingWorkers | None = None,
    ) -> None:
        self._leaving = leaving
        self._hot = hot
        self._fleet = fleet
        self._tokens = tokens
        self._seconds = seconds
        self._clock = clock
        self._new_workers: LruMap[tuple[str, str], _NewWorker] = LruMap(MAX_REMEMBERED)
        registry = metrics.registry
        self._workers = Counter("cachefleet_hot_warmed_workers", "New workers told of hot prefixes", registry=registry)
        self._prefixes = Counter("cachefleet_hot_warmed_prefixes", "Hot prefixes they were told of", registry=registry)

    def reported(self, hello: Hello, state: State) -> Warm | None:
        """The Warm to send after a State of the worker that sent ``hello``; None where there is none."""
        name = hello.pool, hello.worker
        known = self._new_workers.get(name)
        if known is None or known.epoch != hello.epoch:
            known = _NewWorker(hello.epoch, empty=not state.held)
            self._note(name, known)
        pool = self._pool(hello.pool)
        if not known.empty or state.phase not in _TAKING:
            return self._copies(hello, state, pool) if pool and pool.spec.tenancy.contracts else None
        if pool is None or (pool.spec.prefix_cache.warm_prefixes and not state.warmth.total):
            return None  # it has not received the standing Warm yet, and would try the hot ones first
        self._note(name, _NewWorker(hello.epoch, empty=False))
        return self._warm(hello, pool)

    def _copies(self, hello: Hello, state: State, pool: PrefixCachePool) -> Warm | None:
        """What a worker that stays is to compute of what a leaving one held."""
        if self._leaving is None:
            return None
        promised, model = promised_tokens(pool, budget_tokens(pool, hello)), _model(pool)
        self._leaving.note(hello, state, model=model, promised=promised)
        prefixes = _carried(self._leaving.part(hello, state), hello.contract.block_size if hello.rule.windows else 0)
        return Warm(prefixes=prefixes) if prefixes else None

    def _warm(self, hello: Hello, pool: PrefixCachePool) -> Warm | None:
        kept = budget_tokens(pool, hello)
        room = max(0, kept - standing_tokens(pool, hello))
        promised = promised_tokens(pool, kept)
        tokens = min(self._tokens, room, self._in_time(pool))
        contract = hello.contract.fingerprint()
        model = _model(pool)

        def serves(line: Line) -> bool:
            return (line.model, line.contract) == (model, contract)

        found = self._hot.hottest(serves, self._clock(), tokens=tokens, most=MAX_PREFIXES, promised=promised)
        prefixes = _carried(found, hello.contract.block_size if hello.rule.windows else 0)
        if not prefixes:
            return None
        self._workers.inc()
        self._prefixes.inc(len(prefixes))
        logger.info("new worker is told of hot prefixes", extra={"worker": hello.worker, "prefixes": len(prefixes)})
        return Warm(prefixes=prefixes)

    def _in_time(self, pool: PrefixCachePool) -> int:
        """Tokens that a worker of the pool computes in ``seconds``, at the median of the reported rates."""
        rate = self._fleet.prefill_rate(pool.key)
        return round(rate * self._seconds) if rate else UNMEASURED_TOKENS

    def _pool(self, key: str) -> PrefixCachePool | None:
        declared = (pool for model in self._fleet.models() for pool in model.declared)
        return next((pool for pool in declared if pool.key == key), None)

    def _note(self, name: tuple[str, str], joined: _NewWorker) -> None:
        self._new_workers.put(name, joined)


def promised_tokens(pool: PrefixCachePool, kept: int) -> dict[TenantId, int]:
    """What tenants with cache contracts have of so many tokens that a worker keeps."""
    return {TenantId(one.tenant): int(one.share * kept) for one in pool.spec.tenancy.contracts}


def _model(pool: PrefixCachePool) -> str:
    return f"{pool.metadata.namespace}/{pool.spec.model.name}"


def budget_tokens(pool: PrefixCachePool, hello: Hello) -> int:
    """Tokens whose blocks a worker may keep idle; 0 where its pool keeps none."""
    kept = budget_blocks(pool.spec, block_bytes=hello.block_bytes, total=hello.blocks_total)
    return kept * hello.contract.block_size


def standing_tokens(pool: PrefixCachePool, hello: Hello) -> int:
    """About how many tokens the pool's own prefixes take; cached first, they would be evicted first."""
    return sum(
        (
            sum(len(message.content.encode()) for message in prefix.messages) // _BYTES_A_TOKEN
            + hello.contract.block_size
        )
        * max(1, len(prefix.tenants))
        for prefix in pool.spec.prefix_cache.warm_prefixes
    )


def _carried(found: Sequence[HotPrefix], block: int) -> tuple[Prefix, ...]:
    """The prefixes that fit into one frame, hottest first.

    A window is kept before a prompt's last token: of whole blocks of ``block`` tokens one more makes it their end.
    """
    room = MAX_BYTES
    prefixes: list[Prefix] = []
    for one in found:
        if len(one.ids) + _TOKEN_BYTES <= min(room, MAX_IDS_BYTES):
            room -= len(one.ids) + _PREFIX_BYTES
            more = one.ids[-_TOKEN_BYTES:] if block and not len(one.ids) % (_TOKEN_BYTES * block) else b""
            prefixes.append(_prefix(len(prefixes), one, more))
    return tuple(prefixes)


def _prefix(number: int, hot: HotPrefix, more: bytes) -> Prefix:
    """Its name tells only its rank among the hot ones."""
    return Prefix(name=f"hot-{number}", ids=hot.ids + more, salt=hot.line.salt)
