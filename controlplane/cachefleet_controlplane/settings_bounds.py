"""Bounds and options of the control plane's parts, as the settings give them."""

from __future__ import annotations

import secrets
import time

from cachefleet_controlplane.gateway.gateway_bounds import GatewayBounds
from cachefleet_controlplane.gateway.rendering.key_cache import KeyCache
from cachefleet_controlplane.gateway.rendering.render_cache import RenderCache
from cachefleet_controlplane.gateway.rendering.text_keys import Texts
from cachefleet_controlplane.metrics import Metrics
from cachefleet_controlplane.routing.decision import Knowledge
from cachefleet_controlplane.settings import Settings
from cachefleet_controlplane.store.audit_log import AuditBounds, AuditLog
from cachefleet_controlplane.store.audit_repository import SqlAudit
from cachefleet_controlplane.store.database import Database
from cachefleet_controlplane.store.decision_log import LogBounds
from cachefleet_controlplane.tracing.tracer import Tracer
from cachefleet_controlplane.wiring import GatewayOptions
from cachefleet_core.native import Code


def log_bounds(settings: Settings) -> LogBounds:
    """Of the queue in front of the store."""
    return LogBounds(
        queue=settings.decisions_queue,
        batch=settings.decisions_batch,
        flush_seconds=settings.decisions_flush_seconds,
        retry_seconds=settings.database_retry_seconds,
    )


def audit_log(settings: Settings, database: Database, metrics: Metrics) -> AuditLog:
    """Build the audit log; run it as a task."""
    bounds = AuditBounds(
        days=settings.audit_days, rows=settings.audit_max_rows, retry_seconds=settings.database_retry_seconds
    )
    return AuditLog(SqlAudit(database), metrics=metrics, wall_clock=time.time, bounds=bounds)


def gateway_bounds(settings: Settings) -> GatewayBounds:
    """Of bodies and answers."""
    return GatewayBounds(
        body_bytes=settings.request_max_bytes,
        body_seconds=settings.request_body_seconds,
        requests=settings.upstream_connections,
        buffered_bytes=settings.buffer_bytes,
        send_seconds=settings.reply_send_seconds,
        stall_seconds=settings.request_stall_seconds,
    )


def gateway_options(settings: Settings, code: Code, *, tracer: Tracer | None) -> GatewayOptions:
    """What the gateway learns of prompts, and its bounds; the code's keyer is used for texts where it is native."""
    native = code.name == "native"
    return GatewayOptions(
        render_seconds=settings.render_timeout_seconds,
        renderer_urls=settings.renderer_urls,
        queue_requests=settings.queue_requests,
        max_attempts=settings.max_attempts,
        knowledge=Knowledge(settings.knowledge),
        # Native code computes keys faster than a cache lookup or a hash of the text takes.
        key_cache=None if native else KeyCache(),
        render_cache=RenderCache(),
        texts=Texts(secrets.token_bytes(32), keyer=code.keyer if native else None),
        tracer=tracer,
    )
