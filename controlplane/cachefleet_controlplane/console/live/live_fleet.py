"""The fleet's rows as HTML, rendered where they have changed, at most once a tick, for all who watch."""

from __future__ import annotations

import hashlib
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

import msgspec

from cachefleet_controlplane.console.live.fleet_rows import (
    FleetRow,
    PoolRow,
    WorkerRow,
    fleet_row,
    pool_row,
    worker_row,
)
from cachefleet_controlplane.console.live.token_rates import TokenRates
from cachefleet_controlplane.workers.views import FleetView
from cachefleet_core.fleet_status.worker_facts import WorkerFacts
from cachefleet_runtime.lru import LruMap

TICK_SECONDS: Final = 2.0
MAX_ENCODED: Final = 8
"""Answers that are kept for a tick: viewers that keep up share one, and name a version of their own otherwise."""

Row = FleetRow | PoolRow | WorkerRow
Render = Callable[[Row], str]


class ViewedFleet(Protocol):
    """What is needed of ``fleet.Fleet``."""

    def view(self) -> FleetView:
        """All pools and workers now."""
        ...


@dataclass(frozen=True, slots=True)
class _Shown:
    row: Row
    html: str
    version: int


class LiveFleet:
    """Nothing happens while nobody asks: whoever asks first in a tick has it made for all."""

    def __init__(self, fleet: ViewedFleet, render: Render, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._fleet = fleet
        self._render = render
        self._clock = clock
        self._made = float("-inf")
        self._rates: defaultdict[str, TokenRates] = defaultdict(TokenRates)
        self._shown: dict[str, _Shown] = {}
        self._encoded: LruMap[int, bytes] = LruMap(MAX_ENCODED)
        self.summary = FleetRow(policy="", pools=0, workers=0, ready=0, impaired=0, requests=0, waiting=0)
        self.pools: tuple[PoolRow, ...] = ()
        self.workers: tuple[WorkerRow, ...] = ()
        self.version = 0
        """Grows by one with every tick that is made."""
        self.shape = ""
        """Changes where pools or workers come or go, so that rows do not suffice."""

    def refresh(self) -> None:
        """Read the fleet anew, unless that was done in this tick."""
        now = self._clock()
        if now - self._made < TICK_SECONDS * 0.9:
            return
        self._made, self.version = now, self.version + 1
        self._read(self._fleet.view(), now)
        rows: tuple[Row, ...] = (self.summary, *self.pools, *self.workers)
        self._shown = {row.id: self._show(row) for row in rows}
        self.shape = hashlib.sha256("\n".join(self._shown).encode()).hexdigest()[:16]
        self._encoded.clear()

    def changes(self, since: int) -> bytes:
        """JSON of the rows that changed after version ``since``, as {id: html}; the same bytes for all who ask."""
        known = self._encoded.use(since)
        if known is None:
            rows = {name: shown.html for name, shown in self._shown.items() if shown.version > since}
            told = {"version": self.version, "shape": self.shape, "rows": rows}
            known = msgspec.json.encode(told)
            self._encoded.put(since, known)
        return known

    def html(self, row: Row) -> str:
        """A row as it was rendered last."""
        return self._shown[row.id].html

    def _read(self, view: FleetView, now: float) -> None:
        members: defaultdict[str, list[WorkerFacts]] = defaultdict(list)
        for worker in view.workers:
            members[worker.pool].append(worker)
        for pool in view.pools:
            loads = ((worker.id, worker.load) for worker in members[pool.key])
            counters = {name: (load.prefix_queries, load.prefix_hits) for name, load in loads if load}
            self._rates[pool.key].note(now, counters)
        for gone in self._rates.keys() - {pool.key for pool in view.pools}:
            del self._rates[gone]
        self.summary = fleet_row(view)
        self.pools = tuple(pool_row(one, members[one.key], self._rates[one.key].rates()) for one in view.pools)
        self.workers = tuple(worker_row(worker) for worker in view.workers)

    def _show(self, row: Row) -> _Shown:
        known = self._shown.get(row.id)
        return known if known and known.row == row else _Shown(row, str(self._render(row)), self.version)
