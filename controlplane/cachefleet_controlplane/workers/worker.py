"""One rank of one worker: endpoint, report stream, load, and the requests sent to it."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from cachefleet_controlplane.index.recent_removals import RemovalHistory
from cachefleet_controlplane.index.worker_id import WorkerId, worker_id
from cachefleet_controlplane.pools.source import WorkerEndpoint
from cachefleet_controlplane.report_streams.report_stream import ReportStream
from cachefleet_controlplane.report_streams.stream_state_machine import FORGET_SECONDS
from cachefleet_controlplane.routing.candidate_view import CandidateView
from cachefleet_controlplane.routing.capacity import Capacity
from cachefleet_controlplane.routing.decision import STALE_AFTER_SECONDS, full_name
from cachefleet_controlplane.routing.hit_trust import NO_EVIDENCE, WHOLE, HitEvidence, faded, learnt, trust_in
from cachefleet_controlplane.routing.worth import UNLEARNT, Worth
from cachefleet_controlplane.workers.adapter_slots import AdapterSlots
from cachefleet_controlplane.workers.hit_window import Counters
from cachefleet_controlplane.workers.inflight import InFlightRequests
from cachefleet_controlplane.workers.load import WorkerLoad, blank_blocks
from cachefleet_controlplane.workers.unindexed_hits import NONE as NO_HITS
from cachefleet_controlplane.workers.unindexed_hits import UnindexedHits, expects_blocks
from cachefleet_core.hit_rule import PLAIN, HitRule
from cachefleet_core.index_contract import Difference
from cachefleet_core.pool.spec import PoolSpec
from cachefleet_core.report_frames import ENGINE_LOST, Hello, Phase, State
from cachefleet_runtime.backoff import backoff

logger = logging.getLogger(__name__)

SAMPLES_NEEDED: Final = 3
"""Reports with a prefill rate that are needed before it is used."""
BACKOFF_SECONDS: Final = 1.0
MAX_BACKOFF_SECONDS: Final = 10.0
KEY_RETRY_SECONDS: Final = 30.0
"""How often a worker that refused the gateway's key is asked again, by one request each time."""


