"""Builds what knows, admits, counts and changes tenants."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass

from cachefleet_controlplane.admin.tenant_service import PRIVATE, TenantService
from cachefleet_controlplane.gateway.admit.tenant_admission import AdmissionMiddleware
from cachefleet_controlplane.metrics import Metrics
from cachefleet_controlplane.store.database import Database
from cachefleet_controlplane.store.sql_tenants import SqlTenants
from cachefleet_controlplane.store.usage_log import SqlUsage, UsageBounds, UsageLog
from cachefleet_controlplane.tenants.budget_keeper import BudgetKeeper
from cachefleet_controlplane.tenants.budgets import Budgets
from cachefleet_controlplane.tenants.directory import Tenants
from cachefleet_controlplane.tenants.lease_keeper import LeaseKeeper
from cachefleet_controlplane.tenants.leases import OtherReplicas
from cachefleet_controlplane.tenants.sql_leases import SqlLeases
from cachefleet_controlplane.wiring.replica_bounds import ReplicaBounds
from cachefleet_controlplane.wiring.settings import Settings
from cachefleet_core.tenancy import FleetKey

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TenantParts:
    """The parts of tenants; run those that can be as tasks, which must end before the store closes."""

    tenants: Tenants
    usage: UsageLog
    budgets: BudgetKeeper
    leases: LeaseKeeper | None
    """None where no other replica uses the store."""
    others: OtherReplicas
    admission: AdmissionMiddleware
    service: TenantService


def tenant_parts(
    settings: Settings, bounds: ReplicaBounds, fleet_key: FleetKey, database: Database, metrics: Metrics
) -> TenantParts:
    """Build the directory of tenants, the usage log, the admission middleware and the admin API's service."""
    if settings.private_store:
        logger.warning("tenants cannot be changed: %s", PRIVATE)
    repository = SqlTenants(database)
    tenants = Tenants(
        repository,
        metrics=metrics,
        poll_seconds=bounds.tenants_poll_seconds,
        required=settings.api_keys == "required",
    )
    usage_bounds = UsageBounds(days=settings.usage_days)
    usage = UsageLog(SqlUsage(database), metrics=metrics, wall_clock=time.time, bounds=usage_bounds)
    hash_key = fleet_key.api_key_hash_key
    others = OtherReplicas(shared=not database.local)
    budgets = Budgets(informed=False, others=others)
    keeper = BudgetKeeper(budgets, tenants, usage, metrics=metrics, wall_clock=time.time)
    admission = AdmissionMiddleware(
        tenants, hash_key=hash_key, metrics=metrics, record=usage.record, budgets=budgets, others=others
    )
    service = TenantService(
        tenants, repository, hash_key, private=settings.private_store, ephemeral=settings.store_ends_with_pod
    )
    leases = None
    if others.shared:
        store, loads, clock = SqlLeases(database), admission.loads, time.monotonic
        leases = LeaseKeeper(store, tenants, loads, others, metrics=metrics, clock=clock, budgets=budgets)
    return TenantParts(tenants, usage, keeper, leases, others, admission, service)


def limits_detail(parts: TenantParts) -> dict[str, object]:
    """What /readyz says of tenants' limits: how many replicas share them, and why what is known of others is old."""
    leases = "" if parts.leases is None else parts.leases.problem
    problem = "; ".join(filter(None, (parts.budgets.problem, leases)))
    return {"replicas": parts.others.number, "problem": problem}
