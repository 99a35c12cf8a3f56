"""What the control plane has for tenants, put together."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass

from cachefleet_controlplane.admin.tenant_service import PRIVATE, TenantService
from cachefleet_controlplane.gateway.admission import AdmissionMiddleware
from cachefleet_controlplane.metrics import Metrics
from cachefleet_controlplane.settings import Settings
from cachefleet_controlplane.store.database import Database
from cachefleet_controlplane.store.sql_tenants import SqlTenants
from cachefleet_controlplane.store.sql_usage import SqlUsage
from cachefleet_controlplane.store.usage_log import UsageBounds, UsageLog
from cachefleet_controlplane.tenants.directory import Tenants
from cachefleet_core.tenancy import FleetKey

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TenantParts:
    """``tenants`` and ``usage`` are to be run as tasks, and to end before the store closes."""

    tenants: Tenants
    usage: UsageLog
    admission: AdmissionMiddleware
    service: TenantService


def tenant_parts(settings: Settings, fleet_key: FleetKey, database: Database, metrics: Metrics) -> TenantParts:
    if settings.private_store:
        logger.warning("tenants cannot be changed: %s", PRIVATE)
    repository = SqlTenants(database)
    tenants = Tenants(
        repository,
        metrics=metrics,
        poll_seconds=settings.tenants_poll_seconds,
        required=settings.api_keys == "required",
    )
    bounds = UsageBounds(
        queue=settings.usage_queue, flush_seconds=settings.usage_flush_seconds, days=settings.usage_days
    )
    usage = UsageLog(SqlUsage(database), metrics=metrics, wall_clock=time.time, bounds=bounds)
    hash_key = fleet_key.api_key_hash_key
    admission = AdmissionMiddleware(tenants, hash_key=hash_key, metrics=metrics, record=usage.record)
    return TenantParts(
        tenants, usage, admission, TenantService(tenants, repository, hash_key, private=settings.private_store)
    )
