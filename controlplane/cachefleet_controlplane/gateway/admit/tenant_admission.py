"""Admission of requests: the tenant by API key, the tenant's limits, and accounting of usage."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from types import TracebackType
from typing import Final, Protocol, Self

from cachefleet_controlplane.gateway.admit.counted_use import Charge, Used, usage_of, used_by
from cachefleet_controlplane.gateway.admit.fairness_ids import FairnessTenants
from cachefleet_controlplane.gateway.request.decision_trace import DecisionTrace
from cachefleet_controlplane.metrics import Metrics
from cachefleet_controlplane.store.tenant_records import (
    LOWEST_PRIORITY,
    KeyRecord,
    TenantRecord,
    UsageRecord,
    amount_text,
)
from cachefleet_controlplane.tenants.allowed_models import AllowedModels
from cachefleet_controlplane.tenants.budgets import Budgets
from cachefleet_controlplane.tenants.directory import Directory, Unknown, given_key
from cachefleet_controlplane.tenants.leases import OtherReplicas
from cachefleet_controlplane.tenants.limits import RETRY_SECONDS, TenantLoad
from cachefleet_controlplane.tenants.rate_limit_headers import Rooms, tightest
from cachefleet_controlplane.tenants.tenant_metrics import TenantMetrics
from cachefleet_controlplane.wire.errors import ApiError, shown
from cachefleet_controlplane.wire.headers import Header
from cachefleet_controlplane.wire.http_exchange import Scope
from cachefleet_core.fleet_status.tenant_limits import PER_MINUTE, Limit
from cachefleet_core.tenancy import DEFAULT_TENANT, TenantId, api_key_hash

ADMITTED: Final = "cachefleet.admitted"
"""Member of the ASGI scope that holds the AdmittedRequest."""
ARRIVED: Final = "cachefleet.arrived"
"""Member of the ASGI scope: when the request came, in monotonic seconds."""
INVALID_KEY: Final = "invalid_api_key"
DISABLED: Final = "tenant_disabled"
KEYS_LOST: Final = "api_keys_lost"
UNREAD_RETRY_SECONDS: Final = 5
FIRST_READ_SECONDS: Final = 10.0
"""Longest wait for the first read of the tenant store; then the request goes on as if that had failed."""
MAX_UNLIMITED: Final = 64  # tenants without limits that are kept though nothing of them is under way
CHECK: Final = "gateway"
"""Label of the client key check in the metric of all authentication checks."""

_MESSAGES: Final = {
    Unknown.MISSING: "An API key is needed, as `Authorization: Bearer KEY` or as `x-api-key: KEY`.",
    Unknown.WRONG: "The API key is not known here.",
    Unknown.ENDED: "The API key was revoked or has expired.",
    Unknown.UNREAD: "API keys cannot be checked now.",
    Unknown.LOST: "The record of API keys was lost: nobody is served until an administrator has made keys anew.",
}
_VERBS: Final = {"requests": "make", "spend": "spend"}


class Known(Protocol):
    """Tenants and their keys; ``informed`` is set once the store was read, or its read has failed."""

    @property
    def directory(self) -> Directory: ...

    @property
    def informed(self) -> asyncio.Event: ...


class OverLimitError(ApiError):
    """429: a tenant is over a limit; ``rooms`` is what all its limits leave."""

    limited: Final = True

    def __init__(self, limit: Limit, message: str, seconds: int, rooms: Rooms) -> None:
        super().__init__(429, f"{message} Try again in {seconds} s.", code=limit, headers={"retry-after": str(seconds)})
        self.rooms = rooms


class AdmittedRequest:
    """One admitted request, as a context manager that ends with it."""

    __slots__ = ("_admission", "_budgeted", "_counted", "_load", "key", "models", "tenant")

    def __init__(
        self,
        admission: AdmissionMiddleware,
        tenant: TenantRecord,
        load: TenantLoad,
        models: AllowedModels | None,
        key: KeyRecord | None,
        *,
        limited: bool,
    ) -> None:
        self._admission = admission
        self._load = load
        self._counted = int(limited)
        self._budgeted = limited and admission.begin(tenant, key)
        self.key = key
        """Its key, where that has limits of its own."""
        self.models = models
        """What its key may use; None where that is all models."""
        self.tenant = tenant

    @property
    def limited(self) -> bool:
        """Whether it counts against any limit."""
        return (self._load.limited or self.key is not None) and self._counted > 0

    @property
    def budget(self) -> str:
        """The name of its key, where that has limits of its own."""
        return "" if self.key is None else self.key.name

    @property
    def rooms(self) -> Rooms:
        """What the tenant's limits leave now."""
        return self._admission.rooms(self.tenant, self._load, self.key)

    @property
    def may_go_first(self) -> bool:
        """Whether a header may put it before other requests: where there are no keys, or of a trusted tenant."""
        return self.tenant.trusted or self._admission.open

    def settle(self, trace: DecisionTrace, charge: Charge) -> Used:
        """Count what the request used. Once, at its end."""
        self._end()
        return self._admission.settle(self.tenant, self._load, trace, charge, key=self.budget)

    def count(self, sequences: int) -> None:
        """Count a request as so many, as an engine does. ApiError 429 over the tenant's limit, 400 where it could
        never be within.
        """
        if sequences > 1 and self._counted:
            self._admission.check_more(self.tenant, self._load, sequences)
            self._load.requests += sequences - self._counted
            self._counted = sequences

    def uncount(self) -> None:
        """Count the request no longer: another control plane does."""
        if self._counted:
            self._admission.take_back(self._load)
        self._load.requests -= self._counted
        self._counted = 0
        self._end()

    def _end(self) -> None:
        """Be no longer under way in the view of budgets, which count what it used."""
        if self._budgeted:
            self._admission.end(self.tenant, self.key)
            self._budgeted = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        self._load.requests -= self._counted
        self._end()
        self._admission.left(self.tenant, self._load)


