"""Builds the parts of a control plane from its settings: store, hot prefixes, tenants, pools, native code, gateway."""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import TypeVar

from cachefleet_controlplane.admin.tenant_service import PRIVATE, TenantService
from cachefleet_controlplane.fleet.fleet import Fleet
from cachefleet_controlplane.gateway.account.hot_observer import HotObserver
from cachefleet_controlplane.gateway.account.prefix_list import PrefixList
from cachefleet_controlplane.gateway.account.warm_keys import WarmKeys
from cachefleet_controlplane.gateway.admit.request_bodies import GatewayBounds
from cachefleet_controlplane.gateway.admit.tenant_admission import AdmissionMiddleware
from cachefleet_controlplane.gateway.answers_under_way import AnswersUnderWay
from cachefleet_controlplane.gateway.attempts.gateway_context import GatewayContext
from cachefleet_controlplane.gateway.attempts.stalled_attempts import StalledAttempts
from cachefleet_controlplane.gateway.engine_deaths.engine_deaths import EngineDeaths
from cachefleet_controlplane.gateway.handles.handles import Handles
from cachefleet_controlplane.gateway.handles.unseen_text import UnseenText
from cachefleet_controlplane.gateway.placement.key_affinity import KeyAffinity
from cachefleet_controlplane.gateway.placement.request_queue import Queue
from cachefleet_controlplane.gateway.rendering.dedicated_renderers import Renderers
from cachefleet_controlplane.gateway.rendering.prompt_lookup import PromptLookup
from cachefleet_controlplane.gateway.rendering.render_cache import RenderCache
from cachefleet_controlplane.gateway.rendering.renderer import Renderer
from cachefleet_controlplane.gateway.rendering.text_keys import Texts
from cachefleet_controlplane.gateway.upstream.answers.system_fingerprints import Fingerprints
from cachefleet_controlplane.gateway.upstream.client import Upstream
from cachefleet_controlplane.gateway.upstream.credentials import Credentials
from cachefleet_controlplane.gateway.upstream.worker_tls import WorkerTls
from cachefleet_controlplane.history.recorded_requests import RecordedRequests
from cachefleet_controlplane.hot_prefixes.hot_prefix import PREFIX_BYTES, HotBounds
from cachefleet_controlplane.hot_prefixes.new_worker_warmup import NewWorkerWarmUp
from cachefleet_controlplane.hot_prefixes.tracker import HotPrefixes
from cachefleet_controlplane.internal_auth.file_tokens import FileAuthorizer
from cachefleet_controlplane.internal_auth.token_review import TokenReviewAuthorizer
from cachefleet_controlplane.metrics import Metrics
from cachefleet_controlplane.pools.cache_salts import Salter
from cachefleet_controlplane.pools.first_ready_times import NAME as FIRST_READY_FILE
from cachefleet_controlplane.pools.first_ready_times import FirstReadyTimes
from cachefleet_controlplane.pools.kubernetes_source import KubePoolSource
from cachefleet_controlplane.pools.source import POLL_SECONDS, Announced, FilePoolSource, PoolSource
from cachefleet_controlplane.replica_bounds import ReplicaBounds
from cachefleet_controlplane.routing.decision import Knowledge
from cachefleet_controlplane.settings import Settings, SettingsError
from cachefleet_controlplane.simulation.simulator import Simulator
from cachefleet_controlplane.store.audit_log import AuditBounds, AuditLog
from cachefleet_controlplane.store.audit_repository import SqlAudit
from cachefleet_controlplane.store.config_map_mark import ConfigMapMark
from cachefleet_controlplane.store.database import Database
from cachefleet_controlplane.store.sql_tenants import SqlTenants
from cachefleet_controlplane.store.usage_log import SqlUsage, UsageBounds, UsageLog
from cachefleet_controlplane.tenants.directory import Tenants
from cachefleet_controlplane.tracing.tracer import Tracer
from cachefleet_controlplane.tracing.tracing_settings import TracingSettingsError, tracing_settings
from cachefleet_controlplane.transport.completions import Completions
from cachefleet_controlplane.transport.transport_metrics import TransportCollector
from cachefleet_core.native import Code
from cachefleet_core.tenancy import FleetKey
from cachefleet_runtime.kubernetes import KubernetesClient

logger = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class HotPrefixParts:
    """``observer`` counts prefixes of requests; ``new_workers`` warms workers that join; ``shown`` lists prefixes for
    people. ``close`` them at the end.
    """

    observer: HotObserver
    new_workers: NewWorkerWarmUp
    shown: PrefixList

    async def close(self) -> None:
        """End what goes on in the background."""
        await self.observer.close()
        await self.shown.close()


