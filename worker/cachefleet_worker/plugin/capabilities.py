"""What each feature of the plugin does in this process, and why it does not do better."""

from __future__ import annotations

import threading
from typing import Final

from cachefleet_core.reports import Capability

OFF: Final = "off"


class Capabilities:
    """The features of one process, by name. Safe to use from several threads."""

    def __init__(self) -> None:
        self._features: dict[str, Capability] = {}
        self._lock = threading.Lock()

    def add(self, feature: str, mode: str, reason: str = "") -> None:
        """Say, or say anew, what a feature does; ``reason`` says why it is not better."""
        with self._lock:
            self._features[feature] = Capability(feature=feature, mode=mode, reason=reason[:1024])

    def mode(self, feature: str) -> str:
        """The mode of a feature; "off" where nothing is known of it."""
        found = self._features.get(feature)
        return found.mode if found else OFF

    def document(self) -> list[Capability]:
        """All features, in the order they were first named."""
        with self._lock:
            return list(self._features.values())