def admitted_request(scope: Scope) -> AdmittedRequest:
    """Return the AdmittedRequest in a scope; the gateway puts it there before any handler runs."""
    admitted = scope[ADMITTED]
    assert isinstance(admitted, AdmittedRequest)  # noqa: S101 - set before any handler runs
    return admitted


def allowed_models(scope: Scope) -> AllowedModels | None:
    """Return the models that the key of an admitted request may use; None for all."""
    return admitted_request(scope).models


class AdmissionMiddleware:
    """Admits requests by API key and tenant limits, and records their usage; ``hash_key`` hashes API keys."""

    def __init__(
        self,
        known: Known,
        *,
        hash_key: bytes,
        metrics: Metrics,
        record: Callable[[UsageRecord], None] = lambda _: None,
        budgets: Budgets | None = None,
        others: OtherReplicas | None = None,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._known = known
        self._hash_key = hash_key
        self._metrics = metrics
        self._tenant_metrics = TenantMetrics(metrics)
        self._record = record
        self._budgets = Budgets() if budgets is None else budgets
        self._others = OtherReplicas() if others is None else others
        self._read = False
        self._clock = clock
        self._wall_clock = wall_clock
        self._loads: dict[TenantId, TenantLoad] = {}
        self._unkeyed = FairnessTenants()

    @property
    def loads(self) -> Mapping[TenantId, TenantLoad]:
        """What tenants do and may use, by name."""
        return self._loads

    @property
    def open(self) -> bool:
        """Whether no request needs a key."""
        return self._known.directory.open

    def salt_version(self, tenant: TenantId) -> int:
        """Return the present version of a tenant's salt."""
        return self._known.directory.salt_version(tenant)

    def named(self, tenant: str | None) -> TenantRecord:
        """Return a tenant by its name; the default tenant for None. ApiError 404."""
        directory = self._known.directory
        if tenant is None or tenant == DEFAULT_TENANT:
            return directory.default()
        known = directory.tenants.get(TenantId(tenant))
        if known is None:
            raise ApiError(404, f"There is no tenant `{shown(tenant)}`.", param="tenant")
        return known

    async def informed(self) -> None:
        """Wait until tenants and what they have used are known, FIRST_READ_SECONDS at most; returns at
        once except after the start.
        """
        if not self._read:
            with suppress(TimeoutError):
                async with asyncio.timeout(FIRST_READ_SECONDS):
                    await self._known.informed.wait()
                    await self._budgets.informed.wait()
                    self._read = True

    def enter(self, headers: Iterable[Header], *, limited: bool) -> AdmittedRequest:
        """Admit a request for as long as the context lasts; ``limited``: it counts against its tenant's limits.

        ApiError 400, 401, 403, 429, or 503 where the store could never be read or was lost.
        """
        tenant, models, key = self._tenant(headers)
        load = self._loads.get(tenant.name)
        if load is None:
            load = self._loads[tenant.name] = TenantLoad()
        if limited:
            self._check(tenant, load, key)
        load.requests += limited
        return AdmittedRequest(self, tenant, load, models, key, limited=limited)

    def take_back(self, load: TenantLoad) -> None:
        """Count a request no longer against a limit of requests a minute."""
        load.ask(-1, self._clock())

    def begin(self, tenant: TenantRecord, key: KeyRecord | None) -> bool:
        """Count a request that was let in as under way, in the budgets of its tenant and key; whether there are any."""
        if key is None and not self._budgets.keeps(tenant.name):
            return False
        for name in (tenant.name, "" if key is None else key.name):
            self._budgets.begin(name)
        return True

    def end(self, tenant: TenantRecord, key: KeyRecord | None) -> None:
        """Count it no longer as under way."""
        for name in (tenant.name, "" if key is None else key.name):
            self._budgets.end(name)

    def enter_as(
        self,
        name: TenantId,
        *,
        models: AllowedModels | None,
        key: str | None = None,
        priority: int = LOWEST_PRIORITY,
    ) -> AdmittedRequest:
        """Admit a request that the gateway itself makes for a tenant, at a priority, within its limits.

        ``key`` is the id of an API key for which it is made: it counts against that one's budget, too. ApiError 403,
        404, 429, or 503 where tenants could not be read or were lost.
        """
        directory = self._known.directory
        if directory.unread or directory.lost:
            raise ApiError(503, _MESSAGES[Unknown.UNREAD], headers={"retry-after": str(UNREAD_RETRY_SECONDS)})
        tenant = TenantRecord(name=name) if directory.open and name not in directory.tenants else self.named(name)
        if tenant.disabled:
            self._tenant_metrics.refused(tenant.name, DISABLED)
            raise ApiError(403, f"Tenant `{tenant.name}` is disabled.", code=DISABLED)
        load = self._loads.setdefault(tenant.name, TenantLoad())
        held_to = None if key is None else directory.budget_of(key)
        self._check(tenant, load, held_to)
        load.requests += 1
        return AdmittedRequest(self, replace(tenant, priority=priority), load, models, held_to, limited=True)

    def left(self, tenant: TenantRecord, load: TenantLoad) -> None:
        """Forget a tenant's load where nothing of it needs to be kept; without limits only beyond MAX_UNLIMITED."""
        kept = load.requests or not (load.limited or len(self._loads) > MAX_UNLIMITED)
        if not kept and load.idle(self._clock()):
            self._loads.pop(tenant.name, None)

    def _tenant(self, headers: Iterable[Header]) -> tuple[TenantRecord, AllowedModels | None, KeyRecord | None]:
        directory, models, key = self._known.directory, None, None
        if directory.open:
            tenant = self._unkeyed.tenant(headers, directory)
        else:
            tenant, models, key = self._owner(directory, given_key(headers))
        if tenant.disabled:
            self._tenant_metrics.refused(tenant.name, DISABLED)
            raise ApiError(403, f"Tenant `{tenant.name}` is disabled.", code=DISABLED)
        return tenant, models, key

    def _owner(self, directory: Directory, key: bytes) -> tuple[TenantRecord, AllowedModels | None, KeyRecord | None]:
        hashed = api_key_hash(self._hash_key, key) if key else ""
        owner = directory.owner(hashed, self._wall_clock())
        if isinstance(owner, TenantRecord):
            self._metrics.auth(check=CHECK, outcome="allowed")
            return owner, directory.models.get(hashed), directory.budgets.get(hashed)
        self._metrics.auth(check=CHECK, outcome=owner)
        if owner in {Unknown.UNREAD, Unknown.LOST}:
            headers = {"retry-after": str(UNREAD_RETRY_SECONDS)}
            raise ApiError(503, _MESSAGES[owner], code=KEYS_LOST if owner is Unknown.LOST else None, headers=headers)
        raise ApiError(401, _MESSAGES[owner], code=INVALID_KEY, headers={"www-authenticate": "Bearer"})

    def _check(self, tenant: TenantRecord, load: TenantLoad, key: KeyRecord | None) -> None:
        if load.record is not tenant:
            load.hold_to(tenant, self._clock(), self._others)
        if not load.limited and key is None:
            return
        now, wall = self._clock(), self._wall_clock()
        if (over := load.over(tenant, now) or self._budgets.over(tenant, wall)) is not None:
            message = _message(f"Tenant `{tenant.name}`", over[0], getattr(tenant, over[0]))
            raise self._over(over, message, tenant, load, key)
        if key is not None and (over := self._budgets.over(key, wall)) is not None:
            message = _message(f"API key `{key.hint}...`", over[0], getattr(key, over[0]))
            raise self._over(over, message, tenant, load, key)
        load.ask(1, now)

    def _over(
        self, over: tuple[Limit, int], message: str, tenant: TenantRecord, load: TenantLoad, key: KeyRecord | None
    ) -> OverLimitError:
        limit, seconds = over
        self.left(tenant, load)
        if seconds <= RETRY_SECONDS or limit in PER_MINUTE:
            self._others.short.set()
        self._tenant_metrics.refused(tenant.name, limit)
        return OverLimitError(limit, message, seconds, self.rooms(tenant, load, key))

    def rooms(self, tenant: TenantRecord, load: TenantLoad, key: KeyRecord | None = None) -> Rooms:
        """Return what limits of a tenant, and of its key, leave now."""
        now = self._wall_clock()
        by_calendar = [self._budgets.rooms(holder, now) for holder in (tenant, key) if holder is not None]
        return tightest([load.rooms(self._clock()), *filter(None, by_calendar)])

    def check_more(self, tenant: TenantRecord, load: TenantLoad, sequences: int) -> None:
        """Check that a request, which counts as one so far, may have so many sequences. ApiError 400 or 429."""
        most = tenant.requests_at_once
        if most is None or load.requests - 1 + sequences <= most:
            return
        self._tenant_metrics.refused(tenant.name, Limit.REQUESTS_AT_ONCE)
        words = _message(f"Tenant `{tenant.name}`", Limit.REQUESTS_AT_ONCE, most)
        message = f"{words} This one counts as {sequences} (prompts times `n`)."
        if sequences > most:
            raise ApiError(400, message, param="n", code=Limit.REQUESTS_AT_ONCE)
        headers = {"retry-after": str(RETRY_SECONDS)}
        raise ApiError(429, f"{message} Try again in {RETRY_SECONDS} s.", code=Limit.REQUESTS_AT_ONCE, headers=headers)

    def used(self, used: UsageRecord) -> None:
        """Count what settled requests used of workers."""
        self._tenant_metrics.used(used)
        self._record(used)

    def settle(
        self, tenant: TenantRecord, load: TenantLoad, trace: DecisionTrace, charge: Charge, *, key: str = ""
    ) -> Used:
        """Count what a request used against its tenant's limits, and its ``key``'s, which is named."""
        if trace.queued_seconds is not None:
            self._tenant_metrics.waited(tenant.name, trace.queued_seconds)
        if not trace.attempts:
            return 0, 0, 0  # no worker was asked
        load = self._loads.setdefault(tenant.name, load)  # it may have been forgotten meanwhile
        used = used_by(trace)
        budgeted = bool(key) or self._budgets.keeps(tenant.name)
        if load.counts or budgeted:
            charged = charge(trace, used) if load.priced or budgeted else 0
            record = usage_of(tenant.name, key, trace, used, charged)
            load.spend(record.totals, self._clock())
            self._budgets.add(record)
        return used


def _message(whose: str, limit: Limit, most: int) -> str:
    """What a limit allows, as a sentence."""
    amount = amount_text(most) if limit.unit == "spend" else f"{most} {limit.unit.replace('_', ' ')}"
    when = f"a {limit.period}" if limit.period else "at once"
    utc = " (UTC)" if limit.period in {"day", "month"} else ""
    verb = _VERBS.get(limit.unit, "use") if limit.period else "have"
    return f"{whose} may {verb} {amount} {when}{utc}."
