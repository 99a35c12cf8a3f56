"""One contract's minutes: what happened in each, whether it was met, and why not. Pure: minutes are numbers since 1970.

A minute is judged when it has ended, by this table; it is met where no row holds, and not judged without a worker:

| row | holds where |
|---|---|
| ``not_enforced`` | a ready worker reports nothing of the contract: it has no plugin, or no budget |
| ``evicted`` | blocks within share and retention were evicted in this minute, since running requests needed them |
| ``hit_objective`` | the objective's window has its tokens, and fewer of them came from cache than the objective says |

A tenant that has less to keep than its share asks for nothing more, so that breaks no contract.
"""

from __future__ import annotations

from collections import Counter, deque
from enum import StrEnum
from typing import Final

from msgspec import Struct, field

from cachefleet_controlplane.history.cache_history import Answered
from cachefleet_controlplane.judgements.judged_minutes import HOUR_MINUTES, JudgedMinutes, Tally
from cachefleet_controlplane.routing.lost_tokens import LostCause
from cachefleet_core.pool.policy import CacheContract, HitObjective

DAY_HOURS: Final = 24
MONTH_HOURS: Final = 31 * DAY_HOURS
DEFAULT_WINDOW_SECONDS: Final = 600
"""Over which the hit ratio is shown of a contract without an objective."""


class Miss(StrEnum):
    """Why a minute did not meet the contract; the value is a metric's label."""

    NOT_ENFORCED = "not_enforced"
    EVICTED = "evicted"
    HIT_OBJECTIVE = "hit_objective"


class Tokens(Struct):
    """Prompt tokens of answers, and those that no cache served, by cause."""

    prompt: int = 0
    served: int = 0
    lost: Counter[LostCause] = field(default_factory=Counter)

    def add(self, more: Tokens) -> None:
        """Count these, too."""
        self.prompt += more.prompt
        self.served += more.served
        self.lost.update(more.lost)

    @property
    def ratio(self) -> float | None:
        """Share from cache; None where there were none."""
        return self.served / self.prompt if self.prompt else None


def judge(contract: CacheContract, window: Tokens, *, evicted: int, enforced: bool) -> tuple[Miss, ...]:
    """Why a minute does not meet its contract; nothing where it does. ``window`` is the objective's, to its end."""
    rows = (
        (Miss.NOT_ENFORCED, not enforced),
        (Miss.EVICTED, evicted > 0),
        (Miss.HIT_OBJECTIVE, _below(contract.hit_objective, window)),
    )
    return tuple(miss for miss, holds in rows if holds)


def _below(objective: HitObjective | None, window: Tokens) -> bool:
    if objective is None or not window.prompt or window.prompt < objective.min_tokens:
        return False
    return window.served < objective.ratio * window.prompt


class ContractMinutes:
    """The minutes of one contract: those of the objective's window, an hour one by one, a month by the hour."""

    def __init__(self, minute: int) -> None:
        self.minute = minute
        """The one that runs."""
        self.last: tuple[Miss, ...] | None = None
        """Why the last one that was judged did not meet the contract; None before any."""
        self.total = Tally()
        """Since this process began."""
        self.judged = JudgedMinutes(MONTH_HOURS)
        self._now = Tokens()
        self._evicted = 0
        self._window: deque[tuple[int, Tokens]] = deque()

    def answered(self, answered: Answered) -> None:
        """Count answers whose engines tell what came from cache."""
        self._now.add(Tokens(answered.prompt_tokens, answered.served_tokens, Counter(answered.lost)))

    def evict(self, blocks: int) -> None:
        """Count blocks evicted against the contract."""
        self._evicted += blocks

    def end(self, minute: int, contract: CacheContract, *, enforced: bool | None) -> None:
        """End the minute that runs, and begin another; ``enforced`` is None where no worker is ready."""
        self._window.append((self.minute, self._now))
        if enforced is not None:
            window = self.window(contract)
            self._judged(judge(contract, window, evicted=self._evicted, enforced=enforced))
        self.minute, self._now, self._evicted = minute, Tokens(), 0
        _forget(self._window, minute - _minutes(contract))

    def set_back(self, minute: int) -> None:
        """The clock was set back to this minute: those from it on come again."""
        self.minute = minute
        while self._window and self._window[-1][0] >= minute:
            self._window.pop()

    def _judged(self, misses: tuple[Miss, ...]) -> None:
        self.last = misses
        self.judged.judge(self.minute, misses, evicted=self._evicted, of=Miss.EVICTED)
        self.total.add(Tally(1, int(not misses), Counter(misses), self._evicted))

    def window(self, contract: CacheContract) -> Tokens:
        """Tokens of the objective's window, in whole minutes up to the last that ended."""
        found = Tokens()
        oldest = (self._window[-1][0] if self._window else self.minute) - _minutes(contract)
        for minute, tokens in self._window:
            if minute > oldest:
                found.add(tokens)
        return found

    def hour(self) -> Tally:
        """The last 60 minutes."""
        return self.judged.tally(self.minute - HOUR_MINUTES, self.minute)

    def day(self) -> Tally:
        """The hour that runs and the 23 before."""
        return self._hours(DAY_HOURS)

    def month(self) -> Tally:
        """The hour that runs and those before, of 31 days."""
        return self._hours(MONTH_HOURS)

    def _hours(self, number: int) -> Tally:
        return self.judged.tally((self.minute // HOUR_MINUTES - number + 1) * HOUR_MINUTES, self.minute)


def _minutes(contract: CacheContract) -> int:
    objective = contract.hit_objective
    seconds = objective.window_seconds if objective else DEFAULT_WINDOW_SECONDS
    return -(-seconds // 60)


def _forget(entries: deque[tuple[int, Tokens]], before: int) -> None:
    while entries and entries[0][0] < before:
        entries.popleft()
