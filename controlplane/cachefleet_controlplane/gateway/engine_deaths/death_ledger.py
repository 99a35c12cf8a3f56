"""Deaths of engines, and which requests in flight are to be suspected of them. Pure.

A request is known by a digest of its body alone. What an engine loses with its end belongs to one death: whatever was
sent there before it ended. The *suspects* of a death are the requests that had no token yet, since what ends engines
mostly does so as its prompt is computed; where all had tokens, all are suspects. Who is answered later is a suspect no
more. A digest that is a suspect of two deaths is

- FATAL where no other one is a suspect of both: it is refused for ``seconds``;
- DOUBTFUL where others are, too: each of them may be tried by itself, which tells them apart.

A death that a FATAL digest explains makes nobody else a suspect. Nobody is FATAL before the last death is
SETTLE_SECONDS old: what was in flight there is noted by one request after the other.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

MAX_DEATHS: Final = 64
"""Deaths that are remembered; beyond, the oldest is dropped."""
MAX_LOSSES: Final = 256
"""Requests that are remembered of one death; of more nothing is known, so they are not suspected."""
REMEMBER_SECONDS: Final = 600.0
"""How long a death is remembered, and how long what was in flight twice is refused."""
SETTLE_SECONDS: Final = 0.25
"""How long after a death the last request that was in flight is noted."""
DEATHS_NEEDED: Final = 2


class FatalVerdict(StrEnum):
    """Whether a request may be sent to an engine."""

    FREE = "free"
    DOUBTFUL = "doubtful"
    """By itself: one of those that were in flight at two deaths."""
    FATAL = "fatal"
    """Not at all, for a while."""


@dataclass(slots=True, eq=False)
class Death:
    """The end of one worker's engine; ``losses`` says of each digest whether it had produced a token."""

    worker: str
    at: float
    losses: dict[bytes, bool] = field(default_factory=dict)

    def note(self, digest: bytes, *, produced: bool) -> None:
        """Note a request that was in flight; equal requests are one, and suspected if any had no token."""
        if digest in self.losses:
            self.losses[digest] &= produced
        elif len(self.losses) < MAX_LOSSES:
            self.losses[digest] = produced

    def suspects(self) -> frozenset[bytes]:
        """Those without a token; all where there are none."""
        return frozenset(one for one, produced in self.losses.items() if not produced) or frozenset(self.losses)


class DeathLedger:
    """The deaths of a while; ``now`` is in seconds on any one clock, as are times of requests."""

    def __init__(self, *, seconds: float = REMEMBER_SECONDS) -> None:
        self._seconds = seconds
        self._deaths: deque[Death] = deque(maxlen=MAX_DEATHS)
        self._fatal: dict[bytes, float] = {}
        """Until when each is refused."""
        self._suspected: frozenset[bytes] = frozenset()
        """In doubt, or fatal once the last death is settled."""
        self._judged = True
        """Nothing has changed since."""

    @property
    def empty(self) -> bool:
        """Nothing is suspected."""
        return not self._deaths and not self._fatal

    def lost(self, worker: str, digest: bytes, *, began: float, produced: bool, now: float) -> bool:
        """Note a request that was sent to a worker at ``began`` and lost with its engine; whether the death is new."""
        self._expire(now)
        death = next((one for one in reversed(self._deaths) if one.worker == worker and began <= one.at), None)
        new = death is None
        if death is None:
            death = Death(worker, now)
            self._deaths.append(death)
        death.note(digest, produced=produced)
        self._judged = False
        return new

    def answered(self, digest: bytes, *, whole: bool, now: float) -> None:
        """Note that an engine has given a request's first token, or all of its answer (``whole``).

        The first token clears it of deaths before its first token, all of the answer of every one.
        """
        for death in self._deaths:
            if whole or not death.losses.get(digest, True):
                self._judged &= death.losses.pop(digest, None) is None
        self._expire(now)

    def verdict(self, digest: bytes, now: float) -> FatalVerdict:
        """Whether a request may be sent."""
        self._expire(now)
        if not self._judged:
            self._judge(now)
        if digest in self._fatal:
            return FatalVerdict.FATAL
        return FatalVerdict.DOUBTFUL if digest in self._suspected else FatalVerdict.FREE

    def unsettled(self, now: float) -> float:
        """The seconds until the last death is settled; 0 where it is."""
        return max(0.0, self._deaths[-1].at + SETTLE_SECONDS - now) if self._deaths else 0.0

    def workers(self, digest: bytes) -> tuple[str, ...]:
        """The workers whose engines ended with a request in flight, by full names."""
        return tuple(dict.fromkeys(death.worker for death in self._deaths if digest in death.losses))

    def refused(self, now: float) -> dict[bytes, float]:
        """Those that are refused now, and for how many seconds more."""
        return {digest: until - now for digest, until in self._fatal.items() if until > now}

    def _expire(self, now: float) -> None:
        while self._deaths and self._deaths[0].at + self._seconds <= now:
            self._deaths.popleft()
            self._judged = False
        if self._fatal and min(self._fatal.values()) <= now:
            self._fatal = {digest: until for digest, until in self._fatal.items() if until > now}

    def _judge(self, now: float) -> None:
        fatal, doubtful = judged(death.suspects() for death in self._deaths)
        self._judged = not self.unsettled(now)
        self._suspected = doubtful if self._judged else doubtful | fatal
        for digest in fatal if self._judged else ():
            self._fatal.setdefault(digest, now + self._seconds)


def judged(deaths: Iterable[frozenset[bytes]]) -> tuple[frozenset[bytes], frozenset[bytes]]:
    """Return the fatal and the doubtful digests, given the suspects of each death."""
    unexplained = list(deaths)
    fatal = frozenset[bytes]()
    while len(unexplained) >= DEATHS_NEEDED:
        groups = _by_deaths(unexplained)
        alone = [members[0] for key, members in groups.items() if _alone(key, groups)]
        if not alone:
            return fatal, frozenset(digest for members in groups.values() for digest in members)
        fatal |= frozenset(alone)
        unexplained = [suspects for suspects in unexplained if suspects.isdisjoint(alone)]
    return fatal, frozenset()


Groups = dict[frozenset[int], list[bytes]]


def _by_deaths(deaths: list[frozenset[bytes]]) -> Groups:
    """The digests that are suspects of the same deaths, by the numbers of these, of which there are several."""
    numbers: dict[bytes, list[int]] = {}
    for number, suspects in enumerate(deaths):
        for digest in suspects:
            numbers.setdefault(digest, []).append(number)
    groups: Groups = {}
    for digest, mine in numbers.items():
        if len(mine) >= DEATHS_NEEDED:
            groups.setdefault(frozenset(mine), []).append(digest)
    return groups


def _alone(key: frozenset[int], groups: Groups) -> bool:
    """Whether one digest is the only suspect of all of these deaths."""
    return len(groups[key]) == 1 and not any(key < other for other in groups)
