"""The tables of workers of all fleets, each made when it is first asked for."""

from __future__ import annotations

from cachefleet_controlplane.selection.eligibility import Duty, on_duty
from cachefleet_controlplane.selection.worker_table import WorkerTable
from cachefleet_controlplane.workers.registry import Registry


class WorkerTables:
    """Tables by model and duty."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self.kept: dict[tuple[str, Duty], WorkerTable] = {}
        self._version = registry.version

    def of(self, model: str, duty: Duty) -> WorkerTable:
        """The up-to-date table; it is kept where it has workers."""
        if self._version != self._registry.version:
            self.kept.clear()
            self._version = self._registry.version
        table = self.kept.get((model, duty))
        if table is None:
            table = self._made(model, duty)
            if table.workers:
                self.kept[model, duty] = table
        return table

    def _made(self, model: str, duty: Duty) -> WorkerTable:
        pools = on_duty(self._registry.fleet(model), duty)
        return WorkerTable(self._registry.plane, pools, needed=self._registry.adapter(model))
