"""Builds what keeps tenants' files, where batches are served."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Final

from prometheus_client import Counter

from cachefleet_controlplane.gateway.files.file_object import DAY, FileBounds
from cachefleet_controlplane.gateway.files.file_repository import SqlFiles
from cachefleet_controlplane.gateway.files.kept_files import LABEL, KeptFiles
from cachefleet_controlplane.metrics import Metrics
from cachefleet_controlplane.store.content.store_thread import StoreThread, StoreThreadBounds
from cachefleet_controlplane.store.content.tenant_cipher import TenantCipher
from cachefleet_controlplane.store.database import Database
from cachefleet_controlplane.wiring.settings import Settings
from cachefleet_core.tenancy import FleetKey

STORE_SECONDS: Final = 30.0
"""How long a part of a file waits for the store."""


@dataclass(frozen=True, slots=True)
class FileParts:
    """What keeps files; run ``store_thread`` as a task."""

    files: KeptFiles
    store_thread: StoreThread[SqlFiles]


def file_parts(settings: Settings, fleet_key: FleetKey, database: Database, metrics: Metrics) -> FileParts | None:
    """Build what keeps files; None where batches are not served."""
    if not settings.batches:
        return None
    failures = Counter(
        "cachefleet_file_store_failures",
        "Calls of the store of files that failed",
        ["operation"],
        registry=metrics.registry,
    )
    store_thread = StoreThread(
        SqlFiles(database),
        "files",
        failed=lambda operation: failures.labels(operation).inc(),
        prune=lambda store: store.prune(now=time.time()),
        bounds=StoreThreadBounds(answer_seconds=STORE_SECONDS),
    )
    bounds = FileBounds(
        file_bytes=settings.batch_file_bytes,
        tenant_bytes=settings.batch_tenant_bytes,
        seconds=settings.batch_file_days * DAY,
    )
    return FileParts(KeptFiles(store_thread, TenantCipher(fleet_key.history_key, LABEL), bounds), store_thread)
