"""One replica of the control plane: builds its parts from settings and runs two ASGI applications and their tasks."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from functools import partial
from types import TracebackType
from typing import Final, Self

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from cachefleet_controlplane.admin.admin_app import AdminParts
from cachefleet_controlplane.flushing.flusher import Flusher
from cachefleet_controlplane.gateway.admit.passed_requests import OtherControlPlanes
from cachefleet_controlplane.gateway.app import Gateway
from cachefleet_controlplane.gateway.layers import GatewayParts
from cachefleet_controlplane.gateway.send.credentials import Credentials
from cachefleet_controlplane.index_queries.index_queries import IndexQueries
from cachefleet_controlplane.metrics import Metrics
from cachefleet_controlplane.pools.control_plane_share import share_of
from cachefleet_controlplane.pools.inference_objectives import InferenceObjectives
from cachefleet_controlplane.pools.source import PoolSource
from cachefleet_controlplane.report_server.server import ReportsServer
from cachefleet_controlplane.wiring.batch_parts import batch_parts, batch_runner
from cachefleet_controlplane.wiring.conversation_parts import conversation_parts
from cachefleet_controlplane.wiring.fleet_parts import fleet_of
from cachefleet_controlplane.wiring.gateway_parts import (
    allowed_origins,
    gateway_bounds,
    gateway_context,
    gateway_options,
    prompt_lookup,
    renderer_of,
    socket_limits,
    tracer_of,
)
from cachefleet_controlplane.wiring.history_parts import contract_records, history_parts, judgement_parts
from cachefleet_controlplane.wiring.hot_prefix_parts import hot_prefix_parts
from cachefleet_controlplane.wiring.internal_app import InternalApp, internal_app
from cachefleet_controlplane.wiring.pool_parts import Authority, authority, pool_source
from cachefleet_controlplane.wiring.replica_bounds import ReplicaBounds
from cachefleet_controlplane.wiring.replica_state import ReplicaState
from cachefleet_controlplane.wiring.settings import Settings
from cachefleet_controlplane.wiring.store_parts import store_parts
from cachefleet_controlplane.wiring.tenant_parts import limits_detail, tenant_parts
from cachefleet_controlplane.wiring.transport_parts import tls_parts, transport_of, upstream_of
from cachefleet_core.native import native_code
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
        self.metrics = Metrics()
        store = store_parts(settings, self.metrics)
        self._cluster_marker, self.decisions, self.audit = store.cluster_marker, store.decisions, store.audit
        self.tenancy = tenant_parts(settings, self.bounds, fleet_key, store.database, self.metrics)
        self.code = native_code()
        self.completions = transport_of(settings, self.metrics)
        self.tracer = tracer_of(os.environ, self.metrics)
        self.fleet = fleet_of(settings, fleet_key, self.tenancy.tenants, self.code, self.metrics)
        self.history = history_parts(settings, self.bounds, self.fleet, self.metrics)
        self.contracts = contract_records(self.fleet, self.metrics)
        advice, seconds = self.history.advice, self.bounds.store_seconds
        self.judgements = judgement_parts(store.database, self.contracts, advice, self.metrics, store_seconds=seconds)
        self.state = ReplicaState(settings, self.fleet, self.tenancy.tenants, self.decisions)
        self.objectives = InferenceObjectives()
        self._fleet_key, self._credentials = fleet_key, Credentials(fleet_key)
        self.tls = tls_parts(settings, self._credentials)
        self._upstream = upstream_of(settings, self.bounds, self.tls.workers, self.completions)
        self.conversations = conversation_parts(
            settings,
            fleet_key,
            store.database,
            fleet=self.fleet,
            upstream=self._upstream,
            credentials=self._credentials,
            metrics=self.metrics,
            store_seconds=self.bounds.store_seconds,
        )
        self.batches = batch_parts(settings, fleet_key, store.database, self.metrics)
        self.gateway = self._gateway(fleet_key.salt_key)
        self.batch_runner = batch_runner(settings, self.batches, self.gateway, self._context, self.tenancy.admission)

    def _gateway(self, salt_key: bytes) -> Gateway:
        settings = self._settings
        return Gateway(
            self._gateway_parts(salt_key),
            sockets=socket_limits(settings),
            ready=lambda: self.readiness()[0],
            origins=allowed_origins(settings),
            access_log=settings.access_log,
        )

    def _gateway_parts(self, salt_key: bytes) -> GatewayParts:
        """Makes what only a gateway knows of: how it finds prompts, hot ones and queries of the index."""
        settings = self._settings
        options = gateway_options(settings, tracer=self.tracer)
        self._context = context = gateway_context(self.fleet, self._upstream, self._credentials, self.metrics, options)
        lookup = prompt_lookup(
            context,
            renderer_of(context, options),
            options,
            salt_key=salt_key,
            handles=self.conversations.handles,
            unseen=self.conversations.unseen,
        )
        self.flush = Flusher(context, self.tenancy.admission, salt_key=salt_key)
        self.queries = IndexQueries(self.fleet, self.tenancy.admission, salt_key=salt_key)
        self._deaths, self._sampler = context.deaths, self.history.sampler(self.fleet, context.queue.waiting)
        tenants = self.tenancy.tenants
        self.hot = hot_prefix_parts(settings, self.fleet, lookup, tenants, salt_key=salt_key, metrics=self.metrics)
        return GatewayParts(
            context=context,
            lookup=lookup,
            admission=self.tenancy.admission,
            record=self.decisions.record,
            bounds=gateway_bounds(settings, self.bounds),
            turns=self.conversations.turns,
            hot=self.hot.observer,
            history=self.history.cache,
            recorded=self.history.recorded,
            prompts=self.history.prompts,
            reuses=self.history.reuses,
            contracts=self.contracts.answered,
            objectives=self.objectives,
            others=OtherControlPlanes(settings.control_plane_name, settings.others),
            batches=None if self.batches is None else self.batches.routes,
        )

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
        source = pool_source(settings, api, self.metrics, announced=self.fleet.announced, poll_seconds=poll)
        self.state.source = source
        internal = self._internal(allowed)
        self.internal, self.console = internal.app, internal.console
        if self.tracer is not None:
            self._resources.push_async_callback(self.tracer.close)
        await self._resources.enter_async_context(self.completions)
        await self._resources.enter_async_context(self._upstream)
        self._resources.push_async_callback(self.hot.close)
        self._start("store", self.decisions.run)
        self._start("audit", self.audit.run)
        self._start_tenancy()
        self._start("conversations", self.conversations.store_thread.run)
        self._start("examiner", self.conversations.examiner.run)
        self._resources.callback(self.conversations.canaries.close)
        self._resources.callback(self.conversations.unseen.close)
        self._start_batches()
        self._start("history", self._sampler.run)
        self._start_judgements()
        self._start("loads", self.fleet.share)
        self._start("pools", lambda: self._follow(source))
        self._start_objectives(api)

    def _start_tenancy(self) -> None:
        self._start("tenants", self.tenancy.tenants.run)
        self._start("usage", self.tenancy.usage.run)
        self._start("budgets", self.tenancy.budgets.run)
        if self.tenancy.leases is not None:
            self._start("leases", self.tenancy.leases.run)

    async def _kubernetes(self) -> KubernetesClient:
        api = await KubernetesClient.connect(self._settings.kubeconfig)
        self._resources.push_async_callback(api.close)
        return api

    def _internal(self, authority: Authority) -> InternalApp:
        parts = AdminParts(
            fleet=self.fleet,
            decisions=self.decisions,
            service=self.tenancy.service,
            usage=self.tenancy.usage,
            explain=self.gateway.explain,
            flush=self.flush,
            simulate=self.history.simulator,
            certifier=self.conversations.examiner,
            state=lambda: self.state.for_findings(self._context.deaths.refused(), tuple(self.contracts.states())),
            contracts=self.contracts.states,
            history=self.history.shown(self.hot.shown),
            capacities=self.history.capacities,
            confirm=self.history.capacities.confirm,
            audit=self.audit,
        )
        reports = ReportsServer(self.fleet, authority, self.metrics, new_workers=self.hot.new_workers)
        body_seconds = self._settings.request_body_seconds
        return internal_app(
            *(parts, reports, authority, self.metrics, self.queries),
            readyz=self._readyz,
            body_seconds=body_seconds,
            bounds=self.bounds,
        )

    def withdraw(self) -> None:
        """Make /readyz fail from now on, and end streams of decisions: this replica is shutting down."""
        self.state.leaving = True
        self.console.end_streams()
        if self.batch_runner is not None:
            self.batch_runner.leave()
        self.decisions.feed.end()

    def readiness(self) -> tuple[bool, dict[str, object]]:
        """Whether requests should be sent here, and the body of /readyz."""
        ready, detail = self.state.readiness()
        version, under_way, tasks = self.completions.version, self.gateway.under_way, len(asyncio.all_tasks())
        told = {"transport": {"version": version}, "limits": limits_detail(self.tenancy)}
        return ready, detail | told | {"requests_under_way": under_way, "tasks": tasks}

    async def _readyz(self, _: Request) -> Response:
        ready, detail = self.readiness()
        return Response(msgspec.json.encode(detail), status_code=200 if ready else 503, media_type="application/json")

    async def _follow(self, source: PoolSource) -> None:
        async for views in source.watch():
            share = share_of(self._settings.control_plane_name, views, self._settings.others)
            self.state.note_share(share)
            self._credentials.update(share.own)
            self.fleet.update_pools(share.own, source.unread, share.others)
            self.state.startup.begin()

    def _start_batches(self) -> None:
        if self.batches is not None:
            self._start("files", self.batches.file_thread.run)
            self._start("objects", self.batches.files.run)
            self._start("batches", self.batches.batch_thread.run)
        if self.batch_runner is not None:
            self._start("batch_runner", self.batch_runner.run)

    def _start_judgements(self) -> None:
        self._start("judgement_store", self.judgements.thread.run)
        self._start("judgements", self.judgements.log.run)
        self._start("contracts", self.contracts.run)
        self._start("advice", self.history.advice.run)
        self._start("outlines", self.history.outlines.run)

    def _start_objectives(self, api: KubernetesClient | None) -> None:
        if self._settings.inference_objectives and api:
            namespaces = self._settings.namespaces
            follow = partial(self.objectives.follow, api, metrics=self.metrics, namespaces=namespaces)
            self._start("objectives", follow)

    def _start(self, name: str, work: Callable[[], Awaitable[None]]) -> None:
        kept = restarting(name, work, pause_seconds=RESTART_SECONDS, failed=self.metrics.task_error)
        task = asyncio.create_task(kept, name=name)
        self._resources.push_async_callback(_end, task)


async def _end(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.wait({task})
