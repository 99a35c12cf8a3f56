"""Builds what keeps batches and their files, and what runs them, where batches are served."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

from prometheus_client import Counter

from cachefleet_controlplane.gateway.admit.model_lookup import find_model
from cachefleet_controlplane.gateway.admit.request_bodies import RequestBodies
from cachefleet_controlplane.gateway.admit.tenant_admission import AdmissionMiddleware
from cachefleet_controlplane.gateway.app import Gateway
from cachefleet_controlplane.gateway.batches.batch_metrics import BatchMetrics
from cachefleet_controlplane.gateway.batches.batch_object import Batch, BatchBounds
from cachefleet_controlplane.gateway.batches.batch_repository import SqlBatches
from cachefleet_controlplane.gateway.batches.batch_routes import BatchRoutes
from cachefleet_controlplane.gateway.batches.batch_run import RunParts
from cachefleet_controlplane.gateway.batches.batch_runner import BatchRunner
from cachefleet_controlplane.gateway.batches.batch_store import BatchStore
from cachefleet_controlplane.gateway.batches.line_request import Enter
from cachefleet_controlplane.gateway.batches.line_results import LineResults
from cachefleet_controlplane.gateway.files.file_contents import FileContents
from cachefleet_controlplane.gateway.files.file_object import DAY, FileBounds
from cachefleet_controlplane.gateway.files.file_repository import SqlFiles
from cachefleet_controlplane.gateway.files.files_url import usable_files_url
from cachefleet_controlplane.gateway.files.kept_files import FILES_URL, LABEL, KeptFiles
from cachefleet_controlplane.gateway.retry.gateway_context import GatewayContext
from cachefleet_controlplane.metrics import Metrics
from cachefleet_controlplane.store.content.store_thread import StoreThread, StoreThreadBounds
from cachefleet_controlplane.store.content.tenant_cipher import TenantCipher
from cachefleet_controlplane.store.database import Database
from cachefleet_controlplane.tenants.allowed_models import AllowedModels
from cachefleet_controlplane.wire.errors import ApiError
from cachefleet_controlplane.wiring.settings import Settings, SettingsError
from cachefleet_core.tenancy import FleetKey

STORE_SECONDS: Final = 30.0
"""How long a part of a file, or a line, waits for the store."""


@dataclass(frozen=True, slots=True)
class BatchParts:
    """What keeps batches and files; run both threads as tasks."""

    files: KeptFiles
    store: BatchStore
    results: LineResults
    bounds: BatchBounds
    metrics: BatchMetrics
    file_thread: StoreThread[SqlFiles]
    batch_thread: StoreThread[SqlBatches]

    def routes(self, bodies: RequestBodies) -> BatchRoutes:
        """Return what answers clients."""
        return BatchRoutes(self.store, self.files, bodies, self.bounds)


def batch_parts(settings: Settings, fleet_key: FleetKey, database: Database, metrics: Metrics) -> BatchParts | None:
    """Build what keeps batches and files; None where batches are not served."""
    if not settings.batches:
        return None
    counted = BatchMetrics(metrics)
    thread_bounds = StoreThreadBounds(answer_seconds=STORE_SECONDS)
    failed = _counting(metrics)
    file_thread = StoreThread(
        SqlFiles(database),
        "files",
        failed=failed,
        prune=lambda store: store.prune(now=time.time()),
        bounds=thread_bounds,
    )
    earlier = partial(_objects, thread=file_thread, failed=failed)
    objects = _set_objects(settings.files_url, earlier)
    batch_thread = StoreThread(
        SqlBatches(database),
        "batches",
        failed=counted.store_failed,
        prune=lambda store: store.prune(now=time.time()),
        bounds=thread_bounds,
    )
    kept = settings.batch_file_days * DAY
    bounds = FileBounds(file_bytes=settings.batch_file_bytes, tenant_bytes=settings.batch_tenant_bytes, seconds=kept)
    key = fleet_key.history_key
    return BatchParts(
        files=KeptFiles(file_thread, TenantCipher(key, LABEL), bounds, objects=objects, earlier=earlier),
        store=BatchStore(batch_thread),
        results=LineResults(key),
        bounds=_batch_bounds(settings),
        metrics=counted,
        file_thread=file_thread,
        batch_thread=batch_thread,
    )


def _batch_bounds(settings: Settings) -> BatchBounds:
    return BatchBounds(
        lines=settings.batch_lines,
        line_bytes=settings.request_max_bytes,
        requests=settings.batch_requests,
        free_percent=settings.batch_free_percent,
        kept_seconds=settings.batch_file_days * DAY,
    )


def _counting(metrics: Metrics) -> Callable[[str], None]:
    """What counts failures of the store of files, by operation."""
    failures = Counter(
        "cachefleet_file_store_failures",
        "Calls of the store of files that failed",
        ["operation"],
        registry=metrics.registry,
    )
    return lambda operation: failures.labels(operation).inc()


def _objects(url: str, *, thread: StoreThread[SqlFiles], failed: Callable[[str], None]) -> FileContents:
    """Object storage of a URL. ValueError where it is none, or the extra is missing."""
    usable_files_url(url)
    from cachefleet_controlplane.gateway.files.object_contents import ObjectContents  # noqa: PLC0415 - an extra

    return ObjectContents(url, thread, failed=failed)


def _set_objects(url: str, make: Callable[[str], FileContents]) -> FileContents | None:
    """Object storage for new files; None where no URL says where. SettingsError."""
    try:
        return make(url) if url else None
    except ValueError as error:
        raise SettingsError([f"{FILES_URL}: {error}"]) from error


def batch_runner(
    settings: Settings,
    parts: BatchParts | None,
    gateway: Gateway,
    context: GatewayContext,
    admission: AdmissionMiddleware,
) -> BatchRunner | None:
    """Build what runs batches through the gateway's own layers; None where this replica runs none."""
    if parts is None or not settings.batch_requests:
        return None
    return BatchRunner(
        RunParts(
            store=parts.store,
            files=parts.files,
            results=parts.results,
            serve=gateway.serve_own,
            enter=partial(entering, admission),
            most=partial(most_lines, admission, parts.bounds),
            spare=partial(has_spare_room, context, parts.bounds),
            slots=asyncio.Semaphore(settings.batch_requests),
            bounds=parts.bounds,
            metrics=parts.metrics,
            leaving=asyncio.Event(),
        )
    )


def entering(admission: AdmissionMiddleware, batch: Batch) -> Enter:
    """Return what admits the requests of a batch: as its tenant's and its key's, at the lowest priority."""
    models = None if batch.models is None else AllowedModels(batch.models)
    return lambda: admission.enter_as(batch.tenant, models=models, key=batch.key)


def most_lines(admission: AdmissionMiddleware, bounds: BatchBounds, batch: Batch) -> int:
    """Return how many lines of a batch may be under way: at most half of what its tenant may have at once."""
    try:
        most = admission.named(batch.tenant).requests_at_once
    except ApiError:
        most = None
    return bounds.requests if most is None else max(1, min(bounds.requests, most // 2))


def has_spare_room(context: GatewayContext, bounds: BatchBounds, model: str) -> bool:
    """Whether a line may begin: nobody waits for the model's workers, and one of them has room to spare.

    True for a model that is not served: its lines are answered with that.
    """
    try:
        served = find_model(context.fleet, model)
    except ApiError:
        return True
    if context.queue.waiting((served.namespace, served.base)):
        return False
    pools, now = filter(None, map(context.fleet.pool_of, served.pools)), context.clock()
    return any(pool.has_spare_room(now, bounds.free_percent) for pool in pools)
