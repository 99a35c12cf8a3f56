"""Builds the store and its two logs: of decisions and of the admin API's calls."""

from __future__ import annotations

import time
from dataclasses import dataclass

from cachefleet_controlplane.metrics import Metrics
from cachefleet_controlplane.store.audit_log import AuditBounds, AuditLog
from cachefleet_controlplane.store.audit_repository import SqlAudit
from cachefleet_controlplane.store.config_map_mark import ConfigMapMark
from cachefleet_controlplane.store.database import Database
from cachefleet_controlplane.store.decision_log import DecisionLog
from cachefleet_controlplane.store.decision_repository import SqlDecisions
from cachefleet_controlplane.wiring.settings import Settings


@dataclass(frozen=True, slots=True)
class StoreParts:
    """The store and its logs; run ``decisions`` and ``audit`` as tasks. ``cluster_marker`` remembers in the cluster
    that API keys were made; None where nothing does.
    """

    cluster_marker: ConfigMapMark | None
    database: Database
    decisions: DecisionLog
    audit: AuditLog


def store_parts(settings: Settings, metrics: Metrics) -> StoreParts:
    """Build the store that the settings name, the decision log and the audit log."""
    namespace, _, name = settings.access_config_map.partition("/")
    cluster_marker = ConfigMapMark(namespace, name) if name else None
    database = Database(
        settings.url,
        timeout_seconds=settings.database_timeout_seconds,
        folder=settings.data_dir,
        marker_copy=settings.access_marker_copy,
        cluster_marker=cluster_marker,
    )
    decisions = DecisionLog(SqlDecisions(database, max_rows=settings.decisions_max_rows), metrics=metrics)
    bounds = AuditBounds(days=settings.audit_days)
    audit = AuditLog(SqlAudit(database), metrics=metrics, wall_clock=time.time, bounds=bounds)
    return StoreParts(cluster_marker, database, decisions, audit)
