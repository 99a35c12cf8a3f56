"""The directory of tenants and keys, a pure value, and ``Tenants``, which keeps it fresh from the store.

The store is read at once after a change through this replica, and within ``poll_seconds`` after one made elsewhere. A
store that fails, or that comes back empty, changes nothing of what is known. One that cannot be read at the start, or
whose keys were lost, serves nobody who has no key. A key that is revoked is refused at once, whether the store takes
that or not.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final, TypeVar

from cachefleet_controlplane.metrics import Metrics
from cachefleet_controlplane.store.access_marker import ClosedReason
from cachefleet_controlplane.store.sql_tenants import TenantNotFoundError
from cachefleet_controlplane.store.store_errors import StoreError
from cachefleet_controlplane.store.tenant_records import KeyRecord, KeyState, Tenancy, TenantRecord
from cachefleet_controlplane.tenants.allowed_models import AllowedModels
from cachefleet_controlplane.tenants.revocations import Revocations
from cachefleet_controlplane.tenants.tenant_repository import TenantRepository
from cachefleet_controlplane.wire.headers import Header
from cachefleet_core.tenancy import DEFAULT_TENANT, TenantId

logger = logging.getLogger(__name__)
T = TypeVar("T")

EVERYONE: Final = TenantRecord(name=DEFAULT_TENANT)
"""The default tenant where the store has none."""
POLL_SECONDS: Final = 2.0
"""How old may be what is known of tenants and keys that another replica changed."""
ANSWER_SECONDS: Final = 10.0
"""How long a caller waits for the store; a change that was begun may still be made after that."""
_BEARER: Final = b"bearer "
_NOT_READ: Final = "not read yet"
_LOST: Final = (
    "API keys may have been made here, and the record of them was lost: requests without one of new ones are refused "
    "until somebody makes keys, or opens the gateway with `cachefleet tenants open`"
)


class Unknown(StrEnum):
    """Why a request has no tenant; the value is a metric's label."""

    MISSING = "missing"
    """Keys exist, and the request has none."""
    WRONG = "wrong"
    ENDED = "ended"
    """Its key was revoked or has expired."""
    UNREAD = "unread"
    """The store could not be read since the start."""
    LOST = "lost"
    """There is no key, and the store that may have had some was lost."""


def given_key(headers: Iterable[Header]) -> bytes:
    """The client's key: the bearer of Authorization, else ``x-api-key``; b"" without one."""
    other = b""
    for name, value in headers:
        if name == b"authorization" and value[: len(_BEARER)].lower() == _BEARER:
            return value[len(_BEARER) :].strip()
        if name == b"x-api-key" and not other:
            other = value.strip()
    return other


@dataclass(frozen=True, slots=True)
class Directory:
    """Tenants by name and keys by hash, as of one read of the store.

    Without any key, not even an ended one, every request is the default tenant's, unless keys are ``required`` or the
    store is ``closed``.
    """

    tenants: Mapping[TenantId, TenantRecord] = field(default_factory=dict)
    keys: Mapping[str, KeyRecord] = field(default_factory=dict)
    required: bool = False
    read: bool = True
    """The store has been read at least once."""
    closed: ClosedReason = ClosedReason.NO
    models: Mapping[str, AllowedModels] = field(default_factory=dict)
    """What keys may use that may not use all models, by hash."""
    budgets: Mapping[str, KeyRecord] = field(default_factory=dict)
    """Keys with limits of their own, by hash."""

    @classmethod
    def of(cls, tenancy: Tenancy, *, required: bool) -> Directory:
        """The directory of what the store holds."""
        tenants = {tenant.name: tenant for tenant in tenancy.tenants}
        models = {key.hash: AllowedModels(key.models) for key in tenancy.keys if key.models}
        keys = {key.hash: key for key in tenancy.keys}
        budgets = {key.hash: key for key in tenancy.keys if key.budget_name}
        return cls(tenants, keys, required, closed=tenancy.closed, models=models, budgets=budgets)

    @property
    def open(self) -> bool:
        """Whether every request is the default tenant's."""
        return not self.keys and not self.required and self.closed is ClosedReason.NO

    def budget_of(self, key: str) -> KeyRecord | None:
        """The key of that id where it has limits of its own, ended or not; None where it has none, or is forgotten."""
        return next((record for record in self.budgets.values() if record.id == key), None)

    @property
    def unread(self) -> bool:
        """Whether nobody is served because the store was never read."""
        return not self.read and not self.open

    @property
    def lost(self) -> bool:
        """Whether there is no key, and the store that may have had some was lost."""
        return not self.keys and self.closed is ClosedReason.LOST

    @property
    def keyless(self) -> bool:
        """Whether nobody is served because keys are needed and there is none, although nothing was lost."""
        return self.read and not (self.keys or self.open or self.lost)

    def default(self) -> TenantRecord:
        """The default tenant; EVERYONE where the store has none."""
        return self.tenants.get(DEFAULT_TENANT, EVERYONE)

    def owner(self, key_hash: str, now: float) -> TenantRecord | Unknown:
        """The tenant of a key, or why there is none; ``key_hash`` is "" without a key, ``now`` Unix time in seconds."""
        if not self.read:
            return Unknown.UNREAD
        if self.lost:
            return Unknown.LOST
        if not key_hash:
            return Unknown.MISSING
        key = self.keys.get(key_hash)
        tenant = None if key is None else self.tenants.get(key.tenant)
        if key is None or tenant is None:
            return Unknown.WRONG
        return tenant if key.state(now) is KeyState.ACTIVE else Unknown.ENDED

    def salt_version(self, tenant: TenantId) -> int:
        """The version of a tenant's salt; 1 for an unknown tenant."""
        found = self.tenants.get(tenant)
        return 1 if found is None else found.salt_version


