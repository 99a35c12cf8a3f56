"""Start-time fair queueing among the tenants of one priority of one fleet, by computed tokens. Pure.

Each tenant has a start: the virtual time at which its next request begins, in tokens by weight. A request that is sent
moves it on by its tokens, predicted at first and corrected when it has ended; the virtual time of all is the latest
start of a request that was sent. Who has asked for less than its share begins earlier, by what it left to others,
CREDIT at most: a few requests at once go before those of a tenant that always waits. So of tenants that wait all the
time none is ahead of another by more than one request of each, and one that comes to wait by CREDIT more.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

from msgspec import Struct

from cachefleet_controlplane.gateway.place.keyed_heap import KeyedHeap
from cachefleet_controlplane.store.tenant_records import DEFAULT_WEIGHT

Fleet = tuple[str, str]
"""Namespace and model."""

MAX_IDLE: Final = 1024
"""Tenants whose start is remembered though nothing of theirs waits or runs; beyond, that of all of these is dropped."""

MAX_RESTARTED: Final = 8
"""Tenants that are kept, without what they asked for, while nothing of any waits or runs."""

CREDIT: Final = 8192
"""Tokens of a tenant of the default weight that count though it left them to others; of others by their weight."""
_CREDIT: Final = CREDIT / DEFAULT_WEIGHT
"""In virtual time, which is equal for all."""
UNDER_SHARE: Final = 3
"""How many times as much as the bounds say a worker may be sent of a tenant that is under its share."""


class Claim(Struct, frozen=True, gc=False):
    """Whose request it is, and in which line it waits, if it has to."""

    fleet: Fleet
    priority: int
    """0 goes first."""
    arrived: float
    """When it came, in seconds on any one clock."""
    tenant: str = ""
    weight: int = DEFAULT_WEIGHT
    """Of the tenant's share."""
    bounded: bool = True
    """Whether a pool may bound what is sent of its tenant: then it counts who else uses the fleet."""


@dataclass(frozen=True, slots=True, order=True)
class Ticket:
    """A place in a line; tickets of one tenant and priority sort in the order of service."""

    priority: int
    arrived: float
    number: int
    """Breaks ties of arrival."""
    claim: Claim = field(compare=False)
    blocks: int = field(compare=False)
    """KV cache blocks that it needs."""
    tokens: int = field(compare=False, default=1)
    """That it is expected to compute."""

    @property
    def fleet(self) -> Fleet:
        """Its line."""
        return self.claim.fleet

    @property
    def tenant(self) -> str:
        """Whose it is."""
        return self.claim.tenant


class _Share:
    __slots__ = ("running", "start", "tickets", "weight")

    def __init__(self, start: float) -> None:
        self.start = start
        self.weight = DEFAULT_WEIGHT
        self.running = 0
        self.tickets: list[Ticket] = []

    def starts(self) -> Iterator[tuple[float, Ticket]]:
        """The virtual starts of all that wait, were they sent one after the other."""
        start = self.start
        for ticket in self.tickets:
            yield start, ticket
            start += ticket.tokens / self.weight

    def blocks_before(self, start: float) -> int:
        """Blocks of its tickets that start before a virtual time."""
        return sum(ticket.blocks for begins, ticket in self.starts() if begins < start)


