"""The queue of requests that wait for room, in the order of ``wait_list``.

Whenever the fleet says that there may be room, the first of each line tries again, and as long as it finds a place, the
next. A try decides and begins the in-flight request without an await, so that no other request comes between. What time
alone brings, a report that becomes stale or a worker's pause that ends, is noticed by a check every RECHECK_SECONDS
while any request waits.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, Generic, TypeVar

from cachefleet_controlplane.gateway.place.queue_order import Fleet, ServiceRate, Ticket, WaitList
from cachefleet_controlplane.metrics import Metrics

T = TypeVar("T")

RECHECK_SECONDS: Final = 0.5
MAX_FLEETS: Final = 1024
"""Fleets whose service rate is known; beyond, the oldest is dropped."""


class Left(StrEnum):
    """How a wait ended; a metric's label."""

    SERVED = "served"
    """Its turn came, and it was decided on."""
    TIMEOUT = "timeout"
    GONE = "gone"
    """The client disconnected."""


@dataclass(slots=True)
class _Waiter(Generic[T]):
    attempt: Callable[[], T | None]
    turn: asyncio.Future[T]


class Queue:
    """The waiting requests of all fleets of a gateway; ``clock`` is monotonic, in seconds."""

    def __init__(self, *, places: int, metrics: Metrics, clock: Callable[[], float] = time.monotonic) -> None:
        self.places = places
        """Requests that may wait."""
        self._room = WaitList(places)
        self._waiters: dict[Ticket, _Waiter[Any]] = {}
        self._drains: dict[Fleet, ServiceRate] = {}
        self._metrics = metrics
        self._clock = clock
        self._woken = False
        self._recheck: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._room)

    def waiting(self, fleet: Fleet) -> int:
        """How many requests of a fleet wait."""
        return self._room.waiting(fleet)

    def others_first(self, fleet: Fleet, *, priority: int, arrived: float, tenant: str = "") -> bool:
        """Whether a request has to wait because others that go first do."""
        return self._room.before(fleet, priority=priority, arrived=arrived, tenant=tenant)

    def enter(self, fleet: Fleet, *, priority: int, arrived: float, blocks: int, tenant: str = "") -> Ticket | None:
        """Return a place, with which ``wait`` has to be called at once; None where there is none."""
        return self._room.enter(fleet, priority=priority, arrived=arrived, blocks=blocks, tenant=tenant)

    async def wait(self, ticket: Ticket, attempt: Callable[[], T | None], *, seconds: float) -> T | None:
        """Call ``attempt`` at each turn of the ticket, and return its first result; None after ``seconds``.

        ``attempt`` must not block. The place is given back however this ends, by cancellation too.
        """
        began, how = self._clock(), Left.GONE
        turn: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._waiters[ticket] = _Waiter(attempt, turn)
        self._told()
        try:
            await asyncio.wait({turn}, timeout=seconds)
            how = Left.SERVED if turn.done() else Left.TIMEOUT
            return turn.result() if turn.done() else None
        finally:
            self._leave(ticket)
            self._metrics.waited(outcome=how, seconds=self._clock() - began)

    def began(self, fleet: Fleet, *, tenant: str = "", sequences: int = 1) -> None:
        """Count a request that is in flight now; ``ended`` has to follow, for the same tenant and sequences."""
        self._room.run(fleet, tenant, sequences)
        drain = self._drains.get(fleet)
        if drain is None:
            if len(self._drains) >= MAX_FLEETS:
                del self._drains[next(iter(self._drains))]
            drain = self._drains[fleet] = ServiceRate()
        drain.began(self._clock())

    def ended(self, fleet: Fleet, *, blocks: int, tenant: str = "", sequences: int = 1) -> None:
        """Count a request that has ended, and needed so many blocks, in the service rate."""
        self._room.run(fleet, tenant, -sequences)
        if drain := self._drains.get(fleet):
            drain.ended(blocks, self._clock())

    def retry_after(self, fleet: Fleet, *, blocks: int) -> int:
        """Return the seconds after which a refused request may have room, once all that wait now have had it."""
        drain = self._drains.get(fleet) or ServiceRate()
        return drain.retry_after(self._room.wanted(fleet) + blocks, self._clock())

    def wake(self) -> None:
        """Schedule tries, since there may be room; they run after the caller has yielded to the loop."""
        if self._waiters and not self._woken:
            self._woken = True
            asyncio.get_running_loop().call_soon(self._serve)

    def _serve(self) -> None:
        self._woken = False
        for fleet in self._room.fleets():
            while (ticket := self._room.first(fleet)) is not None and self._try(ticket):
                self._room.leave(ticket)
        self._told()

    def _try(self, ticket: Ticket) -> bool:
        """Try a ticket's request; whether it waits no more."""
        waiter = self._waiters.get(ticket)
        if waiter is None or waiter.turn.done():
            return True
        try:
            found = waiter.attempt()
        except Exception as error:  # noqa: BLE001 - raised in the waiting request instead
            waiter.turn.set_exception(error)
            return True
        if found is not None:
            waiter.turn.set_result(found)
        return found is not None

    def _leave(self, ticket: Ticket) -> None:
        first = self._room.first(ticket.fleet) == ticket
        self._waiters.pop(ticket, None)
        self._room.leave(ticket)
        self._told()
        if first:
            self.wake()

    def _told(self) -> None:
        """Update the metric, and schedule the next check while any request waits."""
        self._metrics.queue(len(self._room))
        if self._waiters and self._recheck is None:
            self._recheck = asyncio.get_running_loop().call_later(RECHECK_SECONDS, self._look_again)

    def _look_again(self) -> None:
        self._recheck = None
        self.wake()
