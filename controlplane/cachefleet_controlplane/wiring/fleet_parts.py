"""Builds the fleet: its indexes, and what it knows of tenants."""

from __future__ import annotations

from cachefleet_controlplane.fleet.fleet import Fleet
from cachefleet_controlplane.fleet.fleet_metrics import FleetCollector
from cachefleet_controlplane.index.block_index import BlockIndex
from cachefleet_controlplane.metrics import Metrics
from cachefleet_controlplane.routing.decision import RoutingPolicy
from cachefleet_controlplane.tenants.directory import Tenants
from cachefleet_controlplane.wiring.settings import Settings
from cachefleet_core.native import Code
from cachefleet_core.tenancy import FleetKey


def fleet_of(settings: Settings, fleet_key: FleetKey, tenants: Tenants, code: Code, metrics: Metrics) -> Fleet:
    """Build the fleet, shown by ``metrics``; it follows changes of the tenants."""
    fleet = Fleet(
        BlockIndex(),
        index_key=fleet_key.index_key,
        salt_key=fleet_key.salt_key,
        salt_version=tenants.salt_version,
        tenants=tenants.names,
        keyer=code.keyer,
        texts=None if settings.knowledge == "load" else BlockIndex(),
        policy=RoutingPolicy(settings.policy),
        name_rules=settings.name_rules,
    )
    tenants.on_change(fleet.update_tenants)
    metrics.collect_from(FleetCollector(fleet.view))
    return fleet
