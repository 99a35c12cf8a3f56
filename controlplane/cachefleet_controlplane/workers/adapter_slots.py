"""Which adapters (LoRA) a worker serves, and which of them are on its device, as far as reports and requests tell.

A device has room for so many at once; the engine puts another in the place of the one that was used longest ago, and
has it ready in the host's memory. Which were used last follows from reports of those with requests, and from the
requests that this replica has sent.
"""

from __future__ import annotations

from cachefleet_core.pool.adapter_reports import AdapterReport


class AdapterSlots:
    """The adapters of one worker; bounded, as reports are."""

    def __init__(self) -> None:
        self._announced: tuple[str, ...] | None = None
        self._report: AdapterReport | None = None
        self._used: dict[str, None] = {}
        """Those served, the one used last at the end."""

    @property
    def report(self) -> AdapterReport | None:
        """What was told last; None where there are none."""
        return self._report or (AdapterReport(served=self._announced) if self._announced else None)

    def announced(self, served: tuple[str, ...] | None) -> None:
        """Its Hello has come, of an engine that serves these."""
        self._announced = served
        self._serve(served or ())

    def reported(self, report: AdapterReport | None) -> None:
        """Its State has come; None where what its Hello said holds."""
        self._report = report
        if report is not None:
            self._serve(report.served or ())
            for name in report.busy:
                self.used(name)

    def restarted(self) -> None:
        """A new life of its engine."""
        self._announced = self._report = None
        self._used.clear()

    def used(self, adapter: str) -> None:
        """A request for it was sent there, or is there."""
        if adapter in self._used:
            del self._used[adapter]
            self._used[adapter] = None

    @property
    def served(self) -> tuple[str, ...] | None:
        """All that it serves; None where it did not tell."""
        return self._report.served if self._report else self._announced

    @property
    def displaced(self) -> list[str]:
        """Those that are not on its device, which is full of others."""
        slots = self._report.slots if self._report else 0
        return list(self._used)[:-slots] if slots else []

    def _serve(self, served: tuple[str, ...]) -> None:
        """Loading puts an adapter on the device, in the order in which they are told."""
        if tuple(self._used) == served:
            return
        for name in [name for name in self._used if name not in served]:
            del self._used[name]
        for name in served:
            self._used.setdefault(name)
