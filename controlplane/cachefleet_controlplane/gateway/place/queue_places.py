"""The places of the queue: who gives up one for a request that finds all of them taken. Pure.

Places of one priority are shared by weight, over all fleets. A request that finds none takes that of the last ticket of
the lowest priority, of the tenant there that holds most places for its weight; of its own priority only where that
tenant would still hold more than its own one with this request.
"""

from __future__ import annotations

from bisect import bisect_left, insort

from cachefleet_controlplane.gateway.place.fair_shares import Claim, Ticket
from cachefleet_controlplane.gateway.place.keyed_heap import KeyedHeap


class _Held:
    """The tickets of one priority, by tenant."""

    __slots__ = ("by_tenant", "most")

    def __init__(self) -> None:
        self.by_tenant: dict[str, list[Ticket]] = {}
        self.most: KeyedHeap[str, float] = KeyedHeap()

    def placed(self, claim: Claim) -> None:
        """Note how many a tenant holds now."""
        held = len(self.by_tenant[claim.tenant])
        if held:
            self.most.put(claim.tenant, -held / claim.weight)
        else:
            self.most.drop(claim.tenant)
            del self.by_tenant[claim.tenant]


class Places:
    """At most ``most`` tickets."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._count = 0
        self._held: dict[int, _Held] = {}
        self._priorities: list[int] = []

    def __len__(self) -> int:
        return self._count

    @property
    def full(self) -> bool:
        """Whether every place is taken."""
        return self._count >= self.most

    def take(self, ticket: Ticket) -> None:
        """Give a ticket a place."""
        held = self._held.get(ticket.priority)
        if held is None:
            held = self._held[ticket.priority] = _Held()
            insort(self._priorities, ticket.priority)
        insort(held.by_tenant.setdefault(ticket.tenant, []), ticket)
        held.placed(ticket.claim)
        self._count += 1

    def give_back(self, ticket: Ticket) -> None:
        """Free the place of a ticket that has one."""
        held = self._held[ticket.priority]
        tickets = held.by_tenant[ticket.tenant]
        del tickets[bisect_left(tickets, ticket)]
        held.placed(ticket.claim)
        self._count -= 1
        if not held.by_tenant:
            del self._held[ticket.priority]
            del self._priorities[bisect_left(self._priorities, ticket.priority)]

    def displaced(self, claim: Claim) -> Ticket | None:
        """Return the ticket whose place a request takes where all are taken; None where it gets none."""
        if not self._priorities or self._priorities[-1] < claim.priority:
            return None
        held = self._held[self._priorities[-1]]
        tenant = held.most.first()
        if tenant is None:
            return None
        last = held.by_tenant[tenant][-1]
        if self._priorities[-1] > claim.priority:
            return last
        own = (len(held.by_tenant.get(claim.tenant, ())) + 1) / claim.weight
        return last if (len(held.by_tenant[tenant]) - 1) / last.claim.weight >= own else None