def hot_prefix_parts(
    settings: Settings,
    fleet: Fleet,
    prompt_lookup: PromptLookup,
    tenants: Tenants,
    *,
    salt_key: bytes,
    metrics: Metrics,
) -> HotPrefixParts:
    """Build the tracker of hot prefixes and its two users; it follows changes of the tenants' salts."""
    hot = HotPrefixes(HotBounds(entries=settings.hot_prefixes, bytes=settings.hot_prefixes * PREFIX_BYTES))
    observer, salter = HotObserver(hot, prompt_lookup, fleet, metrics), Salter(salt_key)
    tenants.on_change(lambda: observer.update_tenants(tenants.directory.tenants, salter))
    return HotPrefixParts(
        observer,
        NewWorkerWarmUp(hot, fleet, metrics),
        PrefixList(hot, fleet, WarmKeys(fleet, prompt_lookup, tenants.salt_version), name_key=salt_key),
    )


def cluster_marker_of(settings: Settings) -> ConfigMapMark | None:
    """What remembers in the cluster that API keys were made; None where nothing does."""
    namespace, _, name = settings.access_config_map.partition("/")
    return ConfigMapMark(namespace, name) if name else None


def database_of(settings: Settings, cluster_marker: ConfigMapMark | None) -> Database:
    """The store that the settings name."""
    return Database(
        settings.url,
        timeout_seconds=settings.database_timeout_seconds,
        folder=settings.data_dir,
        marker_copy=settings.access_marker_copy,
        cluster_marker=cluster_marker,
    )


def audit_log(settings: Settings, database: Database, metrics: Metrics) -> AuditLog:
    """Build the audit log; run it as a task."""
    bounds = AuditBounds(days=settings.audit_days)
    return AuditLog(SqlAudit(database), metrics=metrics, wall_clock=time.time, bounds=bounds)


def simulator_of(settings: Settings, fleet: Fleet, recorded: RecordedRequests) -> Simulator:
    """Simulates the fleet within the settings' memory."""
    return Simulator(fleet, recorded, memory=settings.simulation_memory_bytes)


@dataclass(frozen=True, slots=True)
class TenantParts:
    """The parts of tenants; run ``tenants`` and ``usage`` as tasks, which must end before the store closes."""

    tenants: Tenants
    usage: UsageLog
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
    admission = AdmissionMiddleware(tenants, hash_key=hash_key, metrics=metrics, record=usage.record)
    service = TenantService(
        tenants, repository, hash_key, private=settings.private_store, ephemeral=settings.store_ends_with_pod
    )
    return TenantParts(tenants, usage, admission, service)


Authority = FileAuthorizer | TokenReviewAuthorizer
"""Checks the tokens of agents and of users of the admin API."""


def pool_source(
    settings: Settings,
    api: KubernetesClient | None,
    metrics: Metrics,
    *,
    announced: Announced,
    poll_seconds: float = POLL_SECONDS,
) -> PoolSource:
    """The source of pools that the settings name; ``api`` is needed for Kubernetes, ``announced`` for files only."""
    if settings.pool_source == "kubernetes":
        tls = settings.tls_folder is not None
        return KubePoolSource(_needed(api), metrics=metrics, namespaces=settings.namespaces, tls=tls)
    return FilePoolSource(
        _needed(settings.pool_file),
        _needed(settings.endpoints_file),
        metrics=metrics,
        poll_seconds=poll_seconds,
        announced=announced,
        first_ready=FirstReadyTimes(settings.data_dir / FIRST_READY_FILE),
    )


def authority(
    settings: Settings,
    api: KubernetesClient | None,
    metrics: Metrics,
    *,
    fleet_key: FleetKey,
) -> Authority:
    """The token checks that the settings name; ``api`` is needed for Kubernetes only."""
    if settings.auth == "kubernetes":
        return TokenReviewAuthorizer(_needed(api), metrics=metrics, namespaces=settings.namespaces)
    admin = _needed(settings.admin_token_file)
    return FileAuthorizer(fleet_key, admin, metrics=metrics, reports_file=settings.reports_token_file)


def _needed(value: T | None) -> T:
    """The value, which the validation of Settings guarantees in this mode."""
    if value is None:
        raise ValueError("a setting that this mode needs is missing")
    return value


