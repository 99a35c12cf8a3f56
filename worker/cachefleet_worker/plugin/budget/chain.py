"""Chains of idle blocks, and which of those that requests left is evicted next: pure."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Final

from cachefleet_worker.plugin.budget.contract_ages import ENDLESS
from cachefleet_worker.plugin.budget.owners import NOBODY
from cachefleet_worker.plugin.live_policy import Shares

FOREVER_AGO: Final = 0.0

Chains = OrderedDict["Chain", None]
"""Of ended requests, least recently used first."""


class Chain:
    """Idle blocks that one request was the last to use."""

    __slots__ = ("away", "core", "dead", "owner", "seconds", "since", "spare", "until")

    def __init__(self, owner: str = NOBODY, seconds: int = 0) -> None:
        self.owner = owner
        self.seconds = seconds
        """How long its request asks that it be kept."""
        self.until = FOREVER_AGO
        """Until when it is to be kept; set where it was freed."""
        self.since = FOREVER_AGO
        """When it was freed."""
        self.core: dict[int, None] = {}
        """Idle blocks that a full hit on it, or on another chain, needs."""
        self.spare: dict[int, None] = {}
        """Idle blocks that left its window while it ran, oldest first: of use to a branch only."""
        self.away = 0
        """Number of its blocks that running requests use."""
        self.dead = False
        """Evicted, or never kept: its blocks in use will not return to it."""

    @property
    def size(self) -> int:
        """Number of its idle blocks."""
        return len(self.core) + len(self.spare)

    def lose(self, block: int) -> None:
        """Remove a block; unknown ones change nothing."""
        if block in self.core:
            del self.core[block]
        else:
            self.spare.pop(block, None)


def keep(chains: Chains, new: Chain, keepable: int, clock: Callable[[], float]) -> None:
    """Have a chain kept as long as its request asks, and the least recent ones no longer, so that ``keepable`` blocks
    are kept at most.
    """
    room = keepable - new.size
    if not new.seconds or room < 0:
        return
    for other in reversed(chains):
        if other.until:
            room -= other.size
            other.until = other.until if room >= 0 else FOREVER_AGO
    new.until = clock() + new.seconds


@dataclass(frozen=True, slots=True)
class Claims:
    """Idle blocks by owner, and what each owner may keep of the bound where others need it as well."""

    counts: Mapping[str, int]
    shares: Shares
    limit: int | None

    def over(self, owner: str) -> bool:
        """Whether an owner has more than its share."""
        if self.limit is None or self.shares.even:
            return False
        return self.counts.get(owner, 0) > self.shares.cap(owner, self.limit)

    def next_to_go(self, chains: Chains, payer: str | None, now: float) -> Chain:
        """The payer's least recently used chain where it is over its share, else that of others over theirs, else any;
        those to be kept come last, but for those that contracts hold.
        """
        over = {owner for owner in self.counts if self.over(owner)}
        for owners in (over & {payer}, over):
            if owners and (found := _first(chains, now, owners)) is not None:
                return found
        kept: Chain | None = None
        for chain in chains:
            if not self.held(chain, now):
                if chain.until <= now:
                    return chain
                kept = kept or chain
        return kept or next(iter(chains))

    def held(self, chain: Chain, now: float) -> bool:
        """Whether a contract holds a chain: its owner is within its share, the chain within its retention."""
        seconds = None if self.limit is None else self.shares.held.get(chain.owner)
        if seconds is None or self.over(chain.owner):
            return False
        return seconds == ENDLESS or now < chain.since + seconds

    def unaffordable(self, chains: Chains, owner: str, idle: int, now: float) -> bool:
        """Whether so many more blocks of an owner over its share would cost others within theirs some of their own, or
        those of an owner without a contract some that contracts hold.
        """
        after = Counter(self.counts)
        after[owner] += idle
        claims = Claims(after, self.shares, self.limit)
        excess = sum(after.values()) - (self.limit or 0)
        over = claims.over(owner)
        if excess <= 0 or not (over or (self.shares.held and owner not in self.shares.held)):
            return False
        for chain in chains:
            if claims.over(chain.owner) if over else not claims.held(chain, now):
                excess -= chain.size
                after[chain.owner] -= chain.size
        return excess > 0


def _first(chains: Chains, now: float, owners: AbstractSet[str | None]) -> Chain | None:
    """The first chain of these owners that is not to be kept, else the first; None where they have none."""
    kept: Chain | None = None
    for chain in chains:
        if chain.owner in owners:
            if chain.until <= now:
                return chain
            kept = kept or chain
    return kept