class Tenants:
    """Keeps ``directory`` fresh; run ``run()`` as a task.

    ``poll_seconds`` is how old it may be after a change made elsewhere.
    """

    def __init__(
        self,
        repository: TenantRepository,
        *,
        metrics: Metrics,
        poll_seconds: float = POLL_SECONDS,
        required: bool = False,
    ) -> None:
        self._repository = repository
        self._metrics = metrics
        self._poll_seconds = poll_seconds
        self.required = required
        self._known: Tenancy | None = None
        self._is_open = False
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="store-tenants")
        self._listeners: list[Callable[[], None]] = []
        self._failure = _NOT_READ
        self.revocations = Revocations()
        self.directory = Directory(required=required, read=False, closed=ClosedReason.UNREAD)
        self.informed = asyncio.Event()
        """Set once the store was read, or failed, for the first time."""

    @property
    def problem(self) -> str:
        """Why what is known may be out of date, or nobody is served; "" while all is well."""
        lost = _LOST if self.directory.lost else ""
        told = (self._failure, self._repository.problem, self.revocations.problem, lost)
        return "; ".join(filter(None, told))

    def on_change(self, listener: Callable[[], None]) -> None:
        """Call ``listener`` after each change of the directory."""
        self._listeners.append(listener)

    def salt_version(self, tenant: TenantId) -> int:
        """The current version of a tenant's salt."""
        return self.directory.salt_version(tenant)

    def names(self) -> list[TenantId]:
        """All tenants there are."""
        return list(self.directory.tenants)

    async def run(self) -> None:
        """Read the store every ``poll_seconds`` until cancelled."""
        try:
            while True:
                await self.refresh()
                await asyncio.sleep(self._poll_seconds)
        except asyncio.CancelledError:
            self._thread.shutdown(wait=False)
            raise

    async def refresh(self) -> None:
        """Read the store now; where it fails, ``problem`` says why and the directory stays."""
        try:
            self._take(await self._in_time(self._load))
        except StoreError as error:
            self._failed(error)
            if not self.directory.read and await asyncio.to_thread(self._repository.never_keyed):
                self.directory = replace(self.directory, closed=ClosedReason.NO)
        finally:
            self.informed.set()

    async def change(self, work: Callable[[], T]) -> T:
        """Run ``work``, which may block and changes the store, then reread it; errors of ``work``, StoreError."""
        result, tenancy = await self._in_time(lambda: (work(), self._look()))
        self._take(tenancy)
        return result

    async def revoke(self, tenant: TenantId, key_id: str, *, now: float) -> KeyRecord:
        """Refuse a key from now on, and have the store say so, now or once it can. TenantNotFoundError; StoreError
        where the key is not known here and the store fails.
        """
        known = next((key for key in self._keys() if (key.tenant, key.id) == (tenant, key_id)), None)
        if known is not None and known.revoked is None:
            self.revocations.add((tenant, key_id), now)
            self._publish()
        try:
            return await self.change(lambda: self._repository.revoke(tenant, key_id, now=now))
        except TenantNotFoundError:
            self.revocations.drop((tenant, key_id))
            raise
        except StoreError as error:
            if known is None:
                raise
            self._metrics.store_error(error.kind)
            self.revocations.failure = str(error)
            logger.warning("a revoked API key is refused here, and written once the store takes it: %s", error)
            return self.revocations.applied(known)

    async def ask(self, question: Callable[[], T]) -> T:
        """Run ``question``, which may block and reads the store. StoreError."""
        return await self._in_time(question)

    def _look(self) -> Tenancy | None:
        """Reread after a change; where that fails, the next poll sees the change."""
        try:
            return self._repository.load(self._known)
        except StoreError:
            return None

    def _load(self) -> Tenancy | None:
        self._write_revocations()
        return self._repository.load(self._known)

    def _write_revocations(self) -> None:
        """Reading goes on where that fails."""
        try:
            for (tenant, key_id), now in self.revocations.waiting():
                with suppress(TenantNotFoundError):
                    self._repository.revoke(tenant, key_id, now=now)
        except StoreError as error:
            self.revocations.failure = str(error)

    def _keys(self) -> tuple[KeyRecord, ...]:
        return () if self._known is None else self._known.keys

    def _take(self, tenancy: Tenancy | None) -> None:
        if self._failure not in {"", _NOT_READ}:
            logger.info("tenants can be read again")
        self._failure = ""
        if tenancy is None or tenancy == self._known:
            return  # a poll that overlapped a change finds it once more
        self._known = tenancy
        self.revocations.settle(tenancy)
        if self.directory.closed is not tenancy.closed and tenancy.closed is ClosedReason.LOST:
            logger.error(_LOST)
        self._publish()

    def _publish(self) -> None:
        if self._known is None:
            return
        keys = tuple(map(self.revocations.applied, self._known.keys))
        self.directory = Directory.of(replace(self._known, keys=keys), required=self.required)
        self._metrics.keys_lost(lost=self.directory.lost)
        self._metrics.revocations_waiting(len(self.revocations))
        for listener in self._listeners:
            listener()

    def _failed(self, error: StoreError) -> None:
        if self._failure != str(error):
            logger.warning("tenants cannot be read, what is known stays: %s", error, extra={"kind": error.kind})
        self._failure = str(error)
        self._metrics.store_error(error.kind)

    async def _in_time(self, work: Callable[[], T]) -> T:
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                return await self._in_thread(work)
        except TimeoutError as error:
            raise StoreError("unavailable", "the store did not answer in time") from error

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._opened, work)

    def _opened(self, work: Callable[[], T]) -> T:
        if not self._is_open:
            self._repository.open()
            self._is_open = True
        try:
            return work()
        except StoreError:
            self._is_open = False
            raise
