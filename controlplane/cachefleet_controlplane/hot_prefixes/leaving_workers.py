"""Has workers that stay compute what a draining one alone holds for tenants with cache contracts, before it is gone.

Once in each drain the hottest prefixes of such tenants are taken that no other worker holds, within the tenants' shares
of one worker's budget and what a worker computes in LEAVE_SECONDS. Ready workers of the pool share them: each is told
of its part with its next State, as of hot prefixes; it goes on taking traffic. What nobody took after LEAVE_SECONDS is
dropped. Every replica of the control plane tells what it knows.
"""

from __future__ import annotations

import logging
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

logger = logging.getLogger(__name__)

LEAVE_SECONDS: Final = 15.0
"""How long one worker may compute for that, at the pace of the workers there are; a drain has that much at least."""
UNMEASURED_TOKENS: Final = 16_384
"""Token bound where no worker has reported a prefill rate."""
MOST_LEAVING: Final = 256
"""Drains that are remembered."""
MOST_COPIED: Final = 256
"""Prefixes of one drain: the protocol's bound of one frame."""


class Holders(Protocol):
    """What is needed of ``fleet.BlockHolders``."""

    def of(self, model: str, first: bytes, last: bytes) -> Sequence[WorkerId]:
        """The workers of a model that hold both blocks."""
        ...


@dataclass(slots=True)
class _Drain:
    epoch: str
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
        self._drains: OrderedDict[tuple[str, str], _Drain] = OrderedDict()
        self._copied = Counter(
            "cachefleet_contract_copied_prefixes",
            "Prefixes of tenants with cache contracts that workers were told of as another one drained",
            registry=metrics.registry,
        )

    def drains(self, hello: Hello, state: State, *, model: str, promised: dict[TenantId, int]) -> None:
        """Note what a worker reports: a drain that begins, or one that is over; ``promised`` tokens by tenant."""
        name, now = (hello.pool, hello.worker), self._clock()
        known = self._drains.get(name)
        if state.phase is not Phase.DRAINING:
            self._drains.pop(name, None)
        elif known is None or known.epoch != hello.epoch:
            self._drains[name] = drain = _Drain(hello.epoch, hello.contract.fingerprint(), now + LEAVE_SECONDS, [])
            drain.copies = self._alone(hello, model, promised, now)
            if len(self._drains) > MOST_LEAVING:
                self._drains.popitem(last=False)

    def part(self, hello: Hello, state: State) -> list[HotPrefix]:
        """What a worker that reports is to compute: its part of each drain in its pool, once."""
        if state.phase is not Phase.READY:
            return []
        found: list[HotPrefix] = []
        for (pool, leaving), drain in self._drains.items():
            if pool == hello.pool and drain.copies and drain.takes(hello):
                found += self._take(drain, hello, leaving)
        self._copied.inc(len(found))
        return found

    def _take(self, drain: _Drain, hello: Hello, leaving: str) -> list[HotPrefix]:
        if self._clock() > drain.until:
            drain.copies = []
            return []
        going = {worker for pool, worker in self._drains if pool == hello.pool}
        left = max(1, len(self._ready(hello.pool) - going - drain.told))
        number = -(-len(drain.copies) // left)
        taken, drain.copies = drain.copies[:number], drain.copies[number:]
        drain.told.add(hello.worker)
        logger.info(
            "worker is told of what a draining one alone holds for contracts",
            extra={"worker": hello.worker, "draining": leaving, "prefixes": len(taken)},
        )
        return taken

    def _alone(self, hello: Hello, model: str, promised: dict[TenantId, int], now: float) -> list[HotPrefix]:
        """The promised prefixes that only draining workers hold, this one among them; hottest first."""
        contract, going = hello.contract.fingerprint(), {f"{pool}/{worker}" for pool, worker in self._drains}

        def serves(line: Line) -> bool:
            return (line.model, line.contract) == (model, contract) and line.tenant in promised

        def lost(first: bytes, last: bytes) -> bool:
            holders = {one.rpartition("#")[0] for one in self._holders.of(model, first, last)}
            return f"{hello.pool}/{hello.worker}" in holders and holders <= going

        rate = self._rate(hello.pool)
        bound = round(rate * LEAVE_SECONDS) if rate else UNMEASURED_TOKENS
        tokens = min(sum(promised.values()), bound)
        return self._hot.hottest(serves, now, tokens=tokens, most=MOST_COPIED, promised=promised, wanted=lost)
