"""Why an engine that answers its health checks serves nothing: asleep, paused, updating weights, or stuck. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from cachefleet_core.engine.suspensions import Suspension
from cachefleet_worker.agent.engines.engine_poll import AWAKE, LoadMetrics, Operations, RankStats

SERVING: Final = ""


@dataclass(frozen=True, slots=True)
class Poll:
    """What one poll of an engine showed of a rank; ``at`` is monotonic, in seconds."""

    at: float
    metrics: LoadMetrics
    operations: Operations = AWAKE
    stats: RankStats | None = None
    """None without the plugin, or an answer of it."""
    silent: bool = False
    """The engine itself, which answers the plugin between its steps, did not do so in time."""
    paused: bool = False
    """What the engine says, where the plugin does not."""

    @property
    def has_work(self) -> bool:
        """Whether requests wait or run. Of gauges alone that is not believed: they outlive requests that were aborted,
        and an engine that is held to be stuck gets none by which they would change.
        """
        return self.silent or (self.stats is not None and self.stats.unfinished_requests > 0)


@dataclass(frozen=True, slots=True)
class Serving:
    """Whether one rank serves, as of its last poll."""

    suspended: str = SERVING
    """A Suspension, or "" where it serves."""
    reported: str = SERVING
    """What the engine said of itself last, by plugin, metrics or a question."""
    shown: LoadMetrics | None = None
    still_since: float | None = None
    """Since when it has work, and every poll has shown the same metrics; None where it has none."""


UNPOLLED: Final = Serving()


def step(before: Serving, poll: Poll, *, stuck_seconds: float) -> Serving:
    """The state after another poll; a rank with requests that shows no change for ``stuck_seconds`` is stuck, 0: never.

    An engine that gives its memory back answers nothing meanwhile, so what it said last stands until it says more.
    """
    reported = _reported(before, poll)
    since = _still_since(before, poll)
    stuck = stuck_seconds > 0 and since is not None and poll.at - since >= stuck_seconds
    suspended = _under_way(poll.operations) or reported or (Suspension.STUCK if stuck else SERVING)
    return Serving(suspended, reported, poll.metrics, since)


def _still_since(before: Serving, poll: Poll) -> float | None:
    if not poll.has_work:
        return None
    moved = before.still_since is None or before.shown != poll.metrics
    return poll.at if moved else before.still_since


def _reported(before: Serving, poll: Poll) -> str:
    if poll.stats is not None and poll.stats.suspended is not None:
        return poll.stats.suspended
    if poll.silent and before.reported:
        return before.reported
    if poll.metrics.asleep:
        return Suspension.ASLEEP
    return Suspension.PAUSED if poll.paused else SERVING


def _under_way(operations: Operations) -> str:
    if operations.updating:
        return Suspension.UPDATING_WEIGHTS
    return Suspension.ASLEEP if operations.sleeping else SERVING
