"""The candidates of one fleet as rows of load, kept between decisions and updated only where something has changed.

Importing this module needs ``cachefleet_native``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Final

import cachefleet_native

from cachefleet_controlplane.index.native_index import native_rules
from cachefleet_controlplane.index.protocol import WorkerId
from cachefleet_controlplane.routing.decision import CandidateView, Prompt
from cachefleet_controlplane.routing.throughput import Throughput, Throughputs
from cachefleet_controlplane.selection.selection import NO_ONE, eligible, percents, preference
from cachefleet_controlplane.workers.pool import Pool
from cachefleet_controlplane.workers.worker import Worker

EARLY_SECONDS: Final = 1e-6
"""How much earlier than computed a row is updated: sums of times are not exact."""
_version = attrgetter("version")


class NotScorableError(ValueError):
    """A worker reports load that native code does not accept."""


@dataclass(frozen=True, slots=True)
class Row:
    """A candidate without a prompt."""

    view: CandidateView
    reported_at: float | None
    """When the report came by which its blocks are known; None where they are not."""

    @classmethod
    def of(cls, worker: Worker, asked: Prompt, now: float, *, percent: int) -> Row:
        """The row of a worker, of whose blocks ``percent`` are to stay free, for prompts as ``asked``."""
        view = worker.candidate(asked, 0, now, percent=percent)
        return cls(view, worker.load.at if worker.load and view.report_age is not None else None)

    @property
    def certain_room(self) -> float:
        """The largest request, in blocks, that has room there whatever is cached of it."""
        view = self.view
        if view.stale or view.blocks_free is None or view.blocks_total is None:
            return float("inf")
        return min(view.blocks_free, view.blocks_total) if view.requests else view.blocks_total

    def seen(self, *, matched: int, loadable: int, sent: int, now: float) -> CandidateView:
        """This row as a candidate for one prompt: ``matched`` blocks in the index, ``sent`` blocks just sent there,
        ``loadable`` ones below the device.
        """
        known = self.reported_at is not None
        age = None if self.reported_at is None else now - self.reported_at
        matched, loadable = (matched, loadable) if known else (0, 0)
        return replace(self.view, matched_blocks=matched, loadable_blocks=loadable, sent_blocks=sent, report_age=age)


class CandidateTable:
    """The candidates of a fleet's pools for requests of one adapter, or of none.

    Made again where the pools or the eligible workers change.

    UnreckonableError: native code cannot score them.
    """

    def __init__(self, pools: Sequence[Pool], now: float, adapter: str = "") -> None:
        self._asked = Prompt(adapter=adapter)
        self._workers = [worker for pool in pools for worker in pool.workers.values()]
        self._versions = list(map(_version, self._workers))
        self._preferences = [preference(worker, now) for worker in self._workers]
        self._until = [self._due(member, now) for member in range(len(self._workers))]
        self.candidates = eligible(pools, NO_ONE, now)
        self._places: dict[WorkerId, int] = {worker.id: place for place, worker in enumerate(self.candidates)}
        self._percents = percents(pools)
        self.rows = tuple(self._row(worker, now) for worker in self.candidates)
        self.throughputs: list[Throughput] = []
        rules = native_rules([worker.rule for worker in self.candidates])
        self.names = cachefleet_native.Candidates([worker.id for worker in self.candidates], rules)
        self.loads = cachefleet_native.Loads(len(self.candidates))
        self._learn(range(len(self.candidates)))
        self._sum_up()

    def follow(self, now: float) -> bool:
        """Update rows that have changed; False where a new table is needed."""
        versions = list(map(_version, self._workers))
        if versions == self._versions and now < self._next:
            return True
        moved = [
            member
            for member, version in enumerate(versions)
            if version != self._versions[member] or now >= self._until[member]
        ]
        self._versions = versions
        if any(preference(self._workers[member], now) != self._preferences[member] for member in moved):
            return False
        self._update(moved, now)
        return True

    def sent(self, keys: bytes, now: float) -> list[tuple[int, int]]:
        """Rows that were just sent a prefix of this prompt, and how many blocks of it."""
        return [
            (place, blocks)
            for place, worker in enumerate(self.candidates)
            if worker.inflight_requests.recent
            and (blocks := worker.inflight_requests.match(keys, now, whole=bool(worker.rule.windows)))
        ]

    def strained(self, needed: int) -> list[int]:
        """Rows that may have no room for a request of so many blocks."""
        if needed <= self._least_room:
            return []
        return [place for place, row in enumerate(self.rows) if needed > row.certain_room]

    def _row(self, worker: Worker, now: float) -> Row:
        return Row.of(worker, self._asked, now, percent=self._percents[worker.pool])

    def _update(self, members: Sequence[int], now: float) -> None:
        rows, places = list(self.rows), []
        for member in members:
            self._until[member] = self._due(member, now)
            worker = self._workers[member]
            place = self._places.get(worker.id)
            if place is not None:
                places.append(place)
                rows[place] = self._row(worker, now)
        before, self.rows = self.rows, tuple(rows)
        measured = any(_measured(before[place].view) != _measured(rows[place].view) for place in places)
        self._learn(range(len(rows)) if measured else places)
        self._sum_up()

    def _learn(self, places: Sequence[int]) -> None:
        """Pass these rows to native code; throughputs depend on all rows."""
        if len(places) == len(self.rows):
            views = [row.view for row in self.rows]
            throughputs = Throughputs.learn(views)
            self.throughputs = [throughputs.of(view) for view in views]
        for place in places:
            self._set(place)

    def _set(self, place: int) -> None:
        view, throughput = self.rows[place].view, self.throughputs[place]
        delayed, standing = view.worth.delays(throughput.token_seconds)
        try:
            self.loads.set(
                place,
                tokens_per_second=throughput.tokens_per_second,
                inter_token_seconds=throughput.inter_token_seconds,
                batched_tokens=throughput.batched_tokens,
                stale=view.stale,
                queued_tokens=view.queued_tokens,
                inflight_tokens=view.inflight_tokens,
                blocks_free=view.blocks_free,
                blocks_blank=view.blocks_blank,
                requests=view.requests,
                last_used=view.last_used,
                trust=view.trust,
                eviction=view.worth.eviction,
                delayed=delayed,
                standing=standing,
                loaded_per_second=throughput.loaded_per_second,
                adapter_seconds=view.adapter_seconds,
            )
        except (ValueError, OverflowError) as error:
            raise NotScorableError(str(error)) from error

    def _sum_up(self) -> None:
        self._least_room = min((row.certain_room for row in self.rows), default=float("inf"))
        self.any_fresh = not all(row.view.stale for row in self.rows)
        self._next = min(self._until, default=float("inf"))

    def _due(self, member: int, now: float) -> float:
        """When time alone may change this worker's row, less EARLY_SECONDS."""
        coming = (due - EARLY_SECONDS for due in self._workers[member].due() if due + EARLY_SECONDS > now)
        return min(coming, default=float("inf"))


def _measured(view: CandidateView) -> tuple[object, ...]:
    return view.tokens_per_second, view.inter_token_seconds, view.batched_tokens, view.loaded_per_second
