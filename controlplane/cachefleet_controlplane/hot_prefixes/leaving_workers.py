"""Has workers that stay compute what a draining or lost one alone held for tenants with cache contracts.

Once in each drain, and where a ready worker is ready no more, the hottest prefixes of such tenants are taken that no
other worker holds, within the tenants' shares of one worker's budget and what a worker computes in LEAVE_SECONDS.
Ready workers of the pool share them: each is told of its part with its next State, as of hot prefixes; it goes on
taking traffic. What nobody took after LEAVE_SECONDS is dropped. Every replica of the control plane tells what it knows.
"""

from __future__ import annotations

import logging
import math
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from prometheus_client import Counter

from cachefleet_controlplane.hot_prefixes.hot_prefix import HotPrefix, Line
from cachefleet_controlplane.hot_prefixes.tracker import HotPrefixes
from cachefleet_controlplane.index.worker_id import WorkerId
from cachefleet_controlplane.metrics import Metrics
from cachefleet_core.report_frames import Hello, Phase, State
from cachefleet_core.tenancy import TenantId
from cachefleet_runtime.lru import LruMap

logger = logging.getLogger(__name__)

LEAVE_SECONDS: Final = 15.0
"""How long one worker may compute for that, at the pace of the workers there are; a drain has that much at least."""
UNMEASURED_TOKENS: Final = 16_384
"""Token bound where no worker has reported a prefill rate."""
LOOK_SECONDS: Final = 1.0
"""How often it is looked which workers of a pool are ready."""
MOST_LEAVING: Final = 256
"""Drains and losses that are remembered."""
MOST_POOLS: Final = 1024
"""Whose ready workers are remembered."""
MOST_COPIED: Final = 256
"""Prefixes of one of them: the protocol's bound of one frame."""


class Holders(Protocol):
    """What is needed of ``fleet.BlockHolders``."""

    def of(self, model: str, first: bytes, last: bytes) -> Sequence[WorkerId]:
        """The workers of a model that hold both blocks."""
        ...


@dataclass(slots=True)
class _Leaving:
    epoch: str
    """Empty of a worker that was lost."""
    contract: str
    """Fingerprint: token ids mean nothing to workers of another one."""
    until: float
    copies: list[HotPrefix]
    told: set[str] = field(default_factory=set)

    def takes(self, hello: Hello) -> bool:
        """Whether a worker can compute its prefixes, and was told of none."""
        return hello.worker not in self.told and hello.contract.fingerprint() == self.contract


class LeavingWorkers:
    """Of all pools; ``rate`` is what a worker of a pool computes a second, ``ready`` names its ready ones, of its
    contract.
    """

    def __init__(
        self,
        hot: HotPrefixes,
        holders: Holders,
        metrics: Metrics,
        *,
        rate: Callable[[str], float | None],
        ready: Callable[[str], set[str]],
        clock: Callable[[], float],
    ) -> None:
        self._hot = hot
        self._holders = holders
        self._rate, self._ready = rate, ready
        self._clock = clock
        self._going: OrderedDict[tuple[str, str], _Leaving] = OrderedDict()
        self._seen: LruMap[str, tuple[float, set[str]]] = LruMap(MOST_POOLS)
        self._copied = Counter(
            "cachefleet_contract_copied_prefixes",
            "Prefixes of tenants with cache contracts that workers were told of as another one drained or was lost",
            registry=metrics.registry,
        )

    def note(self, hello: Hello, state: State, *, model: str, promised: dict[TenantId, int]) -> None:
        """Note what a worker reports: a drain that begins, or one that is over, and who of its pool was lost;
        ``promised`` tokens by tenant.
        """
        name = (hello.pool, hello.worker)
        known = self._going.get(name)
        if state.phase is not Phase.DRAINING:
            self._going.pop(name, None)
        elif known is None or known.epoch != hello.epoch:
            self._leaves(hello, hello.worker, hello.epoch, model, promised)
        for worker in self._lost(hello.pool):
            self._leaves(hello, worker, "", model, promised)

    def _lost(self, pool: str) -> list[str]:
        """Workers that were ready at the last look and are not, without a drain."""
        now, (at, before) = self._clock(), self._seen.get(pool) or (-math.inf, set())
        if now < at + LOOK_SECONDS:
            return []
        ready = self._ready(pool)
        self._seen.put(pool, (now, ready))
        return sorted(worker for worker in before - ready if (pool, worker) not in self._going)

    def _leaves(self, hello: Hello, worker: str, epoch: str, model: str, promised: dict[TenantId, int]) -> None:
        """A worker of the pool and contract of ``hello`` goes: others are to compute what it alone holds."""
        until = self._clock() + LEAVE_SECONDS
        self._going[hello.pool, worker] = leaving = _Leaving(epoch, hello.contract.fingerprint(), until, [])
        leaving.copies = self._alone(hello, model, promised, held_by=worker if epoch else "")
        if len(self._going) > MOST_LEAVING:
            self._going.popitem(last=False)

    def part(self, hello: Hello, state: State) -> list[HotPrefix]:
        """What a worker that reports is to compute: its part for each that leaves its pool, once."""
        if state.phase is not Phase.READY:
            return []
        found: list[HotPrefix] = []
        for (pool, worker), leaving in self._going.items():
            if pool == hello.pool and leaving.copies and leaving.takes(hello):
                found += self._take(leaving, hello, worker)
        self._copied.inc(len(found))
        return found

    def _take(self, leaving: _Leaving, hello: Hello, worker: str) -> list[HotPrefix]:
        if self._clock() > leaving.until:
            leaving.copies = []
            return []
        left = max(1, len(self._staying(hello.pool) - leaving.told))
        number = -(-len(leaving.copies) // left)
        taken, leaving.copies = leaving.copies[:number], leaving.copies[number:]
        leaving.told.add(hello.worker)
        logger.info(
            "worker is told of what a leaving one alone held for contracts",
            extra={"worker": hello.worker, "leaving": worker, "prefixes": len(taken)},
        )
        return taken

    def _staying(self, pool: str) -> set[str]:
        return self._ready(pool) - {worker for of, worker in self._going if of == pool}

    def _alone(self, hello: Hello, model: str, promised: dict[TenantId, int], *, held_by: str) -> list[HotPrefix]:
        """The promised prefixes that no worker holds which stays, hottest first; those of one worker where it is named,
        as nobody knows any more what a lost one held.
        """
        contract, staying = hello.contract.fingerprint(), {f"{hello.pool}/{name}" for name in self._staying(hello.pool)}

        def serves(line: Line) -> bool:
            return (line.model, line.contract) == (model, contract) and line.tenant in promised

        def lost(first: bytes, last: bytes) -> bool:
            holders = {one.rpartition("#")[0] for one in self._holders.of(model, first, last)}
            return holders.isdisjoint(staying) and (not held_by or f"{hello.pool}/{held_by}" in holders)

        rate = self._rate(hello.pool)
        bound = round(rate * LEAVE_SECONDS) if rate else UNMEASURED_TOKENS
        tokens = min(sum(promised.values()), bound)
        return self._hot.hottest(serves, self._clock(), tokens=tokens, most=MOST_COPIED, promised=promised, wanted=lost)
