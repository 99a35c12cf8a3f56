"""One replica of the control plane: builds its parts from settings and runs two ASGI applications and their tasks."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Final, Self

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount, Route, WebSocketRoute

from cachefleet_controlplane.admin.admin_app import PATH as ADMIN_PATH
from cachefleet_controlplane.admin.admin_app import admin_app
from cachefleet_controlplane.admin.findings.service_findings import ServiceState
from cachefleet_controlplane.admin.history.history_routes import HistorySource
from cachefleet_controlplane.admin.problem_responses import http_problem
from cachefleet_controlplane.console.console_app import Console
from cachefleet_controlplane.fleet.fleet import Fleet
from cachefleet_controlplane.fleet.fleet_metrics import FleetCollector
from cachefleet_controlplane.fleet.startup_readiness import StartupReadiness
from cachefleet_controlplane.flushing.flusher import Flusher
from cachefleet_controlplane.gateway.app import Gateway
from cachefleet_controlplane.gateway.conversations.conversation_parts import conversation_parts
from cachefleet_controlplane.gateway.layers import GatewayParts
from cachefleet_controlplane.gateway.responses_socket.socket_limits import SocketLimits
from cachefleet_controlplane.gateway.upstream.credentials import Credentials
from cachefleet_controlplane.history.cache_history import CacheHistory
from cachefleet_controlplane.history.recorded_requests import RecordedRequests
from cachefleet_controlplane.history.sampler import Sampler
from cachefleet_controlplane.index.block_index import BlockIndex
from cachefleet_controlplane.internal_endpoints import healthz, metrics_endpoint
from cachefleet_controlplane.metrics import Metrics
from cachefleet_controlplane.pools.source import PoolSource
from cachefleet_controlplane.replica_bounds import ReplicaBounds
from cachefleet_controlplane.report_server.server import ReportsServer
from cachefleet_controlplane.routing.decision import RoutingPolicy
from cachefleet_controlplane.settings import Settings
from cachefleet_controlplane.store.decision_log import DecisionLog
from cachefleet_controlplane.store.decision_repository import SqlDecisions
from cachefleet_controlplane.tenants.directory import Directory
from cachefleet_controlplane.timed_bodies import TimedBodies
from cachefleet_controlplane.tls import tls_parts
from cachefleet_controlplane.wiring import (
    Authority,
    audit_log,
    authority,
    cluster_marker_of,
    database_of,
    gateway_bounds,
    gateway_context,
    gateway_options,
    hot_prefix_parts,
    pool_source,
    prompt_lookup,
    renderer_of,
    simulator_of,
    tenant_parts,
    tracer_of,
    transport_of,
    upstream_of,
)
from cachefleet_core.native import native_code
from cachefleet_core.report_frames import PATH as REPORTS_PATH
from cachefleet_core.tenancy import FleetKey
from cachefleet_runtime.kubernetes import KubernetesClient
from cachefleet_runtime.tasks import restarting

logger = logging.getLogger(__name__)

RESTART_SECONDS: Final = 1.0
"""Pause before a task that ended unexpectedly is started again."""


class ControlPlane:
    """One replica, as an async context manager; within it ``gateway`` and ``internal`` may be served.

    The constructor raises OSError or ValueError where the fleet key cannot be read, and SettingsError where a
    certificate cannot.
    """

    def __init__(self, settings: Settings, bounds: ReplicaBounds | None = None) -> None:
        fleet_key = FleetKey.parse(settings.fleet_key_file.read_text())
        self._settings = settings
        self.bounds = bounds or ReplicaBounds()
        self._resources = AsyncExitStack()
        self._source: PoolSource | None = None
        self._leaving = False
        self._startup_readiness = StartupReadiness(seconds=settings.startup_seconds)
        self.metrics = Metrics()
        self._cluster_marker = cluster_marker_of(settings)
        database = database_of(settings, self._cluster_marker)
        self.tenancy = tenant_parts(settings, self.bounds, fleet_key, database, self.metrics)
        self.code = native_code()
        self.completions = transport_of(settings, self.metrics)
        self.tracer = tracer_of(os.environ, self.metrics)
        self.fleet = self._fleet(fleet_key)
        self.tenancy.tenants.on_change(self.fleet.update_tenants)
        self.metrics.collect_from(FleetCollector(self.fleet.view))
        repository = SqlDecisions(database, max_rows=settings.decisions_max_rows)
        self.decisions = DecisionLog(repository, metrics=self.metrics)
        self.history = CacheHistory()
        self.recorded = RecordedRequests(settings.recorded_request_bytes)
        self.audit = audit_log(settings, database, self.metrics)
        self._fleet_key, self._credentials = fleet_key, Credentials(fleet_key)
        self.tls = tls_parts(settings, self._credentials)
        self._upstream = upstream_of(settings, self.bounds, self.tls.workers, self.completions)
        self.conversations = conversation_parts(
            settings,
            fleet_key,
            database,
            fleet=self.fleet,
            upstream=self._upstream,
            credentials=self._credentials,
            metrics=self.metrics,
            store_seconds=self.bounds.store_seconds,
        )
        self.gateway = self._gateway(fleet_key.salt_key)

    def _fleet(self, fleet_key: FleetKey) -> Fleet:
        settings = self._settings
        return Fleet(
            BlockIndex(),
            index_key=fleet_key.index_key,
            salt_key=fleet_key.salt_key,
            salt_version=self.tenancy.tenants.salt_version,
            tenants=self.tenancy.tenants.names,
            keyer=self.code.keyer,
            texts=None if settings.knowledge == "load" else BlockIndex(),
            policy=RoutingPolicy(settings.policy),
            name_rules=settings.name_rules,
        )

    def _gateway(self, salt_key: bytes) -> Gateway:
        settings = self._settings
        options = gateway_options(settings, self.code, tracer=self.tracer)
        context = gateway_context(self.fleet, self._upstream, self._credentials, self.metrics, options)
        self._deaths = context.deaths
        lookup = prompt_lookup(
            context,
            renderer_of(context, options),
            options,
            salt_key=salt_key,
            handles=self.conversations.handles,
            unseen=self.conversations.unseen,
        )
        self.flush = Flusher(context, self.tenancy.admission, salt_key=salt_key)
        self._sampler = Sampler(self.history, self.fleet.view, self.fleet.models, context.queue.waiting)
        tenants = self.tenancy.tenants
        self.hot = hot_prefix_parts(settings, self.fleet, lookup, tenants, salt_key=salt_key, metrics=self.metrics)
        parts = GatewayParts(
            context=context,
            lookup=lookup,
            admission=self.tenancy.admission,
            record=self.decisions.record,
            bounds=gateway_bounds(settings, self.bounds),
            turns=self.conversations.turns,
            hot=self.hot.observer,
            history=self.history,
            recorded=self.recorded,
        )
        return Gateway(parts, sockets=SocketLimits.of(settings), ready=lambda: self.readiness()[0])

    async def __aenter__(self) -> Self:
        await self._resources.__aenter__()
        logger.info("block keys, index and choice of workers: %s", self.code.reason)
        try:
            await self._open()
        except BaseException:
            await self._resources.aclose()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        await self._resources.__aexit__(kind, error, trace)

    async def _open(self) -> None:
        settings = self._settings
        in_cluster = self._cluster_marker or "kubernetes" in {settings.pool_source, settings.auth}
        api = await self._kubernetes() if in_cluster else None
        if self._cluster_marker and api:
            self._cluster_marker.connect(api, asyncio.get_running_loop())
        allowed = authority(settings, api, self.metrics, fleet_key=self._fleet_key)
        poll = self.bounds.pool_file_poll_seconds
        self._source = pool_source(settings, api, self.metrics, announced=self.fleet.announced, poll_seconds=poll)
        self.internal = self._internal(allowed)
        if self.tracer is not None:
            self._resources.push_async_callback(self.tracer.close)
        await self._resources.enter_async_context(self.completions)
        await self._resources.enter_async_context(self._upstream)
        self._resources.push_async_callback(self.hot.close)
        self._start("store", self.decisions.run)
        self._start("tenants", self.tenancy.tenants.run)
        self._start("audit", self.audit.run)
        self._start("usage", self.tenancy.usage.run)
        self._start("conversations", self.conversations.store_thread.run)
        self._start("examiner", self.conversations.examiner.run)
        self._resources.callback(self.conversations.canaries.close)
        self._resources.callback(self.conversations.unseen.close)
        self._start("history", self._sampler.run)
        self._start("pools", self._follow_pools)

    async def _kubernetes(self) -> KubernetesClient:
        api = await KubernetesClient.connect(self._settings.kubeconfig)
        self._resources.push_async_callback(api.close)
        return api

    def _internal(self, authority: Authority) -> Starlette:
        settings = self._settings
        reports = ReportsServer(self.fleet, authority, self.metrics, new_workers=self.hot.new_workers)
        admin = admin_app(
            self.fleet,
            self.decisions,
            service=self.tenancy.service,
            usage=self.tenancy.usage,
            explain=self.gateway.explain,
            flush=self.flush,
            simulate=simulator_of(settings, self.fleet, self.recorded),
            certifier=self.conversations.examiner,
            state=self._service_state,
            history=HistorySource(self.history, self.hot.shown),
            authorize=authority.admin,
            user_of=authority.user_of,
            audit=self.audit,
            max_bytes=self.bounds.admin_bytes,
        )
        self.console = Console(self.fleet, admin=admin, authorize=authority.admin)
        seconds, stall_seconds = settings.request_body_seconds, self.bounds.stall_seconds
        return Starlette(
            middleware=[Middleware(TimedBodies, seconds=seconds, stall_seconds=stall_seconds)],
            routes=[
                WebSocketRoute(REPORTS_PATH, reports),
                Route(REPORTS_PATH, reports),
                Mount(ADMIN_PATH, admin),
                Mount(Console.path, self.console),
                Route("/metrics", metrics_endpoint(self.metrics.registry)),
                Route("/healthz", healthz),
                Route("/readyz", self._readyz),
            ],
            # Also for paths under the mount that no pattern matches, such as those with a line break.
            exception_handlers={HTTPException: http_problem},
        )

    def withdraw(self) -> None:
        """Make /readyz fail from now on, and end streams of decisions: this replica is shutting down."""
        self._leaving = True
        self.console.end_streams()
        self.decisions.feed.end()

    def readiness(self) -> tuple[bool, dict[str, object]]:
        """Whether requests should be sent here, and the body of /readyz.

        A store that fails does not count, unless nobody is served since its tenants were never read.
        """
        informed = self.fleet.informed.is_set()
        awaited = self._startup_readiness.awaited(lambda: self.fleet.view().workers)
        directory = self.tenancy.tenants.directory
        ready = informed and not awaited and not directory.unread and not self._leaving
        detail: dict[str, object] = {
            "ready": ready,
            "draining": self._leaving,
            "pools": {"known": informed, "problem": self._source.problem if self._source else "not started"},
            "agents": {"awaited": awaited},
            "store": {"problem": self.decisions.problem, "private": self._settings.private_store},
            "tenants": {"problem": self.tenancy.tenants.problem, "keys_lost": directory.lost},
            "transport": {"version": self.completions.version},
            "requests_under_way": self.gateway.under_way,
            "tasks": len(asyncio.all_tasks()),
        }
        return ready, detail

    def _service_state(self) -> ServiceState:
        tenants, source = self.tenancy.tenants, self._source
        read = tenants.informed.is_set()
        return ServiceState(
            pools_known=self.fleet.informed.is_set(),
            pools_problem=source.problem if source else "",
            unread_pools=tuple(claim.pool for claim in source.unread) if source else (),
            store_problem=self.decisions.problem if self.decisions.tried else "",
            private_store=self._settings.private_store,
            tenants_problem=tenants.problem if read else "",
            directory=tenants.directory if read else Directory(required=True),
            leaving=self._leaving,
            fatal_requests=self._deaths.refused(),
        )

    async def _readyz(self, _: Request) -> Response:
        ready, detail = self.readiness()
        return Response(msgspec.json.encode(detail), status_code=200 if ready else 503, media_type="application/json")

    async def _follow_pools(self) -> None:
        if self._source is None:
            raise RuntimeError("pools are followed before there is a source")
        async for views in self._source.watch():
            self._credentials.update(views)
            self.fleet.update_pools(views, self._source.unread)
            self._startup_readiness.begin()

    def _start(self, name: str, work: Callable[[], Awaitable[None]]) -> None:
        kept = restarting(name, work, pause_seconds=RESTART_SECONDS, failed=self.metrics.task_error)
        task = asyncio.create_task(kept, name=name)
        self._resources.push_async_callback(_end, task)


async def _end(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.wait({task})
