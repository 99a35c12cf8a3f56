"""New workers are told of the hottest prefixes: once in an epoch that began with nothing cached, behind what stands.

The Warm is not a standing one: the agent tries each prompt once, after the pool's own prefixes. The worker takes no
traffic meanwhile, for as long as its pool lets it warm. They are told as soon as the agent has heard what stands, which
is while it still waits for that. Every replica of the control plane tells what it knows; what two of them name is
computed once.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final, Protocol

from prometheus_client import Counter

from cachefleet_controlplane.hot_prefixes.tracker import HotPrefix, HotPrefixes, Line
from cachefleet_controlplane.metrics import Metrics
from cachefleet_controlplane.workers.views import FleetView, ServedModel
from cachefleet_controlplane.workers.warm_prefixes import MAX_BYTES
from cachefleet_core.budget import blocks
from cachefleet_core.engine import keeps_blocks
from cachefleet_core.pool.spec import PrefixCachePool
from cachefleet_core.reports import Hello, Phase, Prefix, State, Warm
from cachefleet_runtime.lru import LruMap

logger = logging.getLogger(__name__)

MAX_PREFIXES: Final = 256
"""The protocol's bound on one frame."""
MAX_REMEMBERED: Final = 8192
"""Workers whose epoch is remembered; more than may report."""
MAX_IDS_BYTES: Final = 1024 * 1024
"""The protocol's bound on one prefix."""
_PREFIX_BYTES: Final = 2048
"""What one takes in a frame besides its ids, at most."""
_BYTES_A_TOKEN: Final = 3
"""Of text; rather few."""
_TAKING: Final = (Phase.WARMING, Phase.READY)
"""It takes prompts of its agent."""


UNMEASURED_TOKENS: Final = 65_536
"""The most where no worker has told how fast it computes prompts."""


class Workers(Protocol):
    """What pools and workers there are."""

    def models(self) -> list[ServedModel]: ...

    def view(self) -> FleetView: ...


@dataclass(frozen=True, slots=True)
class _Joined:
    epoch: str
    empty: bool
    """It held nothing when it was first heard of, and has not been told."""


class HotWarming:
    """Says what a worker is to be told when it reports; ``tokens`` and ``seconds`` bound what it computes for that."""

    def __init__(
        self,
        hot: HotPrefixes,
        fleet: Workers,
        metrics: Metrics,
        *,
        tokens: int,
        seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._hot = hot
        self._fleet = fleet
        self._tokens = tokens
        self._seconds = seconds
        self._clock = clock
        self._joined: LruMap[tuple[str, str], _Joined] = LruMap(MAX_REMEMBERED)
        registry = metrics.registry
        self._workers = Counter("cachefleet_hot_warmed_workers", "New workers told of hot prefixes", registry=registry)
        self._prefixes = Counter("cachefleet_hot_warmed_prefixes", "Hot prefixes they were told of", registry=registry)

    def reported(self, hello: Hello, state: State) -> Warm | None:
        """A report of a worker that said ``hello``; what it is to be told, if anything."""
        name = hello.pool, hello.worker
        known = self._joined.get(name)
        if known is None or known.epoch != hello.epoch:
            known = _Joined(hello.epoch, empty=not state.held)
            self._note(name, known)
        if not known.empty or state.phase not in _TAKING:
            return None
        pool = self._pool(hello.pool)
        if pool is None or (pool.spec.prefix_cache.warm_prefixes and not state.warmth.total):
            return None  # it has not heard yet what stands, and would try the hot ones first
        self._note(name, _Joined(hello.epoch, empty=False))
        return self._warm(hello, pool)

    def _warm(self, hello: Hello, pool: PrefixCachePool) -> Warm | None:
        room = max(0, budget_tokens(pool, hello) - standing_tokens(pool, hello))
        tokens = min(self._tokens, room, self._in_time(pool))
        contract = hello.contract.fingerprint()
        model = f"{pool.metadata.namespace}/{pool.spec.model.name}"

        def serves(line: Line) -> bool:
            return (line.model, line.contract) == (model, contract)

        found = self._hot.hottest(serves, self._clock(), tokens=tokens, most=MAX_PREFIXES)
        prefixes = _carried(found)
        if not prefixes:
            return None
        self._workers.inc()
        self._prefixes.inc(len(prefixes))
        logger.info("new worker is told of hot prefixes", extra={"worker": hello.worker, "prefixes": len(prefixes)})
        return Warm(prefixes=prefixes)

    def _in_time(self, pool: PrefixCachePool) -> int:
        """Tokens that a worker of the pool computes in the time there is, as the others' median tells."""
        reports = [one.report for one in self._fleet.view().workers if one.pool == pool.key and one.report]
        rates = [report.prefill_tokens_per_second for report in reports if report.prefill_tokens_per_second]
        return round(median(rates) * self._seconds) if rates else UNMEASURED_TOKENS

    def _pool(self, key: str) -> PrefixCachePool | None:
        declared = (pool for model in self._fleet.models() for pool in model.declared)
        return next((pool for pool in declared if pool.key == key), None)

    def _note(self, name: tuple[str, str], joined: _Joined) -> None:
        self._joined.put(name, joined)


def budget_tokens(pool: PrefixCachePool, hello: Hello) -> int:
    """Tokens whose blocks a worker may keep idle; 0 where its pool keeps none."""
    if not keeps_blocks(pool.spec):
        return 0
    held = hello.blocks_total
    if hello.block_bytes:
        budget = blocks(pool.spec.prefix_cache.budget_mib, hello.block_bytes)
        held = min(budget, held) if held else budget
    return held * hello.contract.block_size


def standing_tokens(pool: PrefixCachePool, hello: Hello) -> int:
    """About how many tokens the pool's own prefixes take, which were cached first and would be the first to go."""
    return sum(
        (
            sum(len(message.content.encode()) for message in prefix.messages) // _BYTES_A_TOKEN
            + hello.contract.block_size
        )
        * max(1, len(prefix.tenants))
        for prefix in pool.spec.prefix_cache.warm_prefixes
    )


def _carried(found: Sequence[HotPrefix]) -> tuple[Prefix, ...]:
    """Those that one frame carries."""
    room = MAX_BYTES
    prefixes: list[Prefix] = []
    for one in found:
        if len(one.ids) <= min(room, MAX_IDS_BYTES):
            room -= len(one.ids) + _PREFIX_BYTES
            prefixes.append(_prefix(len(prefixes), one))
    return tuple(prefixes)


def _prefix(number: int, hot: HotPrefix) -> Prefix:
    """Its name tells only how hot it is among others."""
    return Prefix(name=f"hot-{number}", ids=hot.ids, salt=hot.line.salt)
