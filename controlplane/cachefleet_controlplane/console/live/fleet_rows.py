"""What is shown of pools and workers, as values that change only where a person would see it. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from cachefleet_controlplane.console.live.token_rates import Rates
from cachefleet_controlplane.workers.views import FleetView
from cachefleet_core.engine.suspensions import suspension_words
from cachefleet_core.fleet_status.pool_facts import PoolFacts
from cachefleet_core.fleet_status.worker_facts import WorkerFacts
from cachefleet_core.report_frames import Phase

MIB: Final = 1 << 20
_EPOCH: Final = 8
_MINUTE: Final = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolRow:
    """One pool; None is what nobody told."""

    id: str
    key: str
    model: str
    hit_ratio: float | None
    """In the window of its objective, rounded."""
    objective: float | None
    sampled: bool
    saved: float | None
    computed: float | None
    idle_mib: int | None
    """Idle cached blocks over all workers."""
    budget_mib: int
    running: int
    waiting: int
    workers: int
    ready: int
    impaired: int
    """Workers that get no or fewer requests than they could, or whose blocks are not counted."""

    @property
    def below(self) -> bool:
        """Whether its hit ratio is under its objective."""
        return self.sampled and None not in {self.hit_ratio, self.objective} and self.hit_ratio < self.objective  # type: ignore[operator]


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerRow:
    """One rank of a worker."""

    id: str
    name: str
    pool: str
    state: str
    """A word or two: ready, not counted (its blocks), left out, starting, draining, away; asleep and the like."""
    running_blocks: int | None
    """Used by requests; None before its first report."""
    idle_blocks: int | None
    """Cached and used by no request; None where its engine does not tell."""
    free_blocks: int | None
    total_blocks: int
    running: int
    waiting: int
    held: int
    """Blocks that the index has for it."""
    freshness: str
    epoch: str
    why: tuple[str, ...]
    """Its problems, a sentence each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetRow:
    """The whole fleet."""

    id: str = "fleet-summary"
    policy: str
    pools: int
    workers: int
    ready: int
    impaired: int
    """Workers that get no or fewer requests than they could, or whose blocks are not counted."""
    requests: int
    waiting: int
    """In the queues of engines, as their last reports say."""


def element_id(kind: str, key: str) -> str:
    """An id for an element that shows ``key``: letters and digits, whatever is in the key."""
    return f"{kind}-{hashlib.sha256(key.encode()).hexdigest()[:10]}"


def fleet_row(view: FleetView) -> FleetRow:
    """The summary of a fleet."""
    return FleetRow(
        policy=view.policy,
        pools=len(view.pools),
        workers=len(view.workers),
        ready=sum(pool.workers.ready for pool in view.pools),
        impaired=sum(bool(problems(worker)) for worker in view.workers),
        requests=view.inflight_requests,
        waiting=sum(worker.load.waiting for worker in view.workers if worker.load),
    )


def pool_row(status: PoolFacts, members: Sequence[WorkerFacts], rates: Rates | None) -> PoolRow:
    """A pool with its workers' sums."""
    ratio = status.hit_ratio.value
    loads = [worker.load for worker in members if worker.load]
    return PoolRow(
        id=element_id("pool", status.key),
        key=status.key,
        model=status.model,
        hit_ratio=None if ratio is None else round(ratio, 3),
        objective=status.hit_ratio.objective,
        sampled=status.hit_ratio.sampled,
        saved=_rounded(rates.saved) if rates else None,
        computed=_rounded(rates.computed) if rates else None,
        idle_mib=_idle_mib(members),
        budget_mib=status.budget_mib * sum(worker.listed for worker in members),
        running=sum(load.running for load in loads),
        waiting=sum(load.waiting for load in loads),
        workers=status.workers.total,
        ready=status.workers.ready,
        impaired=sum(bool(problems(worker)) for worker in members),
    )


def worker_row(status: WorkerFacts) -> WorkerRow:
    """One rank of a worker."""
    load, why = status.load, tuple(problems(status))
    total, idle = (load.blocks_total, load.blocks_idle) if load else (0, None)
    return WorkerRow(
        id=element_id("worker", status.id),
        name=status.name if not status.rank else f"{status.name}#{status.rank}",
        pool=status.pool,
        state=_state(status),
        running_blocks=max(0, total - load.blocks_free) if load else None,
        idle_blocks=idle,
        free_blocks=max(0, load.blocks_free - (idle or 0)) if load else None,
        total_blocks=total,
        running=load.running if load else 0,
        waiting=load.waiting if load else 0,
        held=status.held_blocks,
        freshness=_freshness(status),
        epoch=status.epoch[:_EPOCH],
        why=why,
    )


def problems(status: WorkerFacts) -> list[str]:
    """Why a worker gets no or fewer requests than it could, or its blocks are not counted; a sentence each."""
    return [*_no_requests(status), *_no_hits(status)]


def _no_requests(status: WorkerFacts) -> Iterator[str]:
    if not status.listed:
        yield "It is in no list of its pool: it gets nothing."
    elif not status.ready:
        yield f"It is not ready{f': {status.phase_reason}' if status.phase_reason else ''}."
    elif status.suspended:
        yield f"Its engine serves nothing ({suspension_words(status.suspended)}): it gets nothing."
    if status.phase not in {None, Phase.READY} and status.ready:
        yield f"Its agent says: {status.phase}."
    if not status.vouched:
        yield "No agent has proved that it is a worker: it gets nothing."
    if status.backing_off:
        yield "It could not be reached a moment ago: others are preferred."
    if status.key_refused:
        yield "It refuses the gateway's key: others are preferred."


def _no_hits(status: WorkerFacts) -> Iterator[str]:
    for one in status.differences:
        yield f"Its contract differs: {one.field} is {one.actual}, its pool's is {one.expected}."
    if status.listed and not status.connected:
        yield "No agent is connected: what it holds is not known."
    elif status.stale and status.load:
        yield "Its last report is too old: its blocks are not counted."
    if not status.indexed:
        yield "Its blocks do not fit into the index."
    if status.not_indexed or status.blind:
        yield f"Its blocks cannot be counted{f': {status.not_indexed}' if status.not_indexed else ''}."
    for one in status.configuration:
        yield f"Its engine has {one.field} {one.actual}, its pool asks for {one.expected}."


def _state(status: WorkerFacts) -> str:
    if not status.listed or (not status.connected and status.load is None and not status.ready):
        return "away"
    if status.phase == Phase.DRAINING:
        return "draining"
    if not status.ready:
        return "starting" if status.phase != Phase.READY else "left out"
    if status.suspended:
        return suspension_words(status.suspended)
    if any(_no_requests(status)):
        return "left out"
    return "not counted" if any(_no_hits(status)) else "ready"


def _freshness(status: WorkerFacts) -> str:
    """Words that do not change with every second of a worker that reports."""
    age = status.report_age_seconds
    if age is None:
        return "no report yet"
    if not status.stale:
        return "fresh" if status.stream == "live" else status.stream
    return f"{age:.0f} s old" if age < 2 * _MINUTE else f"{age / _MINUTE:.0f} min old"


def _idle_mib(members: Sequence[WorkerFacts]) -> int | None:
    """Over the workers that tell both numbers; None where none does."""
    told = [worker.idle_bytes for worker in members if worker.idle_bytes is not None]
    return round(sum(told) / MIB) if told else None


def _rounded(value: float) -> float:
    """Two digits: a person sees no more of what changes all the time."""
    return float(f"{value:.2g}") if value < 100 else float(round(value, -1))
