"""What a pool shows of what work and evictions there cost others: ``routing.worth`` as it is learnt.

How much is asked for and computed is told by workers' reports, and so by all replicas' requests; how large requests
are, and how much is asked for again, by those that this replica sends. Sums count half after HALF_LIFE_SECONDS.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Final

from cachefleet_controlplane.routing.worth import UNLEARNT, Worth
from cachefleet_controlplane.workers.worth.asked_blocks import AskedBlocks

HALF_LIFE_SECONDS: Final = 300.0
SECONDS_NEEDED: Final = 60.0
"""A pool is watched for so long before anything is said of its load."""
REQUESTS_NEEDED: Final = 8.0
REFRESH_SECONDS: Final = 5.0
"""How often decisions see what has been learnt."""


@dataclass(slots=True)
class PoolWorth:
    """Of one pool; ``now`` is monotonic."""

    blocks: AskedBlocks = field(default_factory=AskedBlocks)
    _at: float | None = None
    _seconds: float = 0.0
    _asked: float = 0.0
    """Prompt tokens that engines looked up, and those not found."""
    _computed: float = 0.0
    _requests: float = 0.0
    """This replica's, with their prompt tokens, tokens to compute, and the squares of these."""
    _tokens: float = 0.0
    _work: float = 0.0
    _squares: float = 0.0
    _refreshed_at: float = -math.inf

    def reported(self, queries: int, hits: int, now: float) -> None:
        """A worker's engine has looked up so many tokens, and found so many, since its last report.

        Less than none where it looks up again what was counted before.
        """
        self._fade(now)
        computed = max(0, queries - hits) if queries > 0 else queries - hits
        self._asked = max(0.0, self._asked + queries)
        self._computed = max(0.0, self._computed + computed)

    def sent(self, tokens: int, uncached: int) -> None:
        """A request of this replica goes to a worker."""
        self._requests += 1
        self._tokens += tokens
        self._work += uncached
        self._squares += uncached * uncached

    def due(self, now: float) -> bool:
        """Whether it is time to tell decisions."""
        return now - self._refreshed_at >= REFRESH_SECONDS

    def tell(self, workers: int, now: float) -> Worth:
        """What is known now of a pool of which so many workers report."""
        self._refreshed_at = now
        return self.worth(workers)

    def worth(self, workers: int) -> Worth:
        """What is known of the pool: all of it or nothing, as evictions are worth little without those who wait."""
        known = workers > 0 and self._seconds >= SECONDS_NEEDED and self._requests >= REQUESTS_NEEDED
        if not known or not self._tokens or not self._work or not self._asked:
            return UNLEARNT
        each = 1 / (self._seconds * workers)
        return Worth(
            eviction=self.blocks.worth,
            requests_per_second=self._asked * self._requests / self._tokens * each,
            computed_per_second=self._computed * each,
            request_tokens=self._squares / self._work,
        )

    def _fade(self, now: float) -> None:
        if self._at is not None and now > self._at:
            kept = 0.5 ** ((now - self._at) / HALF_LIFE_SECONDS)
            self._seconds = self._seconds * kept + (1 - kept) * HALF_LIFE_SECONDS / math.log(2)
            self._asked *= kept
            self._computed *= kept
            self._requests *= kept
            self._tokens *= kept
            self._work *= kept
            self._squares *= kept
        self._at = now if self._at is None else max(now, self._at)
