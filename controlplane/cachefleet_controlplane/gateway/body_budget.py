"""A budget shared fairly between tenants, of the bytes of all request bodies that are held at once, or of other things.

A tenant may hold as much as is still free (the dynamic threshold of shared-memory switches: Choudhury and Hahne, 1998):
one alone at most half of the budget, n greedy ones 1/(n+1) each, and whoever comes next finds as much again.
"""

from __future__ import annotations

from types import TracebackType
from typing import Self

from cachefleet_controlplane.wire.http_exchange import NO_ROOM, no_room


class BodyBudget:
    """Counts what is held by tenant against a ``limit`` over all; ``over`` says of what there is too much."""

    def __init__(self, limit: int, *, over: str = NO_ROOM) -> None:
        self._limit = limit
        self._over = over
        self._by_tenant: dict[str, int] = {}
        self.held = 0

    def take(self, tenant: str, size: int) -> None:
        """Count ``size`` bytes more. ApiError 503 where the tenant would then hold more than is free."""
        held = self._by_tenant.get(tenant, 0) + size
        if held > self._limit - self.held - size:
            raise no_room(self._over)
        self._by_tenant[tenant] = held
        self.held += size

    def give_back(self, tenant: str, size: int) -> None:
        """Count ``size`` bytes less."""
        self.held -= size
        left = self._by_tenant.get(tenant, 0) - size
        if left > 0:
            self._by_tenant[tenant] = left
        else:
            self._by_tenant.pop(tenant, None)


class BodyShare:
    """The bytes that one request of a tenant holds, as a context manager that gives them all back."""

    __slots__ = ("_budget", "_held", "_tenant")

    def __init__(self, budget: BodyBudget, tenant: str) -> None:
        self._budget = budget
        self._tenant = tenant
        self._held = 0

    @property
    def held(self) -> int:
        """Bytes that it holds now."""
        return self._held

    def take(self, size: int) -> None:
        """Count bytes before they are kept. ApiError 503 where there is no room."""
        self._budget.take(self._tenant, size)
        self._held += size

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        self.give_back()

    def give_back(self) -> None:
        """Give back all that was taken."""
        self._budget.give_back(self._tenant, self._held)
        self._held = 0