class FairShares:
    """The tenants of one priority of one fleet: what they wait for, and how far each is ahead."""

    __slots__ = ("_order", "_shares", "_virtual", "running", "waiting")

    def __init__(self) -> None:
        self._virtual = 0.0
        self._shares: dict[str, _Share] = {}
        self._order: KeyedHeap[str, tuple[float, float, int]] = KeyedHeap()
        self.running = 0
        """Requests."""
        self.waiting = 0
        """Tickets."""

    @property
    def idle(self) -> bool:
        """Whether nothing waits and nothing runs: then nothing needs to be remembered."""
        return not (self.waiting or self.running)

    @property
    def _earliest(self) -> float:
        """The start of a tenant that has asked for nothing for long."""
        return self._virtual - _CREDIT

    def restart(self) -> None:
        """Forget what was asked for so far: nothing waits, and nothing runs any more."""
        self._virtual, self.running = 0.0, 0
        if len(self._shares) > MAX_RESTARTED:
            self._shares.clear()
        for share in self._shares.values():
            share.start, share.running = -_CREDIT, 0

    def enter(self, ticket: Ticket) -> None:
        """Have a ticket wait."""
        share = self._of(ticket.claim)
        if not share.tickets:
            share.start = max(share.start, self._earliest)
        insort(share.tickets, ticket)
        self.waiting += 1
        self._placed(ticket.tenant, share)

    def leave(self, ticket: Ticket) -> bool:
        """Take a ticket out; False where it is out."""
        share = self._shares.get(ticket.tenant)
        place = bisect_left(share.tickets, ticket) if share else 0
        if share is None or place == len(share.tickets) or share.tickets[place] != ticket:
            return False
        del share.tickets[place]
        self.waiting -= 1
        self._placed(ticket.tenant, share)
        return True

    def first(self) -> Ticket | None:
        """Return the ticket whose turn it is; None where none waits."""
        tenant = self._order.first()
        return None if tenant is None else self._shares[tenant].tickets[0]

    def leading(self, most: int) -> list[Ticket]:
        """Return the first tickets in the order of service, as far as it is foreseen."""
        waiting = [share.starts() for share in self._shares.values() if share.tickets]
        merged = heapq.merge(*waiting, key=lambda one: (one[0], one[1].arrived, one[1].number))
        return [ticket for _, ticket in islice(merged, most)]

    def start(self, tenant: str) -> float:
        """Return the virtual time at which a tenant's next request begins."""
        share = self._shares.get(tenant)
        if share is None:
            return self._earliest
        return share.start if share.tickets else max(share.start, self._earliest)

    def under(self, tenant: str) -> bool:
        """Whether a tenant has asked for less than its share so far."""
        return self.start(tenant) < self._virtual

    def blocks_before(self, claim: Claim) -> int:
        """Return the blocks of those that would go before one more request: all of its tenant, and of others those that
        begin before it would. O(tickets).
        """
        own = self._shares.get(claim.tenant)
        waiting = own.tickets if own else []
        start = self.start(claim.tenant) + sum(ticket.tokens for ticket in waiting) / claim.weight
        others = (share for tenant, share in self._shares.items() if tenant != claim.tenant)
        return sum(ticket.blocks for ticket in waiting) + sum(share.blocks_before(start) for share in others)

    def began(self, claim: Claim, tokens: int) -> None:
        """Charge a request that is sent now with the tokens that it is expected to compute; ``ended`` has to follow."""
        share = self._shares.get(claim.tenant)
        if share is None or share.weight != claim.weight:
            share = self._of(claim)
        start = share.start
        if start > self._virtual:
            self._virtual = start
        elif not share.tickets:
            start = max(start, self._virtual - _CREDIT)
        share.start = start + tokens / claim.weight
        share.running += 1
        self.running += 1
        if share.tickets:
            self._placed(claim.tenant, share)

    def ended(self, claim: Claim, more: int) -> None:
        """Correct what a request was charged by so many tokens, which may be less than 0."""
        self.running -= 1
        share = self._shares.get(claim.tenant)
        if share is None:
            return
        share.running -= 1
        share.start += more / claim.weight
        if share.tickets:
            self._placed(claim.tenant, share)
        elif not share.running and share.start <= self._virtual - _CREDIT:
            del self._shares[claim.tenant]

    def _of(self, claim: Claim) -> _Share:
        share = self._shares.get(claim.tenant)
        if share is None:
            if len(self._shares) >= MAX_IDLE:
                self._shares = {name: one for name, one in self._shares.items() if one.tickets or one.running}
            share = self._shares[claim.tenant] = _Share(self._earliest)
        share.weight = claim.weight
        return share

    def _placed(self, tenant: str, share: _Share) -> None:
        if share.tickets:
            first = share.tickets[0]
            self._order.put(tenant, (share.start, first.arrived, first.number))
            return
        self._order.drop(tenant)
        if not share.running and share.start <= self._earliest:
            del self._shares[tenant]
