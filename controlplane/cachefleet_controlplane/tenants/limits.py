"""One tenant's requests in flight, and requests and tokens of the last minute, against its limits. Pure; seconds."""

from __future__ import annotations

from collections import deque
from enum import StrEnum
from math import ceil, floor
from typing import Final

from cachefleet_controlplane.store.tenant_records import TenantRecord
from cachefleet_controlplane.tenants.rate_limit_headers import Room, Rooms

WINDOW_SECONDS: Final = 60
RETRY_SECONDS: Final = 1
"""Retry-After where too many requests are in flight: nobody knows when one will end."""


class Limit(StrEnum):
    """Which limit a request would exceed; the value is a TenantRecord's field, a metric's label and an error's code."""

    REQUESTS_AT_ONCE = "requests_at_once"
    REQUESTS_PER_MINUTE = "requests_per_minute"
    TOKENS_PER_MINUTE = "tokens_per_minute"
    TOKENS_PER_DAY = "tokens_per_day"
    TOKENS_PER_MONTH = "tokens_per_month"
    SPEND_PER_DAY = "spend_per_day"
    SPEND_PER_MONTH = "spend_per_month"


class Spent:
    """Tokens or requests of the last minute by the whole second they were spent in: at most WINDOW_SECONDS entries."""

    __slots__ = ("_seconds", "total")

    def __init__(self) -> None:
        self._seconds: deque[tuple[int, int]] = deque()
        self.total = 0

    def add(self, tokens: int, now: float) -> None:
        """Count tokens as spent at ``now``."""
        self.expire(now)
        second = floor(now)
        if self._seconds and self._seconds[-1][0] >= second:
            second, before = self._seconds.pop()
            self._seconds.append((second, before + tokens))
        else:
            self._seconds.append((second, tokens))
        self.total += tokens

    def expire(self, now: float) -> None:
        """Drop what was spent WINDOW_SECONDS ago or earlier."""
        while self._seconds and self._seconds[0][0] + WINDOW_SECONDS <= now:
            self.total -= self._seconds.popleft()[1]

    def room(self, limit: int, now: float) -> Room:
        """What a limit leaves."""
        self.expire(now)
        reset = self._seconds[-1][0] + WINDOW_SECONDS - now if self._seconds else 0.0
        return Room(limit, max(0, limit - self.total), reset)

    def wait(self, limit: int, now: float) -> int:
        """Whole seconds until less than ``limit`` of the tokens spent by ``now`` are left in the window; 0 where that
        is so.
        """
        self.expire(now)
        left, until = self.total, now
        for second, tokens in self._seconds:
            if left < limit:
                break
            left -= tokens
            until = second + WINDOW_SECONDS
        return ceil(until - now)


class TenantLoad:
    """One tenant's requests in flight, and what it has spent in the last minute."""

    __slots__ = ("asked", "limited", "requests", "spent", "tenant")

    def __init__(self) -> None:
        self.requests = 0
        self.spent = Spent()
        """Tokens."""
        self.asked = Spent()
        """Requests; counted only where they are limited."""
        self.tenant: TenantRecord | None = None
        self.limited = False
        """Whether ``tenant`` has any limit."""

    def hold_to(self, tenant: TenantRecord) -> None:
        """Take the limits of a tenant's present record."""
        self.tenant = tenant
        self.limited = any(getattr(tenant, limit) is not None for limit in Limit)

    def over(self, tenant: TenantRecord, now: float) -> tuple[Limit, int] | None:
        """The limit that one more request would exceed, and the seconds to wait; None where there is none."""
        if tenant.requests_at_once is not None and self.requests >= tenant.requests_at_once:
            return Limit.REQUESTS_AT_ONCE, RETRY_SECONDS
        if tenant.requests_per_minute is not None and (wait := self.asked.wait(tenant.requests_per_minute, now)):
            return Limit.REQUESTS_PER_MINUTE, wait
        if tenant.tokens_per_minute is not None and (wait := self.spent.wait(tenant.tokens_per_minute, now)):
            return Limit.TOKENS_PER_MINUTE, wait
        return None

    def rooms(self, tenant: TenantRecord, now: float) -> Rooms:
        """What the limits of a minute leave."""
        asked, spent = tenant.requests_per_minute, tenant.tokens_per_minute
        return Rooms(
            None if asked is None else self.asked.room(asked, now),
            None if spent is None else self.spent.room(spent, now),
        )

    def idle(self, now: float) -> bool:
        """Whether nothing of it needs to be kept."""
        self.spent.expire(now)
        self.asked.expire(now)
        return not self.requests and not self.spent.total and not self.asked.total
