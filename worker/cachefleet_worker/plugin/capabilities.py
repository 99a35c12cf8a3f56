"""The mode of each plugin feature, with the reason where it is limited: per process, and merged for a server."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Final

from cachefleet_core.report_frames import Capability

OFF: Final = "off"
FRONTEND: Final = "frontend"
"""Feature that says whether the server in which the plugin's routes run is the one that clients reach."""
MAX_REASON: Final = 1024


class Capabilities:
    """The features of one process, by name. Thread-safe."""

    def __init__(self) -> None:
        self._features: dict[str, Capability] = {}
        self._lock = threading.Lock()

    def add(self, feature: str, mode: str, reason: str = "") -> None:
        """Set the mode of a feature; ``reason`` says why it is off or limited."""
        with self._lock:
            self._features[feature] = Capability(feature=feature, mode=mode, reason=reason[:MAX_REASON])

    def mode(self, feature: str) -> str:
        """The mode of a feature; "off" where it is unknown."""
        found = self._features.get(feature)
        return found.mode if found else OFF

    def document(self) -> list[Capability]:
        """All features, in the order they were first set."""
        with self._lock:
            return list(self._features.values())


def merge(parts: Iterable[Iterable[Capability]]) -> list[Capability]:
    """The features of several processes as one list: off where it is off in any process, else the first one's mode."""
    merged: dict[str, Capability] = {}
    for part in parts:
        for capability in part:
            known = merged.get(capability.feature)
            if known is None or (capability.mode == OFF and known.mode != OFF):
                merged[capability.feature] = capability
    return list(merged.values())


def complete(known: Iterable[Capability], features: Iterable[str], reason: str) -> list[Capability]:
    """``known``, and every other feature of ``features`` as off for ``reason``."""
    told = list(known)
    named = {capability.feature for capability in told}
    return told + [Capability(feature=name, mode=OFF, reason=reason) for name in features if name not in named]


def summary(capabilities: Iterable[Capability]) -> str:
    """One log line: the features that are on, then those off, with reasons."""
    told = list(capabilities)
    on = ", ".join(f"{each.feature} {each.mode}" for each in told if each.mode != OFF) or "nothing on"
    off = ", ".join(
        f"{each.feature} ({each.reason})" if each.reason else each.feature for each in told if each.mode == OFF
    )
    return f"{on}; off: {off}" if off else on
