"""One tenant's requests in flight, and what it may ask and spend in a minute, against its limits. Pure; seconds.

A limit of a minute is a token bucket: it holds the limit, and refills by a sixtieth of it each second. So in any ``t``
seconds at most ``limit * (1 + t / 60)`` is let in, and as much as ``limit * t / 60`` where more is asked all the time.
"""

from __future__ import annotations

from math import ceil, floor, inf
from typing import Final

from cachefleet_controlplane.store.tenant_records import KeyRecord, TenantRecord, Totals
from cachefleet_controlplane.tenants.leases import MINUTE, Lease, OtherReplicas, Report
from cachefleet_controlplane.tenants.rate_limit_headers import TOLD, Room, Rooms
from cachefleet_core.fleet_status.tenant_limits import PER_MINUTE, Limit

RETRY_SECONDS: Final = 1
"""Retry-After where too many requests are in flight: nobody knows when one will end."""
DEMAND_SECONDS: Final = 1.0
"""In which a tenant's demand of requests, once asked, is half forgotten."""
LEAST_DEMAND: Final = 0.001
"""That of one request after 10 s; with less a lease is given up."""
_ROUNDING: Final = 1e-6


class Bucket:
    """What this replica may use of one limit, in its unit (money in picos): a token bucket of its own, of ``share`` of
    the limit, which is all of it unless replicas share. ``refill`` is the seconds in which an empty one is full.
    """

    __slots__ = ("_at", "_refills", "free", "last", "leased", "level", "limit", "share", "told", "total")

    def __init__(self, refill: float = MINUTE) -> None:
        self._refills = refill
        self.limit: int | None = None
        self.share = 1.0
        self.level = 0.0
        """What may be used now; below 0 where more was used than there was."""
        self.free = 0.0
        """What nobody had been given when replicas last exchanged leases."""
        self.total = 0
        """All that was ever counted."""
        self.told = 0
        """That of it which other replicas know of."""
        self.leased = False
        """Whether other replicas must be told before it is forgotten."""
        self.last = -inf
        """When anything was counted last."""
        self._at = 0.0

    def hold_to(self, limit: int | None, now: float, lease: Lease | None = None) -> None:
        """Take a limit, new or changed; ``lease`` is what there is of it at first where replicas share it."""
        if limit == self.limit:
            return
        if limit is None or self.limit is None:
            self._begin(float(limit or 0), now, lease)
        elif not self.leased:
            self._refill(now)
            self.level += limit - self.limit
        self.limit = limit

    def _begin(self, limit: float, now: float, lease: Lease | None) -> None:
        """Forget what was used without a limit."""
        self.leased, self.told, self._at = lease is not None, self.total, now
        self.level, self.share, self.free = limit, 1.0, 0.0
        if lease is not None:
            self.level, self.share, self.free = lease.stock, lease.share, lease.free

    def take(self, lease: Lease, now: float) -> None:
        """Hold to a lease from now on, less what was used since it was asked for."""
        self.level, self.share, self.free = lease.stock - (self.total - lease.total), lease.share, lease.free
        self.told, self._at = lease.total, now

    def add(self, amount: int, now: float) -> None:
        """Count what was used at ``now``."""
        if not amount:
            return
        self.total += amount
        self.last = now
        if self.limit is not None:
            self._refill(now)
            self.level -= amount

    @property
    def empty(self) -> bool:
        """Whether there is no room for one more now, of what was refilled when it was last counted."""
        return self.limit is not None and self.level < 1 - _ROUNDING

    def wait(self, now: float) -> int:
        """Whole seconds until there is room for one more; 0 where there is."""
        self._refill(now)
        if self.limit is None or not self.empty:
            return 0
        return max(1, ceil((1 - self.level - self.free) * self._refills / self.limit - _ROUNDING))

    def room(self, now: float) -> Room | None:
        """What the limit leaves, of what nobody was given, too; None where there is none."""
        limit = self.limit
        if limit is None:
            return None
        self._refill(now)
        left = min(float(limit), self.level + self.free)
        return Room(limit, max(0, floor(left + _ROUNDING)), (limit - left) * self._refills / limit)

    def idle(self, now: float) -> bool:
        """Whether it is as if nothing had ever been used."""
        if self.leased or self.last > now - MINUTE:
            return False
        self._refill(now)
        return self.limit is None or self.level >= self.limit

    def _refill(self, now: float) -> None:
        if now > self._at:
            most = self.share * (self.limit or 0)
            if self.level < most:
                self.level = min(most, self.level + (now - self._at) * most / self._refills)
            self._at = now


