"""What keeps a fault of the plugin from reaching vLLM: the feature goes off, once logged, always counted."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from cachefleet_worker.plugin.capabilities import OFF, Capabilities

log = logging.getLogger("vllm.cachefleet")


class Faults:
    """Features switched off by a fault, in one process. Hooks ask ``on`` first and do nothing where it is False."""

    def __init__(self, capabilities: Capabilities) -> None:
        self._capabilities = capabilities
        self._off: set[str] = set()
        self._told: set[str] = set()
        self.counts: Counter[str] = Counter()
        """Faults by feature."""

    def on(self, feature: str) -> bool:
        return feature not in self._off

    def off(self, feature: str, reason: str) -> None:
        """Switch a feature off for the rest of this process."""
        self._off.add(feature)
        self._capabilities.add(feature, OFF, reason)

    @contextmanager
    def guard(self, feature: str, *others: str) -> Iterator[None]:
        """Whatever is raised inside switches the features off and goes no further."""
        try:
            yield
        except Exception as error:  # the plugin must never take its engine down
            self.counts[feature] += 1
            if self.on(feature):
                log.exception("cachefleet: %s failed and is off until the engine restarts", feature)
            for each in (feature, *others):
                self.off(each, f"fault: {type(error).__name__}")

    def tell(self, where: str, error: Exception) -> None:
        """Count a fault that ends one answer and no feature; the first of its kind is logged with its trace."""
        self.counts[where] += 1
        kind = f"{where}: {type(error).__name__}"
        if kind not in self._told:
            self._told.add(kind)
            log.error("cachefleet: %s; more of the kind are only counted", kind, exc_info=error)
