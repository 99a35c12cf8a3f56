"""Polls the control plane for facts of every pool, caches them, and queues pools whose facts changed."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import msgspec

from cachefleet_core.fleet_status.pool_facts import ContractFacts
from cachefleet_core.pool.model_names import Claim, NameConflict, NameRules, claim_in
from cachefleet_core.pool.spec import PrefixCachePool
from cachefleet_operator.controlplane_client.client import FactsSource, NoControlPlane
from cachefleet_operator.controlplane_client.fleets import Fleets, disagreement
from cachefleet_operator.controlplane_client.name_claims import NameClaims
from cachefleet_operator.controlplane_client.pool_facts import Facts, essence, figures
from cachefleet_operator.reasons import Reason

log = logging.getLogger(__name__)

AT_ONCE: Final = 8
"""Concurrent requests of a poll."""


@dataclass(frozen=True, slots=True)
class PollTimes:
    """Intervals and timeouts of polling, in seconds."""

    every: float = 5.0
    """Between two polls of all pools."""
    timeout: float = 2.0
    """Timeout of one request."""
    keep: float = 15.0
    """How long an answer counts when later requests fail."""
    figures_every: float = 30.0
    """Pause between reconciliations for changes of figures alone."""
    at_once: int = AT_ONCE
    """Concurrent requests of a poll; not seconds."""


@dataclass(frozen=True, slots=True)
class CachedFacts:
    """Facts of a pool, when they were last known, and which of them were last reconciled when (clock seconds)."""

    facts: Facts
    known_at: float
    reconciled: Facts
    reconciled_at: float
    measured_at: float
    """When an answer last had a hit ratio."""


class FactsCache:
    """Facts of all pools, for one term of leadership. ``enqueue`` is called with the keys of pools to reconcile."""

    def __init__(
        self,
        source: FactsSource,
        *,
        times: PollTimes | None = None,
        enqueue: Callable[[str], None],
        clock: Callable[[], float],
        name_rules: NameRules | None = None,
    ) -> None:
        self._source = source
        self._times = times or PollTimes()
        self._enqueue = enqueue
        self._clock = clock
        self._fleets = Fleets()
        self._names = NameClaims(name_rules)
        self._seen: dict[str, CachedFacts] = {}
        self._silence: tuple[Facts, float] | None = None
        """The last failed answer, and until when other pools are given it instead of a request."""

    async def run(self) -> None:
        """Poll all cached pools until cancelled."""
        while True:
            await asyncio.sleep(self._times.every)
            await self.round()

    async def round(self) -> None:
        """Request the facts of every cached pool once, ``at_once`` at a time."""
        keys = iter(tuple(self._seen))
        await asyncio.gather(*(self._look_at(keys) for _ in range(self._times.at_once)))

    async def facts(self, key: str) -> Facts:
        """Cached facts of a pool; requested where there are none."""
        if key not in self._seen:
            self._note(key, self._silent() or await self._ask(key), reconciled=True)
        return self._seen[key].facts

    async def fresh(self, key: str) -> Facts:
        """Facts of a pool requested now; the cached ones where no answer comes in time."""
        self._note(key, self._silent() or await self._ask(key), reconciled=False)
        return self._seen[key].facts

    def pools(self) -> set[str]:
        """Keys of all pools with cached facts, a noted spec or a claim to a name."""
        return self._seen.keys() | self._fleets.keys() | self._names.keys()

    def note(self, pool: PrefixCachePool) -> None:
        """Note a pool; queues the others of its fleet, and those that declare its name, where what concerns them
        changed.
        """
        for other in {*self._fleets.put(pool), *self._names.put(pool)}:
            self._enqueue(other)

    def drop(self, key: str, left: Mapping[str, Any] | None = None) -> None:
        """Forget a pool that is gone, or that is ``left`` to another operator, but for its claim to a name; queues the
        others of its fleet and those that declare its name.
        """
        self._seen.pop(key, None)
        self._forget(key, None if left is None else claim_in(left))

    def unread(self, key: str, document: Mapping[str, Any]) -> None:
        """Forget the spec of a pool that cannot be read, but for its claim to a name; queues those that ``drop`` does.

        Facts of its workers are kept: they go on.
        """
        self._forget(key, claim_in(document))

    def _forget(self, key: str, claim: Claim | None) -> None:
        named = self._names.put_claim(claim) if claim else self._names.drop(key)
        for other in {*self._fleets.drop(key), *named}:
            self._enqueue(other)

    def name_conflict(self, key: str) -> NameConflict | None:
        """Why a pool's model is not asked for by its name alone; None where it is."""
        return self._names.conflict(key)

    def disagreement(self, key: str) -> str:
        """How a pool differs from another of its fleet, "" where it does not."""
        mine = self._fleets.get(key)
        if mine is None:
            return ""
        others = ((other, self._contract(other.key)) for other in self._fleets.beside(key))
        return disagreement(mine, others, self._contract(key))

    def _contract(self, key: str) -> ContractFacts | None:
        seen = self._seen.get(key)
        return seen.facts.pool.contract if seen and seen.facts.pool else None

    async def _ask(self, key: str) -> Facts:
        answer = await self._source.ask(key, seconds=self._times.timeout)
        silent = answer.reason is Reason.CONTROL_PLANE_UNREACHABLE
        self._silence = (answer, self._clock() + self._times.every) if silent else None
        return answer

    def _silent(self) -> Facts | None:
        """The last failed answer while it is recent: no other pool then waits for a timeout of its own."""
        return self._silence[0] if self._silence and self._clock() < self._silence[1] else None

    async def _look_at(self, keys: Iterator[str]) -> None:
        for key in keys:
            await self._look(key)

    async def _look(self, key: str) -> None:
        answer = await self._ask(key)
        if key not in self._seen:
            return  # dropped meanwhile
        before = self._contract(key)
        self._note(key, answer, reconciled=False)
        seen, now = self._seen[key], self._clock()
        if self._contract(key) != before:
            for other in self._fleets.beside(key):
                self._enqueue(other.key)
        at_once = essence(seen.facts) != essence(seen.reconciled)
        moved = figures(seen.facts) != figures(seen.reconciled)
        if at_once or (moved and now - seen.reconciled_at >= self._times.figures_every):
            self._seen[key] = replace(seen, reconciled=seen.facts, reconciled_at=now)
            self._enqueue(key)

    def _note(self, key: str, answer: Facts, *, reconciled: bool) -> None:
        old, now = self._seen.get(key), self._clock()
        if old and answer.pool is None and old.facts.pool and now - old.known_at < self._times.keep:
            return  # one failed request does not discard what is known
        measured_at = now if old is None or _measured(answer) else old.measured_at
        if old and now - measured_at < self._times.keep:
            answer = _with_ratio(answer, old.facts)
        known_at = now if answer.pool else old.known_at if old else now
        if reconciled or old is None:
            self._seen[key] = CachedFacts(answer, known_at, answer, now, measured_at)
        else:
            self._seen[key] = CachedFacts(answer, known_at, old.reconciled, old.reconciled_at, measured_at)


def _measured(facts: Facts) -> bool:
    return facts.pool is not None and facts.pool.hit_ratio.value is not None and facts.pool.hit_ratio.sampled


def _with_ratio(answer: Facts, before: Facts) -> Facts:
    """Keep the previous hit ratio where the answer has none to judge by: a replica may have just started."""
    if answer.pool is None or before.pool is None or _measured(answer) or not _measured(before):
        return answer
    return replace(answer, pool=msgspec.structs.replace(answer.pool, hit_ratio=before.pool.hit_ratio))


def no_facts() -> FactsCache:
    """A cache without a control plane, for tests and for a single pass."""
    return FactsCache(NoControlPlane(), enqueue=lambda _key: None, clock=lambda: 0.0)