class LeasedBuckets:
    """Buckets of a tenant or key whose limits replicas share, and its demand."""

    __slots__ = ("_demand", "_demand_at", "buckets", "record", "tried")

    def __init__(self) -> None:
        self.buckets: dict[Limit, Bucket] = {}
        """Of the limits that it has, or had."""
        self.record: TenantRecord | KeyRecord | None = None
        """Whose limits they are held to; None where that is to be said anew."""
        self.tried = 0
        """Requests that limits were asked about since the demand was read."""
        self._demand, self._demand_at = 0.0, 0.0

    def demand(self, now: float) -> float:
        """Requests that were asked for lately, each counting half as much every DEMAND_SECONDS."""
        since = max(0.0, now - self._demand_at)
        self._demand = self._demand * 0.5 ** (since / DEMAND_SECONDS) + self.tried
        self._demand_at, self.tried = now, 0
        return self._demand

    def used(self, limit: Limit) -> int:
        """What is known to be used of a limit by the calendar in its present period; 0 of one of a minute."""
        del limit
        return 0

    @property
    def busy(self) -> bool:
        """Whether requests are under way that leases are needed for."""
        return False

    def reports(self, now: float) -> dict[Limit, Report]:
        """What other replicas are to be told; who is not busy and was asked for nothing lately gives its leases up."""
        demand = self.demand(now)
        leaves = not self.busy and demand < LEAST_DEMAND
        reports: dict[Limit, Report] = {}
        for limit, bucket in self.buckets.items():
            if bucket.limit is not None and (bucket.leased or bucket.total != bucket.told):
                before = self.used(limit) - (bucket.total - bucket.told)
                reports[limit] = Report(bucket.limit, bucket.total, bucket.told, demand, leaves, max(0, before))
        return reports

    def take(self, limit: Limit, lease: Lease, now: float) -> None:
        """Hold to a lease; one without a share was given up, and the next request begins anew."""
        bucket = self.buckets[limit]
        if bucket.limit is None:
            return  # it was lifted meanwhile
        bucket.take(lease, now)
        bucket.leased = lease.share > 0
        if not bucket.leased:
            bucket.limit = self.record = None


class TenantLoad(LeasedBuckets):
    """One tenant's requests in flight, and what it may ask and spend in a minute.

    Which limits are counted is bound when they are set: a tenant without limits of a minute counts nothing.
    """

    __slots__ = (
        "_asked",
        "_held",
        "_spent",
        "_told",
        "counts",
        "limited",
        "priced",
        "requests",
    )

    def __init__(self) -> None:
        super().__init__()
        self.requests = 0
        self.limited = False
        """Whether the tenant has any limit."""
        self._bind()

    def hold_to(self, tenant: TenantRecord, now: float, others: OtherReplicas) -> None:
        """Take the limits of a tenant's present record."""
        self.record = tenant
        self.limited = any(getattr(tenant, limit) is not None for limit in Limit)
        for limit in PER_MINUTE:
            most = getattr(tenant, limit)
            if most is not None:
                lease = others.first(tenant.name, limit, most)
                self.buckets.setdefault(limit, Bucket()).hold_to(most, now, lease)
            elif limit in self.buckets:
                self.buckets[limit].hold_to(None, now)
        self._bind()

    def _bind(self) -> None:
        held = [(limit, self.buckets[limit]) for limit in PER_MINUTE if limit in self.buckets]
        self._held = tuple((limit, bucket) for limit, bucket in held if bucket.limit is not None)
        units = {limit.unit: bucket for limit, bucket in self._held}
        self._told = tuple((unit, bucket) for unit, bucket in units.items() if unit in TOLD)
        self._asked = units.pop("requests", None)
        """Counts requests as they are let in."""
        self._spent = tuple(units.items())
        self.counts = bool(units)
        """Whether what ended requests used counts."""
        self.priced = "spend" in units
        """Whether what they cost does."""

    def over(self, tenant: TenantRecord, now: float) -> tuple[Limit, int] | None:
        """The limit that one more request would exceed, and the seconds to wait; None where there is none."""
        self.tried += 1
        if tenant.requests_at_once is not None and self.requests >= tenant.requests_at_once:
            return Limit.REQUESTS_AT_ONCE, RETRY_SECONDS
        for limit, bucket in self._held:
            if wait := bucket.wait(now):
                return limit, wait
        return None

    def ask(self, requests: int, now: float) -> None:
        """Count requests that are let in; below 0 where they are taken back."""
        if self._asked is not None:
            self._asked.add(requests, now)

    def spend(self, used: Totals, now: float) -> None:
        """Count what ended requests used."""
        for unit, bucket in self._spent:
            bucket.add(getattr(used, unit), now)

    def rooms(self, now: float) -> Rooms:
        """What the limits of a minute leave."""
        return Rooms(**{unit: bucket.room(now) for unit, bucket in self._told})

    @property
    def busy(self) -> bool:
        """Whether requests are under way."""
        return self.requests > 0

    def idle(self, now: float) -> bool:
        """Whether nothing of it needs to be kept."""
        return not self.requests and all(bucket.idle(now) for bucket in self.buckets.values())
