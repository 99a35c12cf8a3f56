"""Time that requests waited at a prefix's holder while another worker was less busy: it pays for a copy there.

To compute a prefix on one more worker costs others time and evicts blocks; that is worth it once as much waiting has
been spent for want of a copy, as whoever rents buys once the rents add up to the price. So a prefix that everybody
asks for is copied within a few requests, and a conversation, whose prefix is another one at each turn, stays. Pure.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Final

HALF_LIFE_SECONDS: Final = 10.0
MAX_PREFIXES: Final = 256
"""Those waited for least lately are dropped first."""


@dataclass(slots=True)
class PaidWaiting:
    """Seconds waited by prefix, each named by the key of its last block; ``now`` is monotonic."""

    _known: OrderedDict[bytes, tuple[float, float]] = field(default_factory=OrderedDict)

    def __len__(self) -> int:
        return len(self._known)

    def of(self, prefix: bytes, now: float) -> float:
        """Seconds waited for it, each counting half after HALF_LIFE_SECONDS."""
        known = self._known.get(prefix)
        return known[0] * 0.5 ** ((now - known[1]) / HALF_LIFE_SECONDS) if known else 0.0

    def add(self, prefix: bytes, seconds: float, now: float) -> None:
        """A request waits there for so much longer."""
        self._known[prefix] = (self.of(prefix, now) + seconds, now)
        self._known.move_to_end(prefix)
        while len(self._known) > MAX_PREFIXES:
            self._known.popitem(last=False)

    def spend(self, prefix: bytes) -> None:
        """A copy is being computed."""
        self._known.pop(prefix, None)
