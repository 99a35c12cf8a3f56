"""Causes in prompts of the last hour by pool and tenant: who computes what again, and what the mend is worth. Pure.

Time is an argument. The latest lines are kept, in steps of STEP_SECONDS; of a line there are at most as many sums as
causes, parts and roles.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from msgspec import Struct

from cachefleet_controlplane.prompt_causes.prompt_cause import NOT_MENDED, PromptCause
from cachefleet_runtime.lru import LruMap

STEP_SECONDS: Final = 600
STEPS: Final = 6
MAX_LINES: Final = 1024
"""Pairs of pool and tenant that are kept; the one heard of longest ago is dropped first."""
DAY: Final = 86_400


class Place(NamedTuple):
    """A cause, and where in prompts it is: part and role as in answers."""

    cause: PromptCause
    part: str
    role: str


class Offence(Struct, frozen=True, kw_only=True):
    """What one cause at one place costs a tenant of a pool."""

    pool: str
    tenant: str
    place: Place
    tokens: int
    """Computed for it in the last hour."""
    prompt_tokens: int
    """Of all the tenant's prompts there, in that time."""
    seconds: float
    """How much of the last hour the tenant is known for, in whole steps."""

    @property
    def points(self) -> float:
        """By how many percentage points the tenant's hit ratio would be higher."""
        return 100 * self.tokens / self.prompt_tokens if self.prompt_tokens else 0.0

    @property
    def tokens_a_day(self) -> int:
        """At this pace."""
        return round(self.tokens * DAY / self.seconds)


class _Step(Struct):
    at: int
    prompt_tokens: int
    causes: Counter[Place]


class CauseLedger:
    """Adds up causes by pool and tenant; times are Unix seconds."""

    def __init__(self, lines: int = MAX_LINES) -> None:
        self._lines: LruMap[tuple[str, str], deque[_Step]] = LruMap(lines)

    def add(
        self, line: tuple[str, str], prompt_tokens: int, causes: Iterable[tuple[Place, int]], *, now: float
    ) -> None:
        """Count an ended request of a pool and tenant, and the tokens of its causes."""
        at = int(now // STEP_SECONDS) * STEP_SECONDS
        steps = self._lines.use(line)
        if steps is None:
            steps = deque(maxlen=STEPS)
            self._lines.put(line, steps)
        if not steps or steps[-1].at < at:
            steps.append(_Step(at, 0, Counter()))
        steps[-1].prompt_tokens += prompt_tokens
        for place, tokens in causes:
            if place.cause not in NOT_MENDED:
                steps[-1].causes[place] += tokens

    def offences(self, pool: str | None, now: float, *, most: int) -> list[Offence]:
        """Those of a pool, or of all, in the last hour; the dearest first."""
        found = [one for line, steps in self._lines.items() if pool in {None, line[0]} for one in _of(line, steps, now)]
        return sorted(found, key=lambda one: (-one.tokens, one.pool, one.tenant, one.place))[:most]


def _of(line: tuple[str, str], steps: Iterable[_Step], now: float) -> Iterator[Offence]:
    since = int(now // STEP_SECONDS + 1 - STEPS) * STEP_SECONDS
    recent = [step for step in steps if step.at >= since]
    total = sum((step.causes for step in recent), Counter[Place]())
    prompt_tokens = sum(step.prompt_tokens for step in recent)
    for place, tokens in total.items():
        seconds = max(STEP_SECONDS, now - recent[0].at)
        yield Offence(
            pool=line[0], tenant=line[1], place=place, tokens=tokens, prompt_tokens=prompt_tokens, seconds=seconds
        )
