"""Whose a request is: the directory of tenants and keys, a pure value, and the actor that keeps it fresh.

The directory comes from the store: again at once where a change is made through this replica, and within the poll's
seconds where it is made elsewhere. A store that fails, or that comes back empty, changes nothing of what is known.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, Protocol, TypeVar

from cachefleet_controlplane.metrics import Metrics
from cachefleet_controlplane.store.store_errors import StoreError
from cachefleet_controlplane.store.tenant_records import KeyRecord, KeyState, Tenancy, TenantRecord
from cachefleet_controlplane.wire.headers import Header
from cachefleet_core.tenancy import DEFAULT_TENANT, TenantId

logger = logging.getLogger(__name__)
T = TypeVar("T")

EVERYONE: Final = TenantRecord(name=DEFAULT_TENANT)
"""The default tenant where nobody has changed it."""
ANSWER_SECONDS: Final = 10.0
"""How long somebody waits for a question or change; then it may still be done, if it was begun."""
_BEARER: Final = b"bearer "
_NOT_READ: Final = "not read yet"


class Unknown(StrEnum):
    """Why it cannot be said whose a request is; a metric's label."""

    MISSING = "missing"
    """There are keys, and the request has none."""
    WRONG = "wrong"
    ENDED = "ended"
    """Its key was revoked or has expired."""
    UNREAD = "unread"
    """Keys are required, and the store could not be read since the start."""


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
    """Tenants by name and keys by hash, at one moment.

    Without any key, be it ended, everyone is the default tenant, unless keys are ``required``.
    """

    tenants: Mapping[TenantId, TenantRecord] = field(default_factory=dict)
    keys: Mapping[str, KeyRecord] = field(default_factory=dict)
    required: bool = False
    read: bool = True
    """The store has been read at least once."""

    @classmethod
    def of(cls, tenancy: Tenancy, *, required: bool) -> Directory:
        tenants = {tenant.name: tenant for tenant in tenancy.tenants}
        return cls(tenants, {key.hash: key for key in tenancy.keys}, required)

    @property
    def open(self) -> bool:
        """Everyone is the default tenant."""
        return not self.keys and not self.required

    def default(self) -> TenantRecord:
        return self.tenants.get(DEFAULT_TENANT, EVERYONE)

    def owner(self, key_hash: str, now: float) -> TenantRecord | Unknown:
        """Whose key that is; ``key_hash`` is "" without a key, ``now`` Unix time."""
        if not self.read:
            return Unknown.UNREAD
        if not key_hash:
            return Unknown.MISSING
        key = self.keys.get(key_hash)
        tenant = None if key is None else self.tenants.get(key.tenant)
        if key is None or tenant is None:
            return Unknown.WRONG
        return tenant if key.state(now) is KeyState.ACTIVE else Unknown.ENDED

    def salt_version(self, tenant: TenantId) -> int:
        found = self.tenants.get(tenant)
        return 1 if found is None else found.salt_version


class TenantRepository(Protocol):
    """What the actor needs of the store. Calls block; every failure is a StoreError and has changed nothing."""

    def open(self) -> None: ...

    def load(self, known: Tenancy | None) -> Tenancy | None:
        """All there is; None where that is what is ``known``. A store made anew takes over what is known."""
        ...


class Tenants:
    """Keeps ``directory`` fresh; run ``run()`` as a task.

    ``poll_seconds`` is how old it may be where somebody else changes the store.
    """

    def __init__(
        self, repository: TenantRepository, *, metrics: Metrics, poll_seconds: float, required: bool = False
    ) -> None:
        self._repository = repository
        self._metrics = metrics
        self._poll_seconds = poll_seconds
        self._required = required
        self._known: Tenancy | None = None
        self._is_open = False
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="store-tenants")
        self._listeners: list[Callable[[], None]] = []
        self.directory = Directory(required=required, read=False)
        self.informed = asyncio.Event()
        """Set once the store was read, or failed, for the first time."""
        self.problem = _NOT_READ

    def on_change(self, listener: Callable[[], None]) -> None:
        """Call ``listener`` after each change of the directory."""
        self._listeners.append(listener)

    def salt_version(self, tenant: TenantId) -> int:
        """The present version of a tenant's salt."""
        return self.directory.salt_version(tenant)

    async def run(self) -> None:
        """Read the store again and again until cancelled."""
        try:
            while True:
                await self.refresh()
                await asyncio.sleep(self._poll_seconds)
        except asyncio.CancelledError:
            self._thread.shutdown(wait=False)
            raise

    async def refresh(self) -> None:
        """Read the store now; where it fails, ``problem`` says why and all stays as it is."""
        try:
            self._take(await self._in_thread(self._load))
        except StoreError as error:
            self._failed(error)
        finally:
            self.informed.set()

    async def change(self, work: Callable[[], T]) -> T:
        """Change the store, and know of it at once. What ``work``, which may block, raises is raised; StoreError."""
        result, tenancy = await self._in_time(lambda: (work(), self._look()))
        self._take(tenancy)
        return result

    async def ask(self, question: Callable[[], T]) -> T:
        """Read the store; StoreError."""
        return await self._in_time(question)

    def _look(self) -> Tenancy | None:
        """After a change, which is made: should it not be seen now, the next poll sees it."""
        try:
            return self._load()
        except StoreError:
            return None

    def _load(self) -> Tenancy | None:
        return self._repository.load(self._known)

    def _take(self, tenancy: Tenancy | None) -> None:
        if self.problem not in {"", _NOT_READ}:
            logger.info("tenants can be read again")
        self.problem = ""
        if tenancy is None or tenancy == self._known:
            return  # a poll that began before a change was known here finds the same again
        self._known = tenancy
        self.directory = Directory.of(tenancy, required=self._required)
        for listener in self._listeners:
            listener()

    def _failed(self, error: StoreError) -> None:
        if self.problem != str(error):
            logger.warning("tenants cannot be read, what is known stays: %s", error, extra={"kind": error.kind})
        self.problem = str(error)
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
