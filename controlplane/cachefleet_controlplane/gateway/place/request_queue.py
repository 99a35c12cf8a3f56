"""The queue of requests that wait for room, in the order of ``wait_list``.

Whenever the fleet says that there may be room, the first of each line tries again, and as long as it finds a place, the
next. One whose own worker is busy (``Busy``) is passed over, as far as PASSED_OVER: another worker may be free. A try
decides and begins the in-flight request without an await, so that no other request comes between. What time alone
brings, a report that becomes stale or a worker's pause that ends, is noticed by a check every RECHECK_SECONDS while any
request waits.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, StrEnum
from math import inf
from typing import Any, Final, Generic, TypeVar

from cachefleet_controlplane.gateway.place.fair_shares import UNDER_SHARE, Claim, Fleet, Ticket
from cachefleet_controlplane.gateway.place.queue_order import WaitList
from cachefleet_controlplane.gateway.place.service_rate import ServiceRate
from cachefleet_controlplane.gateway.place.tenant_activity import UNBOUNDED, Bounds, TenantActivity
from cachefleet_controlplane.metrics import Metrics
from cachefleet_core.pool.policy import AdmissionSpec

T = TypeVar("T")

RECHECK_SECONDS: Final = 0.5
PASSED_OVER: Final = 8
"""Requests of a line that are passed over at most in one go."""
MAX_FLEETS: Final = 1024
"""Fleets whose service rate is known; beyond, the oldest is dropped."""


class Left(StrEnum):
    """How a wait ended; a metric's label."""

    SERVED = "served"
    """Its turn came, and it was decided on."""
    TIMEOUT = "timeout"
    DISPLACED = "displaced"
    """Another request has taken its place."""
    GONE = "gone"
    """The client disconnected."""


class Busy(Enum):
    """What a try returns whose worker has enough to do, though there is room: those that come next may try."""

    BUSY = "busy"


@dataclass(slots=True)
class _Waiter(Generic[T]):
    attempt: Callable[[], T | Busy | None]
    turn: asyncio.Future[T | Left]


