"""Who waits for room, in which order; and after which time, by the rate of finished requests, to come again. Pure."""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

Fleet = tuple[str, str]
"""Namespace and model."""


@dataclass(frozen=True, slots=True, order=True)
class Ticket:
    """A place in a line; tickets of one line are ordered as they are served."""

    priority: int
    """0 goes first."""
    arrived: float
    """When the request came, in seconds on any one clock."""
    number: int
    """Tells apart what came at the same moment."""
    fleet: Fleet = field(compare=False)
    blocks: int = field(compare=False)
    """What it needs."""


class WaitingRoom:
    """See the module; at most ``places`` tickets at once."""

    def __init__(self, places: int) -> None:
        self._places = places
        self._lines: dict[Fleet, list[Ticket]] = {}
        self._count = 0
        self._numbers = 0

    def __len__(self) -> int:
        return self._count

    def enter(self, fleet: Fleet, *, priority: int, arrived: float, blocks: int) -> Ticket | None:
        """A ticket, or None where every place is taken."""
        if self._count >= self._places:
            return None
        self._numbers += 1
        ticket = Ticket(priority, arrived, self._numbers, fleet, blocks)
        insort(self._lines.setdefault(fleet, []), ticket)
        self._count += 1
        return ticket

    def leave(self, ticket: Ticket) -> bool:
        """Give a place back; False where it was given back before."""
        line = self._lines.get(ticket.fleet, [])
        place = bisect_left(line, ticket)
        if place == len(line) or line[place] != ticket:
            return False
        del line[place]
        self._count -= 1
        if not line:
            del self._lines[ticket.fleet]
        return True

    def first(self, fleet: Fleet) -> Ticket | None:
        """Whose turn it is."""
        line = self._lines.get(fleet)
        return line[0] if line else None

    def before(self, fleet: Fleet, *, priority: int, arrived: float) -> bool:
        """Whether anybody waits who goes before such a request."""
        first = self.first(fleet)
        return first is not None and (first.priority, first.arrived) <= (priority, arrived)

    def fleets(self) -> Iterator[Fleet]:
        """Those that somebody waits for; lines may change meanwhile."""
        return iter(list(self._lines))

    def wanted(self, fleet: Fleet) -> int:
        """Blocks that all who wait for a fleet need."""
        return sum(ticket.blocks for ticket in self._lines.get(fleet, ()))


WINDOW_SECONDS: Final = 30.0
BUCKET_SECONDS: Final = 1.0
"""What ended within one is counted together."""
LEAST_RETRY_SECONDS: Final = 1
MOST_RETRY_SECONDS: Final = 60


class Drain:
    """Blocks of requests that ended within the last WINDOW_SECONDS."""

    def __init__(self, now: float) -> None:
        self._since = now
        self._buckets: deque[tuple[float, int]] = deque()

    def add(self, blocks: int, now: float) -> None:
        """A request that needed so many blocks has ended; one of unknown size counts as one block."""
        blocks = max(1, blocks)
        if self._buckets and now - self._buckets[-1][0] < BUCKET_SECONDS:
            began, counted = self._buckets.pop()
            self._buckets.append((began, counted + blocks))
        else:
            self._buckets.append((now, blocks))
        self._forget(now)

    def retry_after(self, wanted: int, now: float) -> int:
        """Whole seconds until so many blocks will have ended: ``ceil(wanted * seconds / ended)``, from 1 to 60.

        ``seconds`` is the window, or how long it is watched, at least one. Where nothing ended it is the window.
        """
        self._forget(now)
        ended = sum(blocks for _, blocks in self._buckets)
        watched = min(WINDOW_SECONDS, max(BUCKET_SECONDS, now - self._since))
        seconds = max(1, wanted) * watched / ended if ended else WINDOW_SECONDS
        return min(MOST_RETRY_SECONDS, max(LEAST_RETRY_SECONDS, math.ceil(seconds)))

    def _forget(self, now: float) -> None:
        while self._buckets and now - self._buckets[0][0] >= WINDOW_SECONDS:
            self._buckets.popleft()
