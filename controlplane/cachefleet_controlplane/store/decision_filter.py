"""Which decision records are asked for: a value that matches records in memory, and is SQL in the repository."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from cachefleet_controlplane.store.decision_records import DecisionRecord, EndedBy


class RequestOutcome(StrEnum):
    """What became of a request, by the status that its client got, and by who ended its answer."""

    ANSWERED = "answered"
    """Its answer came whole."""
    REFUSED = "refused"
    """4xx: the request was at fault, or its tenant over a limit."""
    GONE = "gone"
    """The client left before its answer was whole, or had begun."""
    FAILED = "failed"
    """5xx."""
    STOPPED = "stopped"
    """The gateway ended an answer that had begun."""
    BROKEN = "broken"
    """The worker ended an answer that had begun, and no other one could go on with it."""


STATUSES: Final = {
    RequestOutcome.ANSWERED: (1, 399),
    RequestOutcome.REFUSED: (400, 498),
    RequestOutcome.GONE: (1, 499),
    RequestOutcome.FAILED: (500, 999),
    RequestOutcome.STOPPED: (1, 399),
    RequestOutcome.BROKEN: (1, 399),
}
"""The lowest and the highest status; 0, of decisions without an answer, is in none."""
ENDED_BY: Final = {
    RequestOutcome.ANSWERED: None,
    RequestOutcome.GONE: EndedBy.CLIENT,
    RequestOutcome.STOPPED: EndedBy.GATEWAY,
    RequestOutcome.BROKEN: EndedBy.WORKER,
}
"""Who ended the answer, for outcomes that depend on it. Older records of clients that left have the status alone."""
ANY: Final = "any"
"""In place of a shortfall's cause: every decision with a shortfall."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionFilter:
    """Conditions that all hold; None is no condition. Times in Unix seconds: from ``since`` on, before ``until``."""

    model: str | None = None
    request_id: str | None = None
    tenant: str | None = None
    outcome: RequestOutcome | None = None
    shortfall: str | None = None
    """A cause, or ANY."""
    pool: str | None = None
    worker: str | None = None
    """Its name, or "namespace/pool/name"."""
    since: float | None = None
    until: float | None = None

    def matches(self, record: DecisionRecord) -> bool:
        """Whether all conditions hold for a record."""
        same = all(
            getattr(self, name) in {None, getattr(record, name)} for name in ("model", "request_id", "tenant", "pool")
        )
        return same and self._in_time(record) and self._ended(record) and self._at(record) and self._short(record)

    def _in_time(self, record: DecisionRecord) -> bool:
        return (self.since is None or record.at >= self.since) and (self.until is None or record.at < self.until)

    def _ended(self, record: DecisionRecord) -> bool:
        if self.outcome is None:
            return True
        lowest, highest = STATUSES[self.outcome]
        if self.outcome is RequestOutcome.GONE and record.status == highest:
            return True
        by = self.outcome not in ENDED_BY or record.ended_by is ENDED_BY[self.outcome]
        return by and lowest <= record.status <= highest

    def _at(self, record: DecisionRecord) -> bool:
        return self.worker is None or self.worker in {record.worker, f"{record.pool}/{record.worker}"}

    def _short(self, record: DecisionRecord) -> bool:
        if self.shortfall is None:
            return True
        return record.shortfall is not None and self.shortfall in {ANY, record.shortfall.cause}


EVERY: Final = DecisionFilter()
"""All records."""
