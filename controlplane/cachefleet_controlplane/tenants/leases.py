"""Leases of limits, where replicas share them. Pure; Unix seconds.

All replicas together hold a tenant to one token bucket, ``SharedBucket``, which the store keeps. Each has a lease: a
stock of it, which it may use up, and a share, by which the stock refills until the next exchange. An exchange tells the
bucket what was used, gives back the stock that was not, and takes a new one: part of what is free, by the replica's
part of recent demand. What refilled at a replica is counted in the bucket, too, and is part of what was used there. So
all together use what one bucket would let in, and more only by what refilled since the last exchanges; the next ones
take that off.

A limit of a day or month is a bucket, too: it does not refill, and is full again when the next period begins. Where it
is made amid one, it lacks what the account says was used before.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from math import inf
from typing import Final

from msgspec import Struct, field

Subject = tuple[str, str]
"""The name of a tenant or key, and one of its limits."""

MINUTE: Final = 60.0
NEVER: Final = inf
"""In which time a bucket of a day or month refills."""
LEASE_SECONDS: Final = 5.0
"""After so long without an exchange others may use what a replica had not of a limit of a minute."""
DAY_LEASE_SECONDS: Final = 60.0
"""The same of a limit of a day or month, of which nothing is paid back."""
FORGET_SECONDS: Final = 3600.0
"""After so long a silent replica is dropped from a bucket."""
FREE_PART: Final = 0.5
"""Of what is free so much is given away by shares; the rest is for who comes next."""

UNKNOWN_NUMBER: Final = 8
"""How many replicas there may be, until that is known."""


class Report(Struct, frozen=True):
    """What a replica tells of one limit: how much it has used since it began, how much of that others know of, its
    demand, and whether it gives the lease up. Of a limit by the calendar also what the account, and it itself, had
    ``used`` in the period before what it tells now.
    """

    limit: int
    total: int
    told: int = 0
    demand: float = 0.0
    leaves: bool = False
    used: int = 0


class Lease(Struct, frozen=True):
    """What a replica may use of a limit from when it had used ``total``: a stock, and the ``share`` of the limit by
    which that refills; ``free`` is what nobody was given.
    """

    stock: float
    share: float
    free: float
    total: int = 0


class Holding(Struct):
    """What one replica has of a bucket."""

    stock: float = 0.0
    demand: float = 0.0
    total: int = 0
    at: float = 0.0
    live: bool = True


class SharedBucket(Struct):
    """The token bucket of one limit, for all replicas: what is free at ``at``, and what each was given. ``refill`` is
    the seconds in which an empty one is full.
    """

    limit: int
    free: float
    at: float
    held: dict[str, Holding] = field(default_factory=dict)
    refill: float = MINUTE

    @classmethod
    def begun(cls, report: Report, now: float, refill: float) -> SharedBucket:
        """The bucket of a limit of which somebody tells for the first time."""
        return cls(report.limit, float(report.limit - report.used), now, refill=refill)

    def begin_period(self, now: float) -> None:
        """Be full again: nobody has used or been given anything of the new period."""
        self.free, self.at = float(self.limit), now
        for holding in self.held.values():
            holding.stock = 0.0

    def exchange(self, replica: str, report: Report, *, replicas: int, now: float) -> Lease:
        """Count what a replica has used, and give it a new lease."""
        self._refill(report.limit, now)
        self._expire(now)
        own = self.held.pop(replica, None) or Holding(total=report.told)
        self.free += own.stock - (report.total - max(own.total, report.told))
        share = 0.0 if report.leaves else self._share(report.demand)
        stock = self._stock(share, report.demand, replicas)
        self.free -= stock
        self.held[replica] = Holding(stock, report.demand, report.total, now, live=not report.leaves)
        return Lease(stock, share, self.free, report.total)

    def free_at(self, now: float) -> float:
        """What is free at ``now``."""
        most = self.limit - sum(holding.stock for holding in self.held.values())
        return min(most, self.free + max(0.0, now - self.at) * self.limit / self.refill)

    def _refill(self, limit: int, now: float) -> None:
        self.free = self.free_at(now) + limit - self.limit
        self.limit, self.at = limit, max(now, self.at)

    def _expire(self, now: float) -> None:
        patience = DAY_LEASE_SECONDS if self.refill == NEVER else LEASE_SECONDS
        for replica, holding in list(self.held.items()):
            if holding.live and holding.at <= now - patience:
                self.free += holding.stock
                holding.stock, holding.demand, holding.live = 0.0, 0.0, False
            if holding.at <= now - FORGET_SECONDS:
                del self.held[replica]

    def _share(self, demand: float) -> float:
        """Of a replica among those that have leases: half of it by their number, half by their demand."""
        live = [holding for holding in self.held.values() if holding.live]
        by_number = 1 / (1 + len(live))
        total = demand + sum(holding.demand for holding in live)
        return (by_number + demand / total) / 2 if total > 0 else by_number

    def _stock(self, share: float, demand: float, replicas: int) -> float:
        """Part of what is free, all of it for who is alone; who is asked finds one at least, as long as there is one.

        Where too much was used, its share of that.
        """
        if self.free <= 0:
            return self.free * share
        part = (self.free - self._kept(replicas)) * share * (1.0 if replicas == 1 and share == 1 else FREE_PART)
        return 1.0 if share and demand > 0 and part < 1 <= self.free else part

    def _kept(self, replicas: int) -> float:
        """What replicas without a lease may have used of a day or month before they tell of it, as OtherReplicas.first
        gives it; of a minute none is kept, as it is paid back.
        """
        if self.refill != NEVER:
            return 0.0
        silent = replicas - 1 - sum(holding.live for holding in self.held.values())
        return self.free * FREE_PART * max(0, silent) / replicas


class OtherReplicas:
    """What this replica knows of others, and of the buckets that it has no lease of."""

    def __init__(self, *, shared: bool = False) -> None:
        self.shared = shared
        """Whether limits are shared at all."""
        self.number = UNKNOWN_NUMBER if shared else 1
        """Of replicas, with this one."""
        self.free: Mapping[Subject, float] = {}
        """What buckets had left that were not full."""
        self.short = asyncio.Event()
        """Set where a request was refused for want of a larger lease."""

    def first(self, tenant: str, limited: str, left: float) -> Lease | None:
        """What this replica may use before it has a lease: its part of half of what is free, which is ``left`` where
        that is not known; None where limits are not shared.
        """
        if not self.shared:
            return None
        free = self.free.get((tenant, limited), left)
        share = 1 / self.number
        stock = free * share * (1.0 if free <= 0 or self.number == 1 else FREE_PART)
        stock = max(min(1.0, free), stock) if free > 0 else stock
        return Lease(stock, share, free - stock)
