"""Keeps what the control plane knows of every pool, and says when that is worth another look."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import msgspec

from cachefleet_core.pool.spec import PrefixCachePool
from cachefleet_operator.controlplane.client import FactsSource, NoControlPlane
from cachefleet_operator.controlplane.facts import Contract, Facts, essence
from cachefleet_operator.controlplane.fleets import Fleets, disagreement
from cachefleet_operator.reasons import Reason

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PollTimes:
    """All in seconds."""

    every: float = 5.0
    """Between two rounds."""
    answer: float = 2.0
    """That one answer may take."""
    keep: float = 15.0
    """That an answer counts when none follows."""
    leisure: float = 30.0
    """That changes of figures wait."""
    at_once: int = 8
    """Pools asked about at the same time in a round; not seconds."""


@dataclass(frozen=True, slots=True)
class CachedFacts:
    """Facts, when somebody last knew them, and which were told of when."""

    facts: Facts
    known_at: float
    told: Facts
    told_at: float
    measured_at: float
    """When somebody last had a hit ratio."""


class FactsCache:
    """For one term. ``enqueue`` is called with the keys of pools that should be looked at."""

    def __init__(
        self,
        source: FactsSource,
        *,
        times: PollTimes | None = None,
        enqueue: Callable[[str], None],
        clock: Callable[[], float],
    ) -> None:
        self._source = source
        self._times = times or PollTimes()
        self._enqueue = enqueue
        self._clock = clock
        self._fleets = Fleets()
        self._seen: dict[str, CachedFacts] = {}
        self._silence: tuple[Facts, float] | None = None
        """The last answer that was none, and until when it counts for every pool that nobody asked about yet."""

    async def run(self) -> None:
        """Ask about every pool, again and again."""
        while True:
            await asyncio.sleep(self._times.every)
            await self.round()

    async def round(self) -> None:
        """Ask about every pool once."""
        keys = iter(tuple(self._seen))
        await asyncio.gather(*(self._look_at(keys) for _ in range(self._times.at_once)))

    async def facts(self, key: str) -> Facts:
        """What is known of a pool; asked for where nobody asked yet."""
        if key not in self._seen:
            self._note(key, self._silent() or await self._ask(key), told=True)
        return self._seen[key].facts

    async def fresh(self, key: str) -> Facts:
        """What is known of a pool right now; what was known before where nobody answers in time."""
        self._note(key, self._silent() or await self._ask(key), told=False)
        return self._seen[key].facts

    def pools(self) -> set[str]:
        """The keys of all that something is known or noted of."""
        return self._seen.keys() | self._fleets.keys()

    def note(self, pool: PrefixCachePool) -> None:
        """There is a pool that says this."""
        for other in self._fleets.put(pool):
            self._enqueue(other)

    def drop(self, key: str) -> None:
        """There is no such pool, or nobody can read it."""
        self._seen.pop(key, None)
        for other in self._fleets.drop(key):
            self._enqueue(other)

    def disagreement(self, key: str) -> str:
        """How a pool differs from another of its fleet, "" where it does not."""
        mine = self._fleets.get(key)
        if mine is None:
            return ""
        others = ((other, self._contract(other.key)) for other in self._fleets.beside(key))
        return disagreement(mine, others, self._contract(key))

    def _contract(self, key: str) -> Contract | None:
        seen = self._seen.get(key)
        return seen.facts.known.contract if seen and seen.facts.known else None

    async def _ask(self, key: str) -> Facts:
        answer = await self._source.ask(key, seconds=self._times.answer)
        silent = answer.reason is Reason.CONTROL_PLANE_UNREACHABLE
        self._silence = (answer, self._clock() + self._times.every) if silent else None
        return answer

    def _silent(self) -> Facts | None:
        """Where nobody answered a moment ago, no pool waits to find out for itself."""
        return self._silence[0] if self._silence and self._clock() < self._silence[1] else None

    async def _look_at(self, keys: Iterator[str]) -> None:
        for key in keys:
            await self._look(key)

    async def _look(self, key: str) -> None:
        answer = await self._ask(key)
        if key not in self._seen:
            return  # dropped meanwhile
        before = self._contract(key)
        self._note(key, answer, told=False)
        seen, now = self._seen[key], self._clock()
        if self._contract(key) != before:
            for other in self._fleets.beside(key):
                self._enqueue(other.key)
        at_once = essence(seen.facts) != essence(seen.told)
        if at_once or (seen.facts != seen.told and now - seen.told_at >= self._times.leisure):
            self._seen[key] = replace(seen, told=seen.facts, told_at=now)
            self._enqueue(key)

    def _note(self, key: str, answer: Facts, *, told: bool) -> None:
        old, now = self._seen.get(key), self._clock()
        if old and answer.known is None and old.facts.known and now - old.known_at < self._times.keep:
            return  # one silence is not the end of what was known
        measured_at = now if old is None or _measured(answer) else old.measured_at
        if old and now - measured_at < self._times.keep:
            answer = _with_ratio(answer, old.facts)
        known_at = now if answer.known else old.known_at if old else now
        if told or old is None:
            self._seen[key] = CachedFacts(answer, known_at, answer, now, measured_at)
        else:
            self._seen[key] = CachedFacts(answer, known_at, old.told, old.told_at, measured_at)


def _measured(facts: Facts) -> bool:
    return facts.known is not None and facts.known.hit_ratio.value is not None


def _with_ratio(answer: Facts, before: Facts) -> Facts:
    """The hit ratio as it was where this replica of the control plane has none: one that has just started knows of
    nothing before, and the next question may go to another.
    """
    if answer.known is None or before.known is None or _measured(answer):
        return answer
    return replace(answer, known=msgspec.structs.replace(answer.known, hit_ratio=before.known.hit_ratio))


def nobody() -> FactsCache:
    """A lookout over nothing, for tests and for one pass."""
    return FactsCache(NoControlPlane(), enqueue=lambda _key: None, clock=lambda: 0.0)