def transport_of(settings: Settings, metrics: Metrics) -> Completions:
    """The native transport's threads, shown by ``metrics``. SettingsError where they cannot be started."""
    try:
        completions = Completions(threads=settings.gateway_threads)
    except OSError as error:
        line = f"CACHEFLEET_GATEWAY_THREADS: {settings.gateway_threads} threads cannot be started: {error}"
        raise SettingsError([line]) from error
    metrics.collect_from(TransportCollector(completions))
    return completions


def upstream_of(settings: Settings, bounds: ReplicaBounds, tls: WorkerTls | None, completions: Completions) -> Upstream:
    """The client of workers."""
    connect, idle = bounds.connect_seconds, settings.upstream_idle_seconds
    return Upstream(completions, connect_seconds=connect, idle_seconds=idle, tls=tls)


def tracer_of(environment: Mapping[str, str], metrics: Metrics) -> Tracer | None:
    """The tracer that the OTEL_* variables ask for; None where traces are off. SettingsError."""
    try:
        settings = tracing_settings(environment)
        if settings is None:
            return None
        export = import_module("cachefleet_controlplane.tracing.span_export")
        made: Tracer = export.make_tracer(settings, metrics.trace_spans)
    except TracingSettingsError as error:
        raise SettingsError(error.lines) from error
    except ValueError as error:
        raise SettingsError([f"OTEL_EXPORTER_OTLP_*: {error}"]) from error
    return made


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayOptions:
    """What may differ between gateways: bounds, caches, and the most that is learnt of prompts."""

    render_seconds: float = 30.0
    renderer_urls: Sequence[str] = ()
    queue_requests: int = 8
    max_attempts: int = 3
    knowledge: Knowledge = Knowledge.EXACT
    render_cache: RenderCache | None = None
    texts: Texts | None = None
    clock: Callable[[], float] = time.monotonic
    tracer: Tracer | None = None


def gateway_bounds(settings: Settings, bounds: ReplicaBounds) -> GatewayBounds:
    """Of bodies and answers."""
    return GatewayBounds(
        body_bytes=settings.request_max_bytes,
        body_seconds=settings.request_body_seconds,
        requests=settings.upstream_connections,
        buffered_bytes=settings.buffer_bytes,
        stall_seconds=bounds.stall_seconds,
    )


def gateway_options(settings: Settings, code: Code, *, tracer: Tracer | None) -> GatewayOptions:
    """What the gateway learns of prompts, and its bounds; ``code`` computes the keys of texts."""
    return GatewayOptions(
        render_seconds=settings.render_timeout_seconds,
        renderer_urls=settings.renderer_urls,
        queue_requests=settings.queue_requests,
        max_attempts=settings.max_attempts,
        knowledge=Knowledge(settings.knowledge),
        render_cache=RenderCache(),
        texts=Texts(secrets.token_bytes(32), keyer=code.keyer),
        tracer=tracer,
    )


def gateway_context(
    fleet: Fleet, upstream: Upstream, credentials: Credentials, metrics: Metrics, options: GatewayOptions
) -> GatewayContext:
    """What the attempts of a request share: fleet, HTTP client, credentials, metrics and the queue for room."""
    queue = Queue(places=options.queue_requests, metrics=metrics, clock=options.clock)
    fleet.listen(queue.wake)
    return GatewayContext(
        fleet=fleet,
        upstream=upstream,
        credentials=credentials,
        metrics=metrics,
        fingerprints=Fingerprints(),
        queue=queue,
        stalled=StalledAttempts(fleet.troubles, clock=options.clock),
        deaths=EngineDeaths(upstream.ended, fleet.serves, metrics, clock=options.clock),
        under_way=AnswersUnderWay(),
        affinity=KeyAffinity(),
        max_attempts=options.max_attempts,
        tracer=options.tracer,
        clock=options.clock,
    )


def renderer_of(context: GatewayContext, options: GatewayOptions) -> Renderer:
    """The client that asks renderers and workers for a prompt's token ids or block keys."""
    return Renderer(
        context.upstream,
        context.credentials,
        metrics=context.metrics,
        timeout_seconds=options.render_seconds,
        cache=options.render_cache,
        dedicated=Renderers(options.renderer_urls),
    )


def prompt_lookup(
    context: GatewayContext,
    renderer: Renderer,
    options: GatewayOptions,
    *,
    salt_key: bytes,
    handles: Handles | None = None,
    unseen: UnseenText | None = None,
) -> PromptLookup:
    """What completes requests: salt, body for workers, token count and block keys."""
    return PromptLookup(
        context.fleet,
        renderer,
        salt_key=salt_key,
        texts=options.texts,
        knowledge=options.knowledge,
        handles=handles,
        unseen=unseen,
        clock=options.clock,
    )