class Queue:
    """The waiting requests of all fleets of a gateway; ``clock`` is monotonic, in seconds."""

    def __init__(self, *, places: int, metrics: Metrics, clock: Callable[[], float] = time.monotonic) -> None:
        self.places = places
        """Requests that may wait."""
        self._room = WaitList(places)
        self._activity = TenantActivity()
        self._waiters: dict[Ticket, _Waiter[Any]] = {}
        self._drains: dict[Fleet, ServiceRate] = {}
        self._metrics = metrics
        self._clock = clock
        self._woken = False
        self._passing: set[Fleet] = set()
        """Fleets whose first request may be passed over."""
        self._recheck: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._room)

    def waiting(self, fleet: Fleet) -> int:
        """How many requests of a fleet wait."""
        return self._room.waiting(fleet)

    def others_first(self, claim: Claim) -> bool:
        """Whether a request has to wait because others that go first do."""
        return self._room.before(claim)

    def bounds(self, claim: Claim, admission: AdmissionSpec) -> Bounds:
        """What a worker may be sent of a request's tenant by the worker's pool: less while other tenants use the fleet,
        and more for a tenant under its share.
        """
        if not (admission.max_ahead_seconds or admission.shared_ahead_seconds or admission.shared_requests):
            return UNBOUNDED
        seconds, sequences = admission.max_ahead_seconds or inf, inf
        if self._activity.shared(claim.fleet, claim.tenant, self._clock()):
            seconds = min(seconds, admission.shared_ahead_seconds or inf)
            sequences = admission.shared_requests or inf
        if seconds == sequences == inf:
            return UNBOUNDED
        return Bounds(seconds, sequences).times(UNDER_SHARE if self._room.under(claim) else 1)

    def underway(self, claim: Claim, worker: str) -> int:
        """How many sequences of a request's tenant a worker has under way."""
        return self._activity.underway(worker, claim.tenant)

    def enter(self, claim: Claim, *, blocks: int, tokens: int = 1) -> Ticket | None:
        """Return a place, with which ``wait`` has to be called at once; None where there is none.

        A place may be taken from a request of a lower priority, or of a tenant that holds more of them.
        """
        if claim.bounded:
            self._activity.seen(claim.fleet, claim.tenant, self._clock())
        ticket, displaced = self._room.enter(claim, blocks=blocks, tokens=tokens)
        if displaced is not None and (waiter := self._waiters.get(displaced)) and not waiter.turn.done():
            waiter.turn.set_result(Left.DISPLACED)
        return ticket

    async def wait(self, ticket: Ticket, attempt: Callable[[], T | Busy | None], *, seconds: float) -> T | Left:
        """Call ``attempt`` at each turn of the ticket, and return its first result, or how else the wait has ended:
        TIMEOUT after ``seconds``, or DISPLACED.

        ``attempt`` must not block. The place is given back however this ends, by cancellation too.
        """
        began, how = self._clock(), Left.GONE
        turn: asyncio.Future[T | Left] = asyncio.get_running_loop().create_future()
        self._waiters[ticket] = _Waiter(attempt, turn)
        self._length_changed()
        if ticket.fleet in self._passing:
            self.wake()
        try:
            await asyncio.wait({turn}, timeout=seconds)
            how = Left.SERVED if turn.done() else Left.TIMEOUT
            found = turn.result() if turn.done() else how
            if isinstance(found, Left):
                how = found
            return found
        finally:
            self._leave(ticket)
            self._metrics.waited(outcome=how, seconds=self._clock() - began)

    def began(self, claim: Claim, *, worker: str, sequences: int, tokens: int = 1) -> None:
        """Count a request that is in flight now, and will compute so many tokens as far as is known; ``ended`` has to
        follow, for an equal claim, worker and number of sequences.
        """
        now = self._clock()
        if claim.bounded:
            self._activity.seen(claim.fleet, claim.tenant, now)
            self._activity.add(worker, claim.tenant, sequences)
        self._room.began(claim, tokens)
        drain = self._drains.get(claim.fleet)
        if drain is None:
            if len(self._drains) >= MAX_FLEETS:
                del self._drains[next(iter(self._drains))]
            drain = self._drains[claim.fleet] = ServiceRate()
        drain.began(now)

    def ended(self, claim: Claim, *, worker: str, sequences: int, blocks: int, more: int = 0) -> None:
        """Count a request that has ended, and needed so many blocks, in the service rate; it has computed so many
        tokens ``more`` than was expected.
        """
        now = self._clock()
        if claim.bounded:
            self._activity.seen(claim.fleet, claim.tenant, now)
            self._activity.add(worker, claim.tenant, -sequences)
        self._room.ended(claim, more)
        if drain := self._drains.get(claim.fleet):
            drain.ended(blocks, now)

    def retry_after(self, fleet: Fleet, *, blocks: int) -> int:
        """Return the seconds after which a refused request may have room, once all that wait now have had it."""
        drain = self._drains.get(fleet) or ServiceRate()
        return drain.retry_after(self._room.wanted(fleet) + blocks, self._clock())

    def hopeless(self, claim: Claim, *, seconds: float) -> bool:
        """Whether a request would not have its turn in time, even if those before it ended at twice the speed."""
        drain = self._drains.get(claim.fleet)
        rate = drain.rate(self._clock()) if drain else None
        return rate is not None and self._room.blocks_before(claim) > 2 * rate * seconds

    def prefilled(self, fleet: Fleet) -> None:
        """Schedule tries where a request waits because its worker was busy: one of a fleet's has computed a prompt."""
        if fleet in self._passing:
            self.wake()

    def wake(self) -> None:
        """Schedule tries, since there may be room; they run after the caller has yielded to the loop."""
        if self._waiters and not self._woken:
            self._woken = True
            asyncio.get_running_loop().call_soon(self._serve)

    def _serve(self) -> None:
        self._woken = False
        self._passing.clear()
        for fleet in self._room.fleets():
            while (ticket := self._room.first(fleet)) is not None and (served := self._try(ticket)) is True:
                self._room.leave(ticket)
            if ticket is not None and served is Busy.BUSY and self._pass_over(fleet):
                self.wake()
        self._length_changed()

    def _pass_over(self, fleet: Fleet) -> bool:
        """Try those after a first one whose worker is busy; whether any was sent, after which the first has to be asked
        again.
        """
        self._passing.add(fleet)
        for ticket in self._room.leading(fleet, PASSED_OVER)[1:]:
            served = self._try(ticket)
            if served is True:
                self._room.leave(ticket)
            if served is not Busy.BUSY:
                return served
        return False

    def _try(self, ticket: Ticket) -> bool | Busy:
        """Try a ticket's request; whether it waits no more."""
        waiter = self._waiters.get(ticket)
        if waiter is None or waiter.turn.done():
            return True
        try:
            found = waiter.attempt()
        except Exception as error:  # noqa: BLE001 - raised in the waiting request instead
            waiter.turn.set_exception(error)
            return True
        if isinstance(found, Busy):
            return found
        if found is not None:
            waiter.turn.set_result(found)
        return found is not None

    def _leave(self, ticket: Ticket) -> None:
        first = self._room.first(ticket.fleet) == ticket
        self._waiters.pop(ticket, None)
        self._room.leave(ticket)
        self._length_changed()
        if first:
            self.wake()

    def _length_changed(self) -> None:
        """Update the metric, and schedule the next check while any request waits."""
        self._metrics.queue(len(self._room))
        if self._waiters and self._recheck is None:
            self._recheck = asyncio.get_running_loop().call_later(RECHECK_SECONDS, self._look_again)

    def _look_again(self) -> None:
        self._recheck = None
        self.wake()
