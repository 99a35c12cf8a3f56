"""Keeps the plugin's faults from reaching vLLM: the feature is switched off, logged once, and counted."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from cachefleet_worker.plugin.capabilities import OFF, Capabilities

log = logging.getLogger("vllm.cachefleet")


class Faults:
    """Features switched off by a fault, in one process. Hooks do nothing where ``on`` is False."""

    def __init__(self, capabilities: Capabilities) -> None:
        self._capabilities = capabilities
        self._off: set[str] = set()
        self._told: set[str] = set()
        self.counts: Counter[str] = Counter()
        """Number of faults by feature."""

    def on(self, feature: str) -> bool:
        """Whether a feature has not been switched off."""
        return feature not in self._off

    def off(self, feature: str, reason: str) -> None:
        """Switch a feature off for the rest of this process."""
        self._off.add(feature)
        self._capabilities.add(feature, OFF, reason)

    @contextmanager
    def guard(self, feature: str, *others: str) -> Iterator[None]:
        """Suppress any exception raised inside, and switch the features off."""
        try:
            yield
        except Exception as error:  # the plugin must never take its engine down
            self.counts[feature] += 1
            if self.on(feature):
                log.exception("cachefleet: %s failed and is off until the engine restarts", feature)
            for each in (feature, *others):
                self.off(each, f"fault: {type(error).__name__}")

    def tell(self, where: str, error: Exception) -> None:
        """Count a fault that ends one response and no feature; the first of a kind is logged with its traceback."""
        self.counts[where] += 1
        kind = f"{where}: {type(error).__name__}"
        if kind not in self._told:
            self._told.add(kind)
            log.error("cachefleet: %s; more of the kind are only counted", kind, exc_info=error)
