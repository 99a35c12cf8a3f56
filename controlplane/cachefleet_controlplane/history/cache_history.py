"""The last hour in steps, by pool and for the whole fleet, in rings of fixed size. Pure: time is an argument.

Answers are added as they end; load and blocks are set once a step. A pool of which nothing was heard for an hour is
dropped, and for a new one beyond ``pools`` the one that was heard of longest ago. Where all were heard of just now, the
new one is not kept, or each would lose its hour to the next. The whole fleet's ring has all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from msgspec import Struct

from cachefleet_controlplane.prompt_causes.prompt_cause import PromptCause
from cachefleet_controlplane.routing.lost_tokens import LostCause

STEP_SECONDS: Final = 10
HOUR_STEPS: Final = 360
MAX_POOLS: Final = 64
FLEET: Final = ""
"""In place of a pool's key: all pools together."""


class Answered(Struct, kw_only=True):
    """Sums of answered requests."""

    requests: int = 0
    prompt_tokens: int = 0
    served_tokens: int = 0
    lost: dict[LostCause, int] = {}
    """Adds up to the prompt tokens less the served ones."""
    first_seen: dict[PromptCause, int] = {}
    """Of those that no worker held, by cause in the prompt; adds up to them."""
    shortfall_tokens: int = 0
    """Served less than predicted."""
    surplus_tokens: int = 0
    """Served beyond what was predicted."""
    ttft_sum: float = 0.0
    ttft_count: int = 0

    def add(self, more: Answered) -> None:
        """Count these, too."""
        self.requests += more.requests
        self.prompt_tokens += more.prompt_tokens
        self.served_tokens += more.served_tokens
        self.shortfall_tokens += more.shortfall_tokens
        self.surplus_tokens += more.surplus_tokens
        self.ttft_sum += more.ttft_sum
        self.ttft_count += more.ttft_count
        for cause, tokens in more.lost.items():
            self.lost[cause] = self.lost.get(cause, 0) + tokens
        for reason, tokens in more.first_seen.items():
            self.first_seen[reason] = self.first_seen.get(reason, 0) + tokens

    @property
    def ttft_seconds(self) -> float | None:
        """The mean; None where no answer told."""
        return self.ttft_sum / self.ttft_count if self.ttft_count else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Gauges:
    """Load and blocks of a pool at one time; None where nobody tells."""

    running: int = 0
    waiting: int = 0
    """In the queues of its engines."""
    queued: int = 0
    """At the gateway, for its model."""
    held_blocks: int = 0
    idle_blocks: int | None = None
    budget_blocks: int | None = None
    """Idle blocks that its workers may keep, in all."""
    hit_ratio: float | None = None
    """Over the window of the pool's objective: see ``views.HitRatio``."""


class HistoryStep(Answered, kw_only=True):
    """What happened in one step; ``at`` is its beginning in Unix seconds."""

    at: int
    failed: int = 0
    """Requests whose client got an error of the service (5xx), or a stream that broke."""
    gauges: Gauges | None = None
    """None where it was not sampled."""


class _Ring:
    """The steps of an hour; each place is taken over by the step an hour later."""

    __slots__ = ("_steps", "heard")

    def __init__(self) -> None:
        self._steps: list[HistoryStep | None] = [None] * HOUR_STEPS
        self.heard = 0

    def at(self, now: float) -> HistoryStep:
        """The step of this time."""
        begins = int(now // STEP_SECONDS) * STEP_SECONDS
        place = begins // STEP_SECONDS % HOUR_STEPS
        step = self._steps[place]
        if step is None or step.at != begins:
            step = self._steps[place] = HistoryStep(at=begins)
        self.heard = begins
        return step

    def steps(self, now: float) -> list[HistoryStep]:
        """The steps of the last hour, first to last."""
        last = int(now // STEP_SECONDS) * STEP_SECONDS
        oldest = last - (HOUR_STEPS - 1) * STEP_SECONDS
        return sorted((step for step in self._steps if step and oldest <= step.at <= last), key=lambda step: step.at)


class CacheHistory:
    """Rings by pool; times in Unix seconds. ``settle`` is called before steps are read: what is to be added yet is."""

    def __init__(self, pools: int = MAX_POOLS) -> None:
        self.settle: Callable[[], None] = lambda: None
        self._most = pools
        self._rings: dict[str, _Ring] = {FLEET: _Ring()}

    def add(self, pool: str, answered: Answered, now: float) -> None:
        """Count answered requests in their pool and in the fleet."""
        for key in (FLEET, pool):
            if (ring := self._ring(key, now)) is not None:
                ring.at(now).add(answered)

    def fail(self, pool: str, now: float) -> None:
        """Count a failed request in its pool, FLEET where it came to none, and in the fleet."""
        for key in dict.fromkeys((FLEET, pool)):
            if (ring := self._ring(key, now)) is not None:
                ring.at(now).failed += 1

    def sample(self, gauges: Mapping[str, Gauges], now: float) -> None:
        """Set load and blocks of pools (FLEET: of all together) in the step of this time; drop pools long unheard."""
        for pool, told in sorted(gauges.items(), key=lambda one: one[0] not in self._rings):
            if (ring := self._ring(pool, now)) is not None:
                ring.at(now).gauges = told
        self._forget(now)

    def steps(self, pool: str, now: float) -> list[HistoryStep]:
        """The last hour of a pool, or of the FLEET, first to last; empty for a pool of which nothing is known."""
        self.settle()
        ring = self._rings.get(pool)
        return [] if ring is None else ring.steps(now)

    def _ring(self, pool: str, now: float) -> _Ring | None:
        """The ring of a pool, new where it has none; None where there is no room."""
        if pool not in self._rings:
            if len(self._rings) > self._most and not self._make_room(now):
                return None
            self._rings[pool] = _Ring()
        return self._rings[pool]

    def _make_room(self, now: float) -> bool:
        """Drop the pool heard of longest ago; not one of this step or the one before."""
        oldest = min((key for key in self._rings if key != FLEET), key=lambda key: self._rings[key].heard)
        idle = now - self._rings[oldest].heard >= 2 * STEP_SECONDS
        if idle:
            del self._rings[oldest]
        return idle

    def _forget(self, now: float) -> None:
        hour = HOUR_STEPS * STEP_SECONDS
        for pool in [key for key, ring in self._rings.items() if key != FLEET and now - ring.heard > hour]:
            del self._rings[pool]
