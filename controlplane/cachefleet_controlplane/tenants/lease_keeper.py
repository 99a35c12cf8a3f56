"""``LeaseKeeper``: exchanges with other replicas, through the store, what each may use of tenants' and keys' limits.

It does so in the background: no request waits for the store. While the store fails, the last leases go on.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import chain
from typing import Final, Protocol, TypeVar

from cachefleet_controlplane.metrics import Metrics
from cachefleet_controlplane.store.store_errors import StoreError
from cachefleet_controlplane.store.tenant_records import TenantRecord
from cachefleet_controlplane.tenants.budgets import Budgets
from cachefleet_controlplane.tenants.directory import Directory
from cachefleet_controlplane.tenants.leases import OtherReplicas, Report, Subject
from cachefleet_controlplane.tenants.limits import LeasedBuckets, TenantLoad
from cachefleet_controlplane.tenants.sql_leases import Exchanged
from cachefleet_core.fleet_status.tenant_limits import PER_MINUTE, Limit
from cachefleet_core.tenancy import TenantId

logger = logging.getLogger(__name__)
T = TypeVar("T")

QUICK_SECONDS: Final = 0.25
"""Between exchanges while this replica has leases."""
SLOW_SECONDS: Final = 1.0
"""Between them while it has none, or the store fails."""
LEAST_SECONDS: Final = 0.1
"""Between them where a lease was too small."""
ANSWER_SECONDS: Final = 10.0


class LeaseRepository(Protocol):
    """What is needed of the store. Calls block; every failure is a StoreError and has changed nothing."""

    def open(self) -> None:
        """Connect and migrate; may be called again after a StoreError."""

    def exchange(self, replica: str, reports: Mapping[Subject, Report]) -> Exchanged:
        """Tell what a replica has used of limits, and take its new leases."""
        ...

    def leave(self, replica: str, reports: Mapping[Subject, Report]) -> None:
        """Tell what a replica has used at its end."""


class TenantsKnown(Protocol):
    """The tenants that there are."""

    @property
    def directory(self) -> Directory: ...


class LeaseKeeper:
    """Keeps the leases of ``loads`` and ``budgets``, and ``others``; run ``run()`` as a task. ``clock`` is that of the
    loads, in seconds.
    """

    def __init__(
        self,
        repository: LeaseRepository,
        tenants: TenantsKnown,
        loads: Mapping[TenantId, TenantLoad],
        others: OtherReplicas,
        *,
        metrics: Metrics,
        clock: Callable[[], float],
        replica: str = "",
        budgets: Budgets | None = None,
    ) -> None:
        self._repository = repository
        self._tenants = tenants
        self._loads = loads
        self._others = others
        self._budgets = Budgets() if budgets is None else budgets
        self._metrics = metrics
        self._clock = clock
        self._replica = replica or secrets.token_hex(8)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="store-leases")
        self._opened = False
        self.problem = ""
        """Why the last leases go on; "" while new ones come."""

    async def run(self) -> None:
        """Exchange leases until cancelled, and then give them up."""
        try:
            while True:
                await self._pause(busy=self._needed() and await self.exchange())
        except asyncio.CancelledError:
            with suppress(StoreError):
                await self._leave()
            self._thread.shutdown(wait=False)
            raise

    async def exchange(self) -> bool:
        """Exchange leases now, and return whether there are any; where the store fails, ``problem`` says why."""
        self._others.short.clear()
        asked, reports = self._reports()
        try:
            told = await self._in_time(lambda: self._repository.exchange(self._replica, reports))
        except StoreError as error:
            self._failed(error)
            return False
        self.problem = ""
        self._others.number, self._others.free = told.replicas, told.free
        for subject, lease in told.leases.items():
            asked[subject].take(Limit(subject[1]), lease, self._clock())
        return bool(reports)

    def _reports(self) -> tuple[dict[Subject, LeasedBuckets], dict[Subject, Report]]:
        """By limit what is told of it, and whose it is."""
        now, asked, reports = self._clock(), dict[Subject, LeasedBuckets](), dict[Subject, Report]()
        for name, held in chain(self._loads.items(), self._budgets.held.items()):
            for limit, report in held.reports(now).items():
                asked[name, limit], reports[name, limit] = held, report
        return asked, reports

    async def _leave(self) -> None:
        _, reports = self._reports()
        await self._in_time(lambda: self._repository.leave(self._replica, reports))

    def _needed(self) -> bool:
        """Whether any tenant has a limit that replicas share."""
        return bool(self._budgets.names) or any(map(_shares, self._tenants.directory.tenants.values()))

    def _failed(self, error: StoreError) -> None:
        if self.problem != str(error):
            logger.warning("limits are held by the last leases: %s", error, extra={"kind": error.kind})
        self.problem = str(error)
        self._metrics.store_error(error.kind)

    async def _pause(self, *, busy: bool) -> None:
        if self.problem:
            await asyncio.sleep(SLOW_SECONDS)  # a store that fails is not asked more often for being missed
            return
        await asyncio.sleep(LEAST_SECONDS)
        with suppress(TimeoutError):
            async with asyncio.timeout((QUICK_SECONDS if busy else SLOW_SECONDS) - LEAST_SECONDS):
                await self._others.short.wait()

    async def _in_time(self, work: Callable[[], T]) -> T:
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                return await asyncio.get_running_loop().run_in_executor(self._thread, self._done, work)
        except TimeoutError as error:
            raise StoreError("unavailable", "the store did not answer in time") from error

    def _done(self, work: Callable[[], T]) -> T:
        if not self._opened:
            self._repository.open()
            self._opened = True
        try:
            return work()
        except StoreError:
            self._opened = False
            raise


def _shares(tenant: TenantRecord) -> bool:
    return any(getattr(tenant, limit) is not None for limit in PER_MINUTE)
