"""One rank of one worker: endpoint, report stream, load, and the requests sent to it."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import cachefleet_native

from cachefleet_controlplane.index.frame_ingest import DeltaFrame, SnapshotFrame
from cachefleet_controlplane.index.worker_id import WorkerId, worker_id
from cachefleet_controlplane.pools.source import WorkerEndpoint
from cachefleet_controlplane.report_streams.report_stream import FORGET_SECONDS, ReportStream, StreamState
from cachefleet_controlplane.routing.decision import STALE_AFTER_SECONDS, full_name
from cachefleet_controlplane.routing.hit_trust import NO_EVIDENCE, WHOLE, HitEvidence, faded, learnt, trust_in
from cachefleet_controlplane.routing.worth import UNLEARNT, Worth
from cachefleet_controlplane.workers.adapter_slots import AdapterSlots
from cachefleet_controlplane.workers.hit_window import Counters
from cachefleet_controlplane.workers.load import WorkerLoad
from cachefleet_controlplane.workers.unindexed_hits import NONE as NO_HITS
from cachefleet_controlplane.workers.unindexed_hits import UnindexedHits, expects_blocks
from cachefleet_core.hit_rule import PLAIN, HitRule
from cachefleet_core.index_contract import Difference
from cachefleet_core.pool.spec import PoolSpec
from cachefleet_core.report_frames import ENGINE_LOST, Hello, Phase, State
from cachefleet_runtime.backoff import backoff

logger = logging.getLogger(__name__)

BACKOFF_SECONDS: Final = 1.0
MAX_BACKOFF_SECONDS: Final = 10.0
MAX_STAY_SECONDS: Final = 10.0
"""How long what a worker that drains has begun goes on there at most, before others are to go on with it."""
_STAY_SHARE: Final = 1 / 6
"""Of the time that it says it has, at most: the rest is for those that wait for room elsewhere."""


@dataclass(slots=True)
class Worker:
    """One rank of one worker. Mutable; owned by the registry."""

    pool: str
    name: str
    rank: int = 0
    row: cachefleet_native.WorkerRow = field(default_factory=lambda: cachefleet_native.Plane().row())
    """As decisions see it."""
    id: WorkerId = field(init=False)
    endpoint: WorkerEndpoint | None = None
    """None while the pool source does not list it."""
    hello: Hello | None = None
    pod: str | None = None
    """The uid of the pod whose agent has announced it, "" outside of Kubernetes; None before."""
    stream: ReportStream = field(default_factory=ReportStream)
    load: WorkerLoad | None = None
    lost_since: float | None = None
    """Since when its agent has said that its engine has ended; None where the last report does not."""
    moves_at: float | None = None
    """When others are to go on with what it has begun, since it drains; None where it does not."""
    unlisted_since: float | None = None
    """Since when the pool source, which knew it, does not list it; None where it does."""
    differences: tuple[Difference, ...] = ()
    unindexed: bool = False
    """Its blocks did not fit into the index, or were more than it can hold; routed by load until its next epoch."""
    most_blocks: int = 0
    """What it may claim; a spec that has become smaller since its Hello is not that of its engine."""
    adapters: AdapterSlots = field(default_factory=AdapterSlots)
    _shown: tuple[Sequence[str] | None, Sequence[str]] = (None, ())
    """Of its adapters what decisions were told last."""
    counters: Counters = field(default_factory=Counters)
    history: cachefleet_native.RemovalHistory = field(default_factory=cachefleet_native.RemovalHistory)
    """Its last Delta frames while requests are in flight there, to tell why a block is gone."""
    live: cachefleet_native.LiveStream | None = None
    """Its stream as native code follows it; None where its frames do not come through the native server."""
    evidence: HitEvidence = NO_EVIDENCE
    """What its answers showed of its claims; a new epoch does not undo it."""
    unindexed_hits: UnindexedHits = NO_HITS
    """Reports that its engine serves from a cache of which the index holds nothing."""
    worth: Worth = UNLEARNT
    """What work and evictions cost others in its pool."""

    def __post_init__(self) -> None:
        self.id = worker_id(self.pool, self.name, self.rank)
        self.row.worth = self.worth

    @property
    def full_name(self) -> str:
        """Pool and name: the worker with all its ranks."""
        return full_name(self.pool, self.name)

    @property
    def listed_ready(self) -> bool:
        """Whether the pool source lists it as ready."""
        return self.endpoint is not None and self.endpoint.ready

    @property
    def vouched(self) -> bool:
        """Whether an agent has proved by a token of its pod that it is a worker; outside of Kubernetes none has to."""
        return self.endpoint is not None and (not self.endpoint.pod or self.pod in {"", self.endpoint.pod})

    @property
    def ready(self) -> bool:
        """Whether it may be sent anything: it is listed as ready, and vouched for."""
        return self.listed_ready and self.vouched

    @property
    def rule(self) -> HitRule:
        """What a hit on its engine needs."""
        return self.hello.rule if self.hello else PLAIN

    def suspended(self, now: float) -> str:
        """Why its engine serves nothing though it answers, as its agent said lately (a ``Suspension``); "" where it
        serves, or nobody says.
        """
        load = self.known_load(now)
        return load.state.suspended if load else ""

    def serves(self, now: float) -> bool:
        """Whether it may be sent anything, and its engine is not known to serve nothing."""
        return self.ready and not self.suspended(now)

    def dead_since(self, now: float) -> float | None:
        """Since when nothing can come of it: its engine has ended, or neither pool source nor agent knows it."""
        if self.unlisted_since is None:
            return self.lost_since
        reported = self.load.at if self.load else self.unlisted_since
        silent = max(self.unlisted_since, reported) if now - reported > STALE_AFTER_SECONDS else None
        return silent if self.lost_since is None else self.lost_since

    def list_at(self, endpoint: WorkerEndpoint | None, now: float) -> None:
        """The pool source lists it at this endpoint, or not any more."""
        if endpoint is not None:
            self.unlisted_since = None
        elif self.endpoint is not None:
            self.unlisted_since = now
        self.endpoint = endpoint

    def draining(self, now: float) -> bool:
        """Whether its agent says, just now, that it answers what it has and leaves."""
        load = self.load
        return load is not None and load.state.phase is Phase.DRAINING and now - load.at <= STALE_AFTER_SECONDS

    def announced(self, hello: Hello, *, pod: str) -> None:
        """An agent has announced it, with the token of this pod."""
        self.hello, self.pod = hello, pod
        self.adapters.announced(hello.adapters)
        self._show_adapters()

    def failed(self, now: float) -> None:
        """It could not be reached: back off, longer after each failure in a row."""
        self.row.failed(now + backoff(self.row.failures, first=BACKOFF_SECONDS, longest=MAX_BACKOFF_SECONDS))

    def refused_key(self, now: float) -> None:
        """It refused the gateway's key: another one is asked where there is one."""
        if not self.row.key_refused:
            logger.warning("a worker refuses the gateway's key", extra={"worker": self.id})
        self.row.refuse_key(now)

    def use_adapter(self, adapter: str) -> None:
        """A request for this adapter is sent there: from now on others may have to be loaded."""
        self.adapters.used(adapter)
        self._show_adapters()

    def stand(self, free_percent: int) -> None:
        """Tell decisions what is settled of it; ``free_percent`` of its blocks are to stay free."""
        batched = self.hello.max_batched_tokens if self.hello else 0
        self.row.stand(self.ready, bool(self.differences), batched, free_percent)

    def follow(self, stream: ReportStream) -> None:
        """Set the new state of its stream."""
        if not stream.as_fresh_as(self.stream):
            followed = stream.stream_state not in (StreamState.UNKNOWN, StreamState.FORGOTTEN)
            self.row.follow(followed and stream.reported, stream.heard_at, stream.out_of_step_at)
        self.stream = stream

    def weigh(self, worth: Worth) -> None:
        """Its pool has learnt what work and evictions cost others."""
        if worth != self.worth:
            self.worth = self.row.worth = worth

    def leave_out(self) -> None:
        """Its blocks are not in the index."""
        self.unindexed = True
        self.row.leave_out()

    def told(self, frame: DeltaFrame | SnapshotFrame, now: float) -> None:
        """It has told of its blocks; while requests are in flight there, changes are kept."""
        self.row.changed()
        if isinstance(frame, DeltaFrame) and self.row.open:
            self.history.note(frame.data, now)

    def served(self, claimed: int, served: int, now: float) -> None:
        """It has answered: of ``claimed`` tokens that it was said to hold, ``served`` came from its cache."""
        self._believe(learnt(self.evidence, claimed, served, now))

    def _believe(self, evidence: HitEvidence) -> None:
        self.evidence, self.row.trust = evidence, trust_in(evidence)

    def _show_adapters(self) -> None:
        facts = self.adapters.served, self.adapters.displaced
        if facts != self._shown:
            self._shown = facts
            self.row.set_adapters(*facts)

    def accept(self, state: State, now: float) -> None:
        """Take a State over; its waiting work beyond our own in-flight requests is counted as that of others."""
        if self.row.trust != WHOLE:
            self._believe(faded(self.evidence, now))
        lost = ENGINE_LOST in state.reason.split(",")
        self.lost_since = (now if self.lost_since is None else self.lost_since) if lost else None
        self.adapters.reported(state.adapters)
        self._show_adapters()
        self._drains(state, now)
        leaving = state.phase in (Phase.DRAINING, Phase.FAILED)
        self.row.reported(state, bool(state.suspended), leaving, now)
        self.load = WorkerLoad(state, now)

    def _drains(self, state: State, now: float) -> None:
        if state.phase is not Phase.DRAINING:
            self.moves_at = None
            return
        left = math.inf if state.drain_seconds is None else state.drain_seconds
        moves_at = now + min(MAX_STAY_SECONDS, _STAY_SHARE * left)
        self.moves_at = moves_at if self.moves_at is None else min(self.moves_at, moves_at)

    def look_for_unindexed_hits(self, spec: PoolSpec, hits: int, state: State, now: float) -> None:
        """Its State says that ``hits`` more tokens came from its engine's cache."""
        expected = expects_blocks(spec, self.hello, state)
        self.unindexed_hits = self.unindexed_hits.after(hits, state, now) if expected else NO_HITS

    def restarted(self) -> None:
        """A new epoch: drop load and measurements of the one before."""
        self.load, self.lost_since, self.moves_at, self.unindexed_hits = None, None, None, NO_HITS
        self.most_blocks, self.unindexed = 0, False
        self.adapters.restarted()
        self.row.restarted()
        self._shown = self.adapters.served, self.adapters.displaced

    def known_load(self, now: float) -> WorkerLoad | None:
        """Its last report, unless that is too old to say anything."""
        return self.load if self.load and now - self.load.at <= FORGET_SECONDS else None
