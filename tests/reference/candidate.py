"""A candidate as the reference sees it: with what of the prompt is cached there."""

from __future__ import annotations

from msgspec import Struct

from cachefleet_controlplane.index.worker_id import WorkerId
from cachefleet_controlplane.routing.decision import STALE_AFTER_SECONDS
from cachefleet_controlplane.routing.hit_trust import WHOLE
from cachefleet_controlplane.routing.worth import UNLEARNT, Worth
from cachefleet_controlplane.workers.worker import Worker
from tests.reference.candidate_view import CandidateView


class Candidate(Struct, frozen=True):
    """One rank of one worker as a decision on one prompt sees it; None where it was not reported."""

    worker: str
    id: WorkerId
    pool: str
    url: str
    rank: int = 0
    matched_blocks: int = 0
    """Longest consecutive prefix that the index says is held."""
    loadable_blocks: int = 0
    """Blocks that follow the matched ones, held below the device."""
    sent_blocks: int = 0
    """Longest prefix that the prompt shares with prompts just sent there."""
    report_age: float | None = None
    queued_tokens: int = 0
    inflight_tokens: int = 0
    tokens_per_second: float | None = None
    inter_token_seconds: float | None = None
    loaded_per_second: float | None = None
    batched_tokens: int = 0
    blocks_total: int | None = None
    """Blocks that requests can have."""
    blocks_free: int | None = None
    """Blocks a new request may take, idle cached ones included, net of requests in flight and reserve: ``capacity``."""
    blocks_reserved: int = 0
    """Blocks that are to stay free."""
    blocks_idle: int = 0
    """Held blocks that may be idle; those beyond are in use."""
    blocks_used: int = 0
    """Blocks in use at its last report."""
    blocks_blank: int | None = None
    """Of the free ones, blocks that hold nothing."""
    requests: int = 0
    """Running, waiting and in flight."""
    last_used: int = 0
    """Number of the last decision for it, 0 where there was none."""
    trust: int = WHOLE
    """Parts of WHOLE of its blocks that are counted on: ``hit_trust``."""
    worth: Worth = UNLEARNT
    """What work and evictions cost others there."""
    adapter_seconds: float = 0.0
    """How long the adapter that is asked for would be loaded onto its device."""

    @property
    def stale(self) -> bool:
        """Whether its last report is missing or older than STALE_AFTER_SECONDS."""
        return self.report_age is None or self.report_age > STALE_AFTER_SECONDS

    @classmethod
    def of(
        cls, worker: Worker, view: CandidateView, now: float, *, matched: int, loadable: int = 0, sent: int = 0
    ) -> Candidate:
        """A worker with so many blocks of a prompt."""
        load = {name: getattr(view, name) for name in CandidateView.__struct_fields__ if name != "reported_at"}
        fresh = view.reported_at is not None
        return cls(
            worker=worker.name,
            id=worker.id,
            pool=worker.pool,
            url=worker.endpoint.url if worker.endpoint else "",
            rank=worker.rank,
            matched_blocks=matched if fresh else 0,
            loadable_blocks=loadable if fresh else 0,
            sent_blocks=sent,
            report_age=None if view.reported_at is None else now - view.reported_at,
            **load,
        )

    def view(self, now: float) -> CandidateView:
        """Its load alone, as native code takes it."""
        load = {name: getattr(self, name) for name in CandidateView.__struct_fields__ if name != "reported_at"}
        return CandidateView(reported_at=None if self.report_age is None else now - self.report_age, **load)
