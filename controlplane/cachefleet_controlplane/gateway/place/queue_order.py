"""The order of requests that wait for room: by priority, then by the fair shares of tenants, then by arrival. Pure."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator, Sequence
from typing import Final

from cachefleet_controlplane.gateway.place.fair_shares import Claim, FairShares, Fleet, Ticket
from cachefleet_controlplane.gateway.place.queue_places import Places

MAX_EMPTY: Final = 64
"""Fleets, and priorities of one, that are kept while nothing of them waits or runs."""


class _Line:
    """What waits and runs of one fleet, by priority."""

    __slots__ = ("blocks", "count", "levels", "waiting")

    def __init__(self) -> None:
        self.levels: dict[int, FairShares] = {}
        self.waiting: list[int] = []
        """Priorities of which requests wait, in order."""
        self.count = 0
        self.blocks = 0
        """That those who wait need."""

    def level(self, priority: int) -> FairShares:
        """The shares of a priority."""
        level = self.levels.get(priority)
        if level is None:
            level = self.levels[priority] = FairShares()
        return level


class WaitList:
    """A line for each fleet; at most ``places`` tickets in all."""

    def __init__(self, places: int) -> None:
        self._places = Places(places)
        self._lines: dict[Fleet, _Line] = {}
        self._numbers = 0

    def __len__(self) -> int:
        return len(self._places)

    def enter(self, claim: Claim, *, blocks: int, tokens: int = 1) -> tuple[Ticket | None, Ticket | None]:
        """Return a ticket, and the one that has lost its place to it; no ticket where no place is to be had."""
        displaced = None
        if self._places.full:
            displaced = self._places.displaced(claim)
            if displaced is None:
                return None, None
            self.leave(displaced)
        self._numbers += 1
        ticket = Ticket(claim.priority, claim.arrived, self._numbers, claim, blocks, tokens)
        self._take(ticket)
        return ticket, displaced

    def _take(self, ticket: Ticket) -> None:
        line = self._line(ticket.fleet)
        level = line.level(ticket.priority)
        if not level.waiting:
            insort(line.waiting, ticket.priority)
        level.enter(ticket)
        line.count += 1
        line.blocks += ticket.blocks
        self._places.take(ticket)

    def leave(self, ticket: Ticket) -> bool:
        """Give a place back; False where it was given back before."""
        line = self._lines.get(ticket.fleet)
        level = line.levels.get(ticket.priority) if line else None
        if line is None or level is None or not level.leave(ticket):
            return False
        line.count -= 1
        line.blocks -= ticket.blocks
        if not level.waiting:
            del line.waiting[bisect_left(line.waiting, ticket.priority)]
        self._places.give_back(ticket)
        if level.idle:
            level.restart()
        if len(self._lines) > MAX_EMPTY or len(line.levels) > MAX_EMPTY:
            self._forget(ticket.claim, line, level)
        return True

    def first(self, fleet: Fleet) -> Ticket | None:
        """Return the ticket whose turn it is; None where nobody waits."""
        line = self._lines.get(fleet)
        return line.levels[line.waiting[0]].first() if line and line.waiting else None

    def leading(self, fleet: Fleet, most: int) -> Sequence[Ticket]:
        """Return the first tickets of a fleet in the order of service."""
        line, leading = self._lines.get(fleet), list[Ticket]()
        for priority in line.waiting if line else ():
            leading += line.levels[priority].leading(most - len(leading)) if line else ()
            if len(leading) >= most:
                break
        return leading

    def before(self, claim: Claim) -> bool:
        """Whether a waiting ticket goes before such a request."""
        first = self.first(claim.fleet)
        if first is None:
            return False
        if first.priority != claim.priority:
            return first.priority < claim.priority
        level = self._lines[claim.fleet].levels[claim.priority]
        return (level.start(first.tenant), first.arrived) <= (level.start(claim.tenant), claim.arrived)

    def under(self, claim: Claim) -> bool:
        """Whether its tenant has asked for less than its share so far, among those of its priority."""
        line = self._lines.get(claim.fleet)
        level = line.levels.get(claim.priority) if line else None
        return level is not None and not level.idle and level.under(claim.tenant)

    def blocks_before(self, claim: Claim) -> int:
        """Return the blocks of those that would go before such a request, were it to wait. O(tickets)."""
        line = self._lines.get(claim.fleet)
        if line is None:
            return 0
        higher = [priority for priority in line.waiting if priority < claim.priority]
        all_of = sum(ticket.blocks for each in higher for ticket in line.levels[each].leading(line.count))
        level = line.levels.get(claim.priority)
        return all_of + (level.blocks_before(claim) if level else 0)

    def began(self, claim: Claim, tokens: int) -> None:
        """Charge a tenant's share with a request that is sent; ``ended`` has to follow, for an equal claim."""
        line = self._lines.get(claim.fleet) or self._line(claim.fleet)
        (line.levels.get(claim.priority) or line.level(claim.priority)).began(claim, tokens)

    def ended(self, claim: Claim, more: int) -> None:
        """Correct the charge of a request that has ended by so many tokens, which may be less than 0."""
        line = self._lines.get(claim.fleet)
        level = line.levels.get(claim.priority) if line else None
        if line is None or level is None or not level.running:
            return
        if level.running > 1 or level.waiting:
            level.ended(claim, more)
            return
        level.restart()
        if len(self._lines) > MAX_EMPTY or len(line.levels) > MAX_EMPTY:
            self._forget(claim, line, level)

    def fleets(self) -> Iterator[Fleet]:
        """Iterate over the fleets in which requests wait; lines may change meanwhile."""
        return iter([fleet for fleet, line in self._lines.items() if line.waiting])

    def waiting(self, fleet: Fleet) -> int:
        """Return how many tickets of a fleet wait."""
        line = self._lines.get(fleet)
        return line.count if line else 0

    def wanted(self, fleet: Fleet) -> int:
        """Return the blocks that all tickets of a fleet need."""
        line = self._lines.get(fleet)
        return line.blocks if line else 0

    def _line(self, fleet: Fleet) -> _Line:
        line = self._lines.get(fleet)
        if line is None:
            line = self._lines[fleet] = _Line()
        return line

    def _forget(self, claim: Claim, line: _Line, level: FairShares) -> None:
        """Keep nothing of a priority of which nothing waits or runs."""
        if not level.idle:
            return
        del line.levels[claim.priority]
        if not line.levels:
            del self._lines[claim.fleet]
