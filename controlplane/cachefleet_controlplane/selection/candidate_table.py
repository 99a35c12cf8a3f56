"""The candidates of one fleet as rows of load, kept between decisions and updated only where something has changed.

Importing this module needs ``cachefleet_native``.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import Final

import cachefleet_native
from msgspec import Struct
from msgspec.structs import replace

from cachefleet_controlplane.index.block_index import native_rules
from cachefleet_controlplane.index.worker_id import WorkerId
from cachefleet_controlplane.routing.decision import CandidateView, Prompt
from cachefleet_controlplane.routing.prompt_blocks import Cached
from cachefleet_controlplane.routing.throughput import Throughput, Throughputs
from cachefleet_controlplane.routing.worth import UNLEARNT
from cachefleet_controlplane.selection.selection import NO_ONE, eligible, percents, preference
from cachefleet_controlplane.workers.inflight import UNCACHED_WORK_SECONDS
from cachefleet_controlplane.workers.load import blank_blocks
from cachefleet_controlplane.workers.pool import Pool
from cachefleet_controlplane.workers.worker import Worker

EARLY_SECONDS: Final = 1e-6
"""How much earlier than computed a row is updated: sums of times are not exact."""
_version = attrgetter("version")


class NotScorableError(ValueError):
    """A worker reports load that native code does not accept."""


class Row(Struct, frozen=True):
    """A candidate without a prompt."""

    view: CandidateView
    reported_at: float | None
    """When the report came by which its blocks are known; None where they are not."""

    @classmethod
    def of(cls, worker: Worker, asked: Prompt, now: float, *, percent: int, weighed: bool = True) -> Row:
        """The row of a worker, of whose blocks ``percent`` are to stay free, for prompts as ``asked``.

        ``weighed``: see ``CandidateTable``.
        """
        view = worker.candidate(asked, 0, now, percent=percent)
        if not weighed:
            view = replace(view, worth=UNLEARNT)
        return cls(view, worker.load.at if worker.load and view.report_age is not None else None)

    def busy(self, worker: Worker, now: float, *, percent: int) -> Row:
        """The row after requests in flight have changed, and nothing else."""
        own, load = worker.inflight_requests, worker.known_load(now)
        view = replace(
            self.view,
            inflight_tokens=own.tokens(now),
            last_used=worker.last_used,
            requests=(load.others_requests if load else 0) + own.sequences,
        )
        if load is not None and (room := worker.room(now, percent=percent)) is not None:
            view = replace(
                view,
                blocks_total=room.total,
                blocks_free=room.free,
                blocks_reserved=room.reserve,
                blocks_idle=room.idle,
                blocks_used=room.used,
                blocks_blank=blank_blocks(load, own),
            )
        return Row(view, self.reported_at)

    @property
    def certain_room(self) -> float:
        """The largest request, in blocks, that has room there whatever is cached of it."""
        view = self.view
        if view.stale or view.blocks_free is None or view.blocks_total is None:
            return float("inf")
        return min(view.blocks_free, view.blocks_total) if view.requests else view.blocks_total

    def cached(self, *, matched: int, loadable: int, sent: int, now: float) -> Cached:
        """What of a prompt is cached there: ``matched`` blocks in the index, ``sent`` blocks just sent there,
        ``loadable`` ones below the device.
        """
        if self.reported_at is None:
            return Cached(0, 0, sent, None)
        return Cached(matched, loadable, sent, now - self.reported_at)


class CandidateTable:
    """The candidates of a fleet's pools for requests of one adapter, or of none.

    Made again where the pools or the eligible workers change.

    ``weighed``: with what work and evictions cost others, as the pools have learnt. NotScorableError: native code
    cannot score them.
    """

    def __init__(self, pools: Sequence[Pool], now: float, adapter: str = "", *, weighed: bool = True) -> None:
        self._asked, self._weighed = Prompt(adapter=adapter), weighed
        self._workers = [worker for pool in pools for worker in pool.workers.values()]
        self.versions = list(map(_version, self._workers))
        self._standings = [worker.standing for worker in self._workers]
        self.changes = 0
        """How often a worker's standing has changed."""
        self._followed_at = now
        self._preferences = [preference(worker, now) for worker in self._workers]
        self._until = [self._due(member, now) for member in range(len(self._workers))]
        self.candidates = eligible(pools, NO_ONE, now)
        self._places: dict[WorkerId, int] = {worker.id: place for place, worker in enumerate(self.candidates)}
        self._percents = percents(pools)
        self.rows = tuple(self._row(worker, now) for worker in self.candidates)
        self._rooms = [row.certain_room for row in self.rows]
        self.throughputs: list[Throughput] = []
        rules = native_rules([worker.rule for worker in self.candidates])
        self.unpack = struct.Struct(f"<{len(self.candidates)}I").unpack
        """Reads what native code says of each candidate."""
        self.names = cachefleet_native.Candidates([worker.id for worker in self.candidates], rules)
        self.loads = cachefleet_native.Loads(len(self.candidates))
        self._learn()
        self._sum_up(reported=True)

    def follow(self, now: float) -> bool:
        """Update rows that have changed; False where a new table is needed."""
        versions = list(map(_version, self._workers))
        if versions == self.versions and now < self._next:
            self._followed_at = now
            return True
        moved, busy = self._changed(versions, now)
        self.versions = versions
        if any(preference(self._workers[member], now) != self._preferences[member] for member in moved):
            return False
        self._update(moved, busy, now)
        return True

    def _changed(self, versions: Sequence[int], now: float) -> tuple[list[int], list[int]]:
        """Members whose standing has changed or may have, and others of these ``versions`` that have changed."""
        due = [member for member, until in enumerate(self._until) if now >= until] if now >= self._next else []
        moved, busy = dict.fromkeys(due), list[int]()
        for member, (version, before) in enumerate(zip(versions, self.versions, strict=True)):
            if version == before:
                continue
            if (standing := self._workers[member].standing) != self._standings[member]:
                self._standings[member], moved[member] = standing, None
                self.changes += 1
            elif member not in moved:
                busy.append(member)
        return [*moved], busy

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
        return [place for place, room in enumerate(self._rooms) if needed > room]

    def _row(self, worker: Worker, now: float) -> Row:
        return Row.of(worker, self._asked, now, percent=self._percents[worker.pool], weighed=self._weighed)

    def _update(self, moved: Sequence[int], busy: Sequence[int], now: float) -> None:
        """Make the rows of ``moved`` workers anew; of ``busy`` ones only the requests in flight have changed."""
        rows, places, in_flight, measured = list(self.rows), list[int](), list[int](), False
        for member in moved:
            self._until[member] = self._due(member, now)
            worker = self._workers[member]
            if (place := self._places.get(worker.id)) is not None:
                places.append(place)
                row, before = self._row(worker, now), rows[place]
                rows[place], measured = row, measured or _measured(before.view) != _measured(row.view)
        for member in busy:
            # At the latest when a request begun since the last time stops counting as work.
            latest = self._followed_at + UNCACHED_WORK_SECONDS - EARLY_SECONDS
            self._until[member] = min(self._until[member], latest)
            worker = self._workers[member]
            if (place := self._places.get(worker.id)) is not None:
                in_flight.append(place)
                rows[place] = rows[place].busy(worker, now, percent=self._percents[worker.pool])
        self.rows, self._followed_at = tuple(rows), now
        for place in (*places, *in_flight):
            self._rooms[place] = rows[place].certain_room
        if measured:
            self._learn()
        else:
            self._tell(places, in_flight)
        self._sum_up(reported=bool(moved))

    def _tell(self, places: Iterable[int], in_flight: Iterable[int]) -> None:
        """Pass rows to native code; of those ``in_flight`` nothing else has changed. NotScorableError."""
        try:
            for place in places:
                self._set(place)
            for place in in_flight:
                self._set_in_flight(place)
        except (ValueError, OverflowError) as error:
            raise NotScorableError(str(error)) from error

    def _learn(self) -> None:
        """Pass all rows to native code: throughputs depend on all of them."""
        views = [row.view for row in self.rows]
        throughputs = Throughputs.learn(views)
        self.throughputs = [throughputs.of(view) for view in views]
        self._tell(range(len(views)), ())

    def _set(self, place: int) -> None:
        view, throughput = self.rows[place].view, self.throughputs[place]
        delayed, standing = view.worth.delays(throughput.token_seconds)
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

    def _set_in_flight(self, place: int) -> None:
        view = self.rows[place].view
        self.loads.set_in_flight(
            place,
            inflight_tokens=view.inflight_tokens,
            blocks_free=view.blocks_free,
            blocks_blank=view.blocks_blank,
            requests=view.requests,
            last_used=view.last_used,
        )

    def _sum_up(self, *, reported: bool) -> None:
        """``reported``: not only requests in flight have changed, which say nothing of who has a fresh report."""
        if reported:
            self.any_fresh = not all(row.view.stale for row in self.rows)
        self._least_room = min(self._rooms, default=float("inf")) if self.any_fresh else float("inf")
        self._next = min(self._until, default=float("inf"))

    def _due(self, member: int, now: float) -> float:
        """When time alone may change this worker's row, less EARLY_SECONDS."""
        coming = (due - EARLY_SECONDS for due in self._workers[member].due() if due + EARLY_SECONDS > now)
        return min(coming, default=float("inf"))


def _measured(view: CandidateView) -> tuple[object, ...]:
    return view.tokens_per_second, view.inter_token_seconds, view.batched_tokens, view.loaded_per_second
