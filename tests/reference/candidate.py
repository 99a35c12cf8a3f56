"""A candidate as the reference sees it: with what of the prompt is cached there."""

from __future__ import annotations

from cachefleet_controlplane.index.worker_id import WorkerId
from cachefleet_controlplane.routing.decision import STALE_AFTER_SECONDS
from cachefleet_controlplane.workers.worker import Worker
from tests.reference.candidate_view import CandidateLoad, CandidateView


class Candidate(CandidateLoad, frozen=True, kw_only=True):
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
    coming_blocks: int = 0
    """The same with those of them whose blocks will be there in time."""
    report_age: float | None = None

    @property
    def stale(self) -> bool:
        """Whether its last report is missing or older than STALE_AFTER_SECONDS."""
        return self.report_age is None or self.report_age > STALE_AFTER_SECONDS

    @classmethod
    def of(
        cls,
        worker: Worker,
        view: CandidateView,
        now: float,
        *,
        matched: int,
        loadable: int = 0,
        sent: int = 0,
        coming: int = 0,
    ) -> Candidate:
        """A worker with so many blocks of a prompt."""
        load = {name: getattr(view, name) for name in CandidateLoad.__struct_fields__}
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
            coming_blocks=coming,
            report_age=None if view.reported_at is None else now - view.reported_at,
            **load,
        )

    def view(self, now: float) -> CandidateView:
        """Its load alone, as native code takes it."""
        load = {name: getattr(self, name) for name in CandidateLoad.__struct_fields__}
        return CandidateView(reported_at=None if self.report_age is None else now - self.report_age, **load)
