"""Whether an engine serves from a cache of which the index holds nothing, by its agent's reports. Pure.

The index is blind to a worker after MIN_REPORTS reports, over at least MIN_SECONDS, in which its engine found more
tokens in its cache while its agent held no block. A held block ends that. So moments without blocks (a start, a resync,
a cleared cache) do not count, and what was found once does not end while nobody asks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from cachefleet_core.engine.engine_arguments import keeps_blocks
from cachefleet_core.pool.spec import PoolSpec
from cachefleet_core.report_frames import Hello, Phase, State

MIN_REPORTS: Final = 10
MIN_SECONDS: Final = 60.0


@dataclass(frozen=True, slots=True)
class UnindexedHits:
    """Reports in a row with hits and without a held block, and when the first and the last of them came."""

    reports: int = 0
    first: float = 0.0
    last: float = 0.0

    @property
    def blind(self) -> bool:
        """Whether they are enough to say that the index misses what the engine caches."""
        return self.reports >= MIN_REPORTS and self.last - self.first >= MIN_SECONDS

    def after(self, hits: int, state: State, now: float) -> UnindexedHits:
        """With one more report, in which ``hits`` more tokens came from cache."""
        if state.held:
            return NONE
        if hits <= 0 or state.phase is not Phase.READY:
            return self
        return UnindexedHits(self.reports + 1, self.first if self.reports else now, now)


NONE: Final = UnindexedHits()


def expects_blocks(spec: PoolSpec, hello: Hello | None, state: State) -> bool:
    """Whether an engine that serves from cache has blocks that the index should hold.

    Not where the pool keeps none; where the engine's blocks have no key (images, KV groups that are not reported), or
    its agent is too old to say; or where a stock engine's earlier blocks can be unseen.
    """
    if hello is None or not keeps_blocks(spec) or state.unkeyed is not False:
        return False
    modes = {each.feature: each.mode for each in hello.capabilities}
    return modes.get("events") == "off" or modes.get("snapshot", "off") != "off"
