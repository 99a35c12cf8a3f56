"""Decision records in memory, for tests that need no database; held to the suite of every DecisionRepository."""

from __future__ import annotations

from collections.abc import Sequence

from cachefleet_controlplane.store.decision_filter import EVERY, DecisionFilter
from cachefleet_controlplane.store.decision_records import DecisionRecord


class InMemoryDecisions:
    """A DecisionRepository in a dict, which keeps the order of insertion."""

    def __init__(self, *, max_rows: int) -> None:
        self._max_rows = max_rows
        self._records: dict[str, DecisionRecord] = {}

    def open(self) -> None:
        """Nothing to open."""
        return

    def save(self, records: Sequence[DecisionRecord]) -> None:
        """Store records; one that replaces another moves to the end."""
        for record in records:
            self._records.pop(record.id, None)
            self._records[record.id] = record

    def get(self, decision_id: str) -> DecisionRecord | None:
        """The record with this id; None where it was pruned."""
        return self._records.get(decision_id)

    def recent(self, limit: int, wanted: DecisionFilter = EVERY, *, before: str | None = None) -> list[DecisionRecord]:
        """At most ``limit`` records, the last saved first; only those saved before the record ``before``."""
        names = list(self._records)
        older = len(names) if before is None else names.index(before) if before in names else 0
        found = (r for r in reversed(list(self._records.values())[:older]) if wanted.matches(r))
        return [record for record, _ in zip(found, range(limit), strict=False)]

    def prune(self) -> int:
        """Delete all records beyond ``max_rows`` at once; their number."""
        excess = max(0, len(self._records) - self._max_rows)
        for decision_id in list(self._records)[:excess]:
            del self._records[decision_id]
        return excess

    def close(self) -> None:
        """Nothing to close; records stay."""
        return
