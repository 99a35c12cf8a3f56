"""The candidates of one fleet with their loads, kept between decisions and updated only where something has changed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cached_property
from itertools import compress
from operator import attrgetter, ne
from typing import Final

import cachefleet_native

from cachefleet_controlplane.index.block_index import native_rules
from cachefleet_controlplane.index.worker_id import WorkerId
from cachefleet_controlplane.pools.source import WorkerEndpoint
from cachefleet_controlplane.routing.worth import UNLEARNT
from cachefleet_controlplane.selection.eligibility import NO_ONE, eligible, percents, preference
from cachefleet_controlplane.workers.inflight import UNCACHED_WORK_SECONDS
from cachefleet_controlplane.workers.load import blank_blocks
from cachefleet_controlplane.workers.pool import Pool
from cachefleet_controlplane.workers.worker import Worker

EARLY_SECONDS: Final = 1e-6
"""How much earlier than computed a load is updated: sums of times are not exact."""
_version = attrgetter("version")


class CandidateTable:
    """The candidates of a fleet's pools for requests of one adapter, or of none.

    Made again where the pools or the eligible workers change. Workers that lack the adapter ``needed`` are left out, as
    are those in ``exclude``, by full name or id. ``weighed``: with what work and evictions cost others, as the pools
    have learnt.
    """

    def __init__(
        self,
        pools: Sequence[Pool],
        now: float,
        adapter: str = "",
        *,
        needed: str = "",
        exclude: frozenset[str] = NO_ONE,
        weighed: bool = True,
    ) -> None:
        self._adapter, self._needed, self._weighed = adapter, needed, weighed
        self._workers = [worker for pool in pools for worker in pool.workers.values()]
        self._versions = list(map(_version, self._workers))
        self._standings = [worker.standing for worker in self._workers]
        self.changes = 0
        """How often a worker's standing has changed."""
        self.epochs_followed = -1
        """The ``changes`` when texts of older epochs were dropped last: ``text_selector``."""
        self.failing: Sequence[Worker] = ()
        """Candidates of which no text is kept until they answer: ``text_selector``."""
        self._followed_at = now
        self._preferences = [preference(worker, now, needed) for worker in self._workers]
        self._until = [self._due(member, now) for member in range(len(self._workers))]
        self._next = min(self._until, default=float("inf"))
        self._percents = percents(pools)
        self.candidates = eligible(pools, exclude, now, needed)
        self._places: dict[WorkerId, int] = {worker.id: place for place, worker in enumerate(self.candidates)}
        self._recent: dict[int, Worker] = {}
        """Candidates to which prompts were sent of which blocks may be expected."""
        self.native = self._native()
        for place, worker in enumerate(self.candidates):
            self._set(place, worker, now)

    def follow(self, now: float) -> bool:
        """Update the loads that have changed; False where a new table is needed."""
        versions = list(map(_version, self._workers))
        if versions == self._versions and now < self._next:
            self._followed_at = now
            return True
        moved, busy = self._changed(versions, now)
        self._versions = versions
        if any(preference(self._workers[each], now, self._needed) != self._preferences[each] for each in moved):
            return False
        self._update(moved, busy, now)
        return True

    def sent(self, keys: bytes, now: float) -> list[tuple[int, int]]:
        """Candidates that were just sent a prefix of this prompt, and how many blocks of it."""
        self._recent = {place: worker for place, worker in self._recent.items() if worker.inflight_requests.recent}
        return [
            (place, blocks)
            for place, worker in self._recent.items()
            if (blocks := worker.inflight_requests.match(keys, now, whole=bool(worker.rule.windows)))
        ]

    def places(self, blocks: dict[WorkerId, int]) -> list[tuple[int, int]]:
        """Numbers of blocks by candidate; those of other workers are left out."""
        return [(self._places[worker], count) for worker, count in blocks.items() if worker in self._places]

    def named(self, names: Iterable[str]) -> list[int]:
        """The candidates with these full names or ids."""
        return [*{place for name in names for place in self._by_name.get(name, ())}]

    def least_busy(self, count: int | None = None, *, first: str = "") -> list[WorkerEndpoint]:
        """At most ``count`` endpoints: the one at the URL ``first``, then those with the fewest requests."""
        count = len(self.candidates) if count is None else count
        places = [*self._by_url.get(first, ()), *self.native.least_busy(count * self._ranks)]
        endpoints = (self.candidates[place].endpoint for place in places)
        return list(dict.fromkeys(endpoint for endpoint in endpoints if endpoint))[:count]

    @cached_property
    def _ranks(self) -> int:
        """The most candidates at one endpoint."""
        return max(Counter(worker.full_name for worker in self.candidates).values(), default=1)

    @cached_property
    def _by_name(self) -> dict[str, list[int]]:
        places: dict[str, list[int]] = {}
        for place, worker in enumerate(self.candidates):
            places.setdefault(worker.full_name, []).append(place)
            places[worker.id] = [place]
        return places

    @cached_property
    def _by_url(self) -> dict[str, list[int]]:
        return {worker.endpoint.url: [place] for place, worker in enumerate(self.candidates) if worker.endpoint}

    def _native(self) -> cachefleet_native.Candidates:
        rules = native_rules([worker.rule for worker in self.candidates])
        numbers = {pool: number for number, pool in enumerate(dict.fromkeys(one.pool for one in self.candidates))}
        pools = [numbers[worker.pool] for worker in self.candidates]
        return cachefleet_native.Candidates([worker.id for worker in self.candidates], rules, pools)

    def _changed(self, versions: Sequence[int], now: float) -> tuple[list[int], list[int]]:
        """Members whose standing has changed or may have, and others of these ``versions`` that have changed."""
        due = [member for member, until in enumerate(self._until) if now >= until] if now >= self._next else []
        moved, busy = dict.fromkeys(due), list[int]()
        for member in compress(range(len(versions)), map(ne, versions, self._versions)):
            if (standing := self._workers[member].standing) != self._standings[member]:
                self._standings[member], moved[member] = standing, None
                self.changes += 1
            elif member not in moved:
                busy.append(member)
        return [*moved], busy

    def _update(self, moved: Sequence[int], busy: Sequence[int], now: float) -> None:
        """Set the loads of ``moved`` workers; of ``busy`` ones only the requests in flight have changed."""
        for member in moved:
            self._until[member] = self._due(member, now)
            worker = self._workers[member]
            if (place := self._places.get(worker.id)) is not None:
                self._set(place, worker, now)
        for member in busy:
            # At the latest when a request begun since the last time stops counting as work.
            latest = self._followed_at + UNCACHED_WORK_SECONDS - EARLY_SECONDS
            self._until[member] = min(self._until[member], latest)
            worker = self._workers[member]
            if (place := self._places.get(worker.id)) is not None:
                self._set_in_flight(place, worker, now)
        self._followed_at = now
        self._next = min(self._until, default=float("inf"))

    def _set(self, place: int, worker: Worker, now: float) -> None:
        worth = worker.worth if self._weighed else UNLEARNT
        view = worker.candidate(self._adapter, now, percent=self._percents[worker.pool], worth=worth)
        self.native.set(place, view)
        if worker.inflight_requests.recent:
            self._recent[place] = worker

    def _set_in_flight(self, place: int, worker: Worker, now: float) -> None:
        own, load = worker.inflight_requests, worker.known_load(now)
        room = worker.room(now, percent=self._percents[worker.pool])
        self.native.set_in_flight(
            place,
            inflight_tokens=own.tokens(now),
            blocks_free=room.free if room else None,
            blocks_idle=room.idle if room else 0,
            blocks_blank=blank_blocks(load, own),
            requests=(load.others_requests if load else 0) + own.sequences,
            last_used=worker.last_used,
        )
        if own.recent:
            self._recent[place] = worker

    def _due(self, member: int, now: float) -> float:
        """When time alone may change what decisions see of this worker, less EARLY_SECONDS."""
        coming = (due - EARLY_SECONDS for due in self._workers[member].due() if due + EARLY_SECONDS > now)
        return min(coming, default=float("inf"))