@dataclass(slots=True)
class Worker:
    """One rank of one worker. Mutable; owned by the registry."""

    pool: str
    name: str
    rank: int = 0
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
    unlisted_since: float | None = None
    """Since when the pool source, which knew it, does not list it; None where it does."""
    samples: int = 0
    differences: tuple[Difference, ...] = ()
    unindexed: bool = False
    """Its blocks did not fit into the index, or were more than it can hold; routed by load until its next epoch."""
    most_blocks: int = 0
    """What it may claim; a spec that has become smaller since its Hello is not that of its engine."""
    adapters: AdapterSlots = field(default_factory=AdapterSlots)
    counters: Counters = field(default_factory=Counters)
    inflight_requests: InFlightRequests = field(init=False)
    history: RemovalHistory = field(default_factory=RemovalHistory)
    last_used: int = 0
    evidence: HitEvidence = NO_EVIDENCE
    """What its answers showed of its claims; a new epoch does not undo it."""
    trust: int = WHOLE
    """``trust_in`` that, as of its last answer or report."""
    unindexed_hits: UnindexedHits = NO_HITS
    """Reports that its engine serves from a cache of which the index holds nothing."""
    worth: Worth = UNLEARNT
    """What work and evictions cost others in its pool."""
    failures: int = 0
    backoff_until: float = 0.0
    key_refused: bool = False
    """It refused the gateway's key, and has not taken it since."""
    key_retry_at: float = 0.0
    version: int = 0
    """Raised whenever a decision may see it differently, except through time or through the registry."""
    standing: int = 0
    """As ``version``, except through the requests in flight."""

    def __post_init__(self) -> None:
        self.id = worker_id(self.pool, self.name, self.rank)
        self.inflight_requests = InFlightRequests(self._answered, self._move)

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
    def requests(self) -> int:
        """Requests that others sent there and that it has not answered, and ours."""
        return (self.load.others_requests if self.load else 0) + self.inflight_requests.sequences

    @property
    def rule(self) -> HitRule:
        """What a hit on its engine needs."""
        return self.hello.rule if self.hello else PLAIN

    @property
    def leaving(self) -> bool:
        """Whether its agent reports that it takes no new work."""
        return self.load is not None and self.load.state.phase in (Phase.DRAINING, Phase.FAILED)

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
        self._touch()

    def failed(self, now: float) -> None:
        """It could not be reached: back off, longer after each failure in a row."""
        pause = backoff(self.failures, first=BACKOFF_SECONDS, longest=MAX_BACKOFF_SECONDS)
        self.failures += 1
        self.backoff_until = now + pause
        self._touch()

    def refused_key(self, now: float) -> None:
        """It refused the gateway's key: another one is asked where there is one."""
        if not self.key_refused:
            logger.warning("a worker refuses the gateway's key", extra={"worker": self.id})
        self.key_refused, self.key_retry_at = True, now + KEY_RETRY_SECONDS
        self._touch()

    def refuses_key(self, now: float) -> bool:
        """Whether it refused the gateway's key, and it is not time to ask it again."""
        return self.key_refused and now < self.key_retry_at

    def use(self, number: int, now: float, adapter: str = "") -> None:
        """Decision number ``number`` chose it, for a request of this adapter."""
        self.last_used = number
        if adapter:  # from now on others may have to be loaded
            self.adapters.used(adapter)
        if self.key_refused:  # one request is enough to find out
            self.key_retry_at = now + KEY_RETRY_SECONDS
        self._touch() if adapter or self.key_refused else self._move()

    def follow(self, stream: ReportStream) -> None:
        """Set the new state of its stream."""
        if not stream.as_fresh_as(self.stream):
            self._touch()
        self.stream = stream

    def weigh(self, worth: Worth) -> None:
        """Its pool has learnt what work and evictions cost others."""
        if worth != self.worth:
            self.worth = worth
            self._touch()

    def evicts(self, blocks: int) -> bool:
        """Whether so many new blocks take the place of cached ones there."""
        blank = blank_blocks(self.load, self.inflight_requests)
        return blank is not None and blocks > blank

    def leave_out(self) -> None:
        """Its blocks are not in the index."""
        self.unindexed = True
        self._touch()

    def served(self, claimed: int, served: int, now: float) -> None:
        """It has answered: of ``claimed`` tokens that it was said to hold, ``served`` came from its cache."""
        self._believe(learnt(self.evidence, claimed, served, now))

    def _believe(self, evidence: HitEvidence) -> None:
        before, self.evidence, self.trust = self.trust, evidence, trust_in(evidence)
        if self.trust != before:
            self._touch()

    def due(self) -> Iterator[float]:
        """Times at which a decision may see it differently though nothing happens; past ones among them."""
        yield from self.inflight_requests.due()
        yield from self.stream.due()
        yield self.backoff_until
        yield self.key_retry_at
        if self.load:
            yield from (self.load.at + STALE_AFTER_SECONDS, self.load.at + FORGET_SECONDS)

    def _touch(self) -> None:
        self.version += 1
        self.standing += 1

    def _move(self) -> None:
        self.version += 1

    def _answered(self) -> None:
        self._move()
        if self.failures or self.backoff_until or self.key_refused:
            self._touch()
            self.failures, self.backoff_until, self.key_refused = 0, 0.0, False

    def accept(self, state: State, now: float) -> None:
        """Take a State over; its waiting work beyond our own in-flight requests is counted as that of others."""
        own = self.inflight_requests
        others = max(0, state.waiting - own.waiting(now))
        tokens = (
            max(0, state.waiting_tokens - own.tokens(now))
            if state.waiting_tokens is not None
            else round(others * own.typical_tokens)
        )
        requests = max(0, state.running + state.waiting - own.sequences)
        self._touch()
        if self.trust != WHOLE:
            self._believe(faded(self.evidence, now))
        own.ended_blocks = 0
        lost = ENGINE_LOST in state.reason.split(",")
        self.lost_since = (now if self.lost_since is None else self.lost_since) if lost else None
        self.adapters.reported(state.adapters)
        self.load = WorkerLoad(state, now, tokens, requests)
        self.samples += bool(state.prefill_tokens_per_second)

    def look_for_unindexed_hits(self, spec: PoolSpec, hits: int, state: State, now: float) -> None:
        """Its State says that ``hits`` more tokens came from its engine's cache."""
        expected = expects_blocks(spec, self.hello, state)
        self.unindexed_hits = self.unindexed_hits.after(hits, state, now) if expected else NO_HITS

    def restarted(self) -> None:
        """A new epoch: drop load and measurements of the one before."""
        self._touch()
        self.load, self.lost_since, self.unindexed_hits = None, None, NO_HITS
        self.samples, self.most_blocks, self.unindexed, self.key_refused = 0, 0, False, False
        self.adapters.restarted()
        self.inflight_requests.recent.clear()

    def room(self, now: float, *, percent: int) -> Capacity | None:
        """Blocks that a new request may take where ``percent`` stay free; None where that is not known."""
        load, own = self.known_load(now), self.inflight_requests
        if load is None:
            return None
        sent = own.blocks_since(load.at)
        return Capacity.of(
            load.state, sent=sent, ended=own.ended_blocks, reservations=own.reservations, percent=percent
        )

    def candidate(self, adapter: str, now: float, *, percent: int = 0, worth: Worth = UNLEARNT) -> CandidateView:
        """As a decision sees it for requests of an adapter, or of none; ``percent`` of its blocks are to stay free."""
        own, load = self.inflight_requests, self.known_load(now)
        room = self.room(now, percent=percent)
        fresh = load is not None and not self.stream.stale(now) and not self.unindexed
        state = load.state if load else None
        return CandidateView(
            reported_at=load.at if load and fresh else None,
            queued_tokens=load.others_tokens if load else 0,
            inflight_tokens=own.tokens(now),
            tokens_per_second=state.prefill_tokens_per_second if state and self.samples >= SAMPLES_NEEDED else None,
            inter_token_seconds=state.inter_token_seconds if state else None,
            loaded_per_second=state.loaded_tokens_per_second if state else None,
            batched_tokens=self.hello.max_batched_tokens if self.hello else 0,
            blocks_total=room.total if room else None,
            blocks_free=room.free if room else None,
            blocks_reserved=room.reserve if room else 0,
            blocks_idle=room.idle if room else 0,
            blocks_used=room.used if room else 0,
            blocks_blank=blank_blocks(load, own),
            requests=(load.others_requests if load else 0) + own.sequences,
            last_used=self.last_used,
            trust=self.trust,
            worth=worth,
            adapter_seconds=self.adapters.seconds(adapter) if adapter else 0.0,
        )

    def known_load(self, now: float) -> WorkerLoad | None:
        """Its last report, unless that is too old to say anything."""
        return self.load if self.load and now - self.load.at <= FORGET_SECONDS else None
