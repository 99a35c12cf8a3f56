"""What each feature of the plugin does, and why it does not do better: in one process, and of a server as a whole."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Final

from cachefleet_core.reports import Capability

OFF: Final = "off"
MAX_REASON: Final = 1024


class Capabilities:
    """The features of one process, by name. Safe to use from several threads."""

    def __init__(self) -> None:
        self._features: dict[str, Capability] = {}
        self._lock = threading.Lock()

    def add(self, feature: str, mode: str, reason: str = "") -> None:
        """Say, or say anew, what a feature does; ``reason`` says why it is not better."""
        with self._lock:
            self._features[feature] = Capability(feature=feature, mode=mode, reason=reason[:MAX_REASON])

    def mode(self, feature: str) -> str:
        """The mode of a feature; "off" where nothing is known of it."""
        found = self._features.get(feature)
        return found.mode if found else OFF

    def document(self) -> list[Capability]:
        """All features, in the order they were first named."""
        with self._lock:
            return list(self._features.values())


def merge(parts: Iterable[Iterable[Capability]]) -> list[Capability]:
    """The features of several processes as one list: one that is off anywhere is off, else the first to tell counts."""
    merged: dict[str, Capability] = {}
    for part in parts:
        for capability in part:
            known = merged.get(capability.feature)
            if known is None or (capability.mode == OFF and known.mode != OFF):
                merged[capability.feature] = capability
    return list(merged.values())


def complete(known: Iterable[Capability], features: Iterable[str], reason: str) -> list[Capability]:
    """``known``, and each other feature of ``features`` as off for ``reason``."""
    told = list(known)
    named = {capability.feature for capability in told}
    return told + [Capability(feature=name, mode=OFF, reason=reason) for name in features if name not in named]


def summary(capabilities: Iterable[Capability]) -> str:
    """One line for people: what is on, then what is off and why."""
    told = list(capabilities)
    on = ", ".join(f"{each.feature} {each.mode}" for each in told if each.mode != OFF) or "nothing on"
    off = ", ".join(
        f"{each.feature} ({each.reason})" if each.reason else each.feature for each in told if each.mode == OFF
    )
    return f"{on}; off: {off}" if off else on
