"""All findings of a fleet and of the replica that is asked, the most severe first (pure)."""

from __future__ import annotations

from typing import Final

from cachefleet_controlplane.admin.findings.finding import Finding, Severity
from cachefleet_controlplane.admin.findings.pool_findings import pool_findings
from cachefleet_controlplane.admin.findings.service_findings import ServiceState, index_findings, service_findings
from cachefleet_controlplane.admin.findings.worker_findings import worker_findings
from cachefleet_controlplane.workers.views import FleetView

_SEVERITIES: Final = list(Severity)


def findings(view: FleetView, state: ServiceState) -> list[Finding]:
    """What is wrong or worth knowing; what a whole pool lacks is not told again of each of its workers."""
    found = [
        *service_findings(state),
        *index_findings(view.index),
        *pool_findings(view.pools),
        *worker_findings(view.workers),
    ]
    return sorted(found, key=lambda one: (_SEVERITIES.index(Severity(one.severity)), one.subject, one.reason))
