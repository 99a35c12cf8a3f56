"""Who waits for room, and in which order. Pure.

There is one line for each fleet, ordered by priority (0 first) and then by arrival, however late one comes to wait; and
so many places over all lines. The order is strict: whoever comes later goes later, even where it would fit and the one
before it does not, so that large requests are not starved by small ones.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from dataclasses import dataclass, field

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
