"""All findings of a fleet and of the replica that is asked, the most severe first (pure)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from cachefleet_controlplane.admin.findings.capacity_findings import capacity_findings
from cachefleet_controlplane.admin.findings.contract_findings import contract_findings
from cachefleet_controlplane.admin.findings.finding import Finding, Severity
from cachefleet_controlplane.admin.findings.pool_findings import pool_findings
from cachefleet_controlplane.admin.findings.service_findings import ServiceState, index_findings, service_findings
from cachefleet_controlplane.admin.findings.worker_findings import worker_findings
from cachefleet_controlplane.workers.views import FleetView
from cachefleet_core.fleet_status.capacity_facts import CapacityFacts

_SEVERITIES: Final = list(Severity)


def findings(view: FleetView, state: ServiceState, capacities: Sequence[CapacityFacts] = ()) -> list[Finding]:
    """What is wrong or worth knowing; what a whole pool lacks is not told again of each of its workers."""
    found = [
        *service_findings(state),
        *index_findings(view.index),
        *contract_findings(state.contracts),
        *pool_findings(view.pools),
        *worker_findings(view.workers),
        *capacity_findings(view.pools, capacities),
    ]
    return sorted(found, key=lambda one: (_SEVERITIES.index(Severity(one.severity)), one.subject, one.reason))
