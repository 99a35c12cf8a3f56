"""The order of requests that wait for room, and Retry-After by the rate of finished requests. Pure.

Within a priority the tenant goes first that has the fewest sequences running (max-min fairness), so that who asks for
much holds up nobody else; requests of one tenant go by arrival.
"""

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
    """A place in a line; tickets of one line sort in the order of service."""

    priority: int
    """0 goes first."""
    arrived: float
    """When the request came, in seconds on any one clock."""
    number: int
    """Breaks ties of arrival."""
    fleet: Fleet = field(compare=False)
    blocks: int = field(compare=False)
    """KV cache blocks that it needs."""
    tenant: str = field(default="", compare=False)


class WaitList:
    """A line for each fleet, by priority and arrival; at most ``places`` tickets in all."""

    def __init__(self, places: int) -> None:
        self._places = places
        self._lines: dict[Fleet, list[Ticket]] = {}
        self._running: dict[Fleet, dict[str, int]] = {}
        self._count = 0
        self._numbers = 0

    def __len__(self) -> int:
        return self._count

    def enter(self, fleet: Fleet, *, priority: int, arrived: float, blocks: int, tenant: str = "") -> Ticket | None:
        """Return a ticket; None where every place is taken."""
        if self._count >= self._places:
            return None
        self._numbers += 1
        ticket = Ticket(priority, arrived, self._numbers, fleet, blocks, tenant)
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
        """Return the ticket whose turn it is; None where nobody waits."""
        line = self._lines.get(fleet)
        if not line:
            return None
        running = self._running.get(fleet)
        return min(line, key=lambda one: (one.priority, running.get(one.tenant, 0))) if running else line[0]

    def before(self, fleet: Fleet, *, priority: int, arrived: float, tenant: str = "") -> bool:
        """Whether a waiting ticket goes before such a request."""
        first = self.first(fleet)
        if first is None:
            return False
        running = self._running.get(fleet, {})
        mine, theirs = running.get(tenant, 0), running.get(first.tenant, 0)
        return (first.priority, theirs, first.arrived) <= (priority, mine, arrived)

    def run(self, fleet: Fleet, tenant: str, sequences: int) -> None:
        """Count a tenant's sequences that run from now on, or where negative no more."""
        running = self._running.setdefault(fleet, {})
        running[tenant] = running.get(tenant, 0) + sequences
        if running[tenant] <= 0:
            del running[tenant]
        if not running:
            del self._running[fleet]

    def fleets(self) -> Iterator[Fleet]:
        """Iterate over the fleets that have lines; lines may change meanwhile."""
        return iter(list(self._lines))

    def waiting(self, fleet: Fleet) -> int:
        """Return how many tickets of a fleet wait."""
        return len(self._lines.get(fleet, ()))

    def wanted(self, fleet: Fleet) -> int:
        """Return the blocks that all tickets of a fleet need."""
        return sum(ticket.blocks for ticket in self._lines.get(fleet, ()))


WINDOW_SECONDS: Final = 30.0
BUCKET_SECONDS: Final = 1.0
"""Requests that end within one bucket are counted together."""
LEAST_RETRY_SECONDS: Final = 1
MOST_RETRY_SECONDS: Final = 60


class ServiceRate:
    """Service rate of one fleet: blocks of requests that ended within the last WINDOW_SECONDS in which it was busy.

    Time in which no request was in flight does not pass here: it says nothing of how fast requests end.
    """

    def __init__(self) -> None:
        self._open = 0
        self._seen = 0.0
        self._busy = 0.0
        """Seconds, up to ``_seen``, with a request in flight."""
        self._buckets: deque[tuple[float, int]] = deque()

    def began(self, now: float) -> None:
        """Count a request that is in flight from now on."""
        self._pass(now)
        self._open += 1

    def ended(self, blocks: int, now: float) -> None:
        """Count the blocks of a request that has ended; one of unknown size counts as one block."""
        self._pass(now)
        self._open = max(0, self._open - 1)
        blocks = max(1, blocks)
        if self._buckets and self._busy - self._buckets[-1][0] < BUCKET_SECONDS:
            began, counted = self._buckets.pop()
            self._buckets.append((began, counted + blocks))
        else:
            self._buckets.append((self._busy, blocks))
        self._forget()

    def retry_after(self, wanted: int, now: float) -> int:
        """Return whole seconds until so many blocks will have ended: ``ceil(wanted * seconds / ended)``, from 1 to 60.

        ``seconds`` is the window, or the busy time so far, at least 1. Where nothing ended the result is the window.
        """
        self._pass(now)
        self._forget()
        ended = sum(blocks for _, blocks in self._buckets)
        watched = min(WINDOW_SECONDS, max(BUCKET_SECONDS, self._busy))
        seconds = max(1, wanted) * watched / ended if ended else WINDOW_SECONDS
        return min(MOST_RETRY_SECONDS, max(LEAST_RETRY_SECONDS, math.ceil(seconds)))

    def _pass(self, now: float) -> None:
        if self._open:
            self._busy += max(0.0, now - self._seen)
        self._seen = now

    def _forget(self) -> None:
        while self._buckets and self._busy - self._buckets[0][0] >= WINDOW_SECONDS:
            self._buckets.popleft()
