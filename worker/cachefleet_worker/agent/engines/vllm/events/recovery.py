"""When a follower requests a snapshot, and how long it still reports unproven blocks: pure."""

from __future__ import annotations

from dataclasses import dataclass

from cachefleet_runtime.backoff import backoff
from cachefleet_worker.agent.engines.vllm.events.epoch import Limits


@dataclass(slots=True)
class RecoveryState:
    """Whether the held blocks are proven to be all that the engine holds.

    ``whole`` is True from a snapshot on, or where the engine's totals agree, until something is lost. Snapshots that no
    mark confirms keep growing distances, so that a fault which they do not cure costs little.
    """

    limits: Limits
    whole: bool = False
    _since: float | None = None
    _next_at: float = 0.0
    _unproven: int = 0

    def wait(self, now: float) -> float:
        """Seconds until a snapshot may be requested."""
        return max(0.0, self._next_at - now)

    def may_ask_soon(self, now: float) -> bool:
        """Whether a snapshot is near enough to hold all live batches back for it."""
        return self.wait(now) <= self.limits.retry_seconds

    def wants(self, now: float) -> bool:
        """Whether a snapshot should be requested now, though nothing new happened."""
        return not self.whole and self.wait(now) == 0.0

    def begin(self, now: float) -> None:
        """Held blocks are unproven from now on."""
        self.whole = False
        if self._since is None:
            self._since = now

    def is_over(self, now: float) -> bool:
        """Whether unproven blocks should be withdrawn now; True once."""
        if self._since is None or now - self._since < self.limits.unproven_seconds:
            return False
        self._since = None
        return True

    def restored(self, now: float) -> None:
        """A snapshot was adopted."""
        limits = self.limits
        if now > self._next_at + limits.restore_cap_seconds:
            self._unproven = 0
        distance = backoff(self._unproven, first=limits.restore_base_seconds, longest=limits.restore_cap_seconds)
        self._next_at = now + distance
        self._unproven += 1
        self.whole, self._since = True, None

    def failed(self, now: float) -> None:
        """No snapshot came after all attempts, and everything held was withdrawn."""
        self.whole, self._since = False, None
        self._next_at = now + self.limits.restore_retry_seconds

    def proven(self) -> None:
        """The engine's totals agree."""
        self.whole, self._unproven = True, 0
