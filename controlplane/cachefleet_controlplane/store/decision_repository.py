"""Where decision records are kept: the Protocol, and the implementation that forgets with its process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from cachefleet_controlplane.store.decision_records import DecisionRecord


class DecisionRepository(Protocol):
    """A bounded ring of decision records. Calls block; every failure is a StoreError and has changed nothing."""

    def open(self) -> None:
        """Make it ready, creating or migrating what is needed; may be called again after a StoreError."""
        ...

    def save(self, records: Sequence[DecisionRecord]) -> None:
        """Keep records; one with the id of an older one replaces it and counts as recent."""
        ...

    def get(self, decision_id: str) -> DecisionRecord | None: ...

    def recent(self, limit: int, model: str | None = None) -> list[DecisionRecord]:
        """At most ``limit`` records, the last saved first."""
        ...

    def prune(self) -> int:
        """Forget a batch of the oldest beyond the ring's size; how many. Called until it gives 0."""
        ...

    def close(self) -> None: ...


class InMemoryDecisions:
    """The ring as a dict, which remembers the order of insertion."""

    def __init__(self, *, max_rows: int) -> None:
        self._max_rows = max_rows
        self._records: dict[str, DecisionRecord] = {}

    def open(self) -> None:
        return

    def save(self, records: Sequence[DecisionRecord]) -> None:
        for record in records:
            self._records.pop(record.id, None)
            self._records[record.id] = record

    def get(self, decision_id: str) -> DecisionRecord | None:
        return self._records.get(decision_id)

    def recent(self, limit: int, model: str | None = None) -> list[DecisionRecord]:
        found = (r for r in reversed(self._records.values()) if model is None or r.model == model)
        return [record for record, _ in zip(found, range(limit), strict=False)]

    def prune(self) -> int:
        excess = max(0, len(self._records) - self._max_rows)
        for decision_id in list(self._records)[:excess]:
            del self._records[decision_id]
        return excess

    def close(self) -> None:
        return
