"""The tables of candidates of all fleets, each made when it is first asked for.

Importing this module needs ``cachefleet_native``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from cachefleet_controlplane.selection.candidate_table import CandidateTable, NotScorableError
from cachefleet_controlplane.selection.selection import Duty, on_duty
from cachefleet_controlplane.workers.pool import Pool
from cachefleet_controlplane.workers.registry import Registry

T = TypeVar("T", bound=CandidateTable)


class CandidateTables(Generic[T]):
    """Tables by model, adapter and duty; ``make`` makes one of pools, at a time, for an adapter or none."""

    def __init__(self, registry: Registry, make: Callable[[Sequence[Pool], float, str], T]) -> None:
        self._registry = registry
        self._make = make
        self.known: dict[tuple[str, str, Duty], T] = {}
        self._version = registry.version

    def of(self, model: str, adapter: str, duty: Duty, now: float) -> T | None:
        """The up-to-date table; None where native code cannot score its workers."""
        if self._version != self._registry.version:
            self.known.clear()
            self._version = self._registry.version
        try:
            table = self.known.pop((model, adapter, duty), None)
            if table is None or not table.follow(now):
                table = self._make(on_duty(self._registry.fleet(model), duty), now, adapter)
        except NotScorableError:
            return None
        if table.candidates:
            self.known[model, adapter, duty] = table
        return table
