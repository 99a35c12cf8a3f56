"""The control plane put together: settings in; two ASGI applications and the tasks behind them out."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Final, Self, TypeVar

import msgspec
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount, Route, WebSocketRoute

from cachefleet_controlplane.admin.app import PATH as ADMIN_PATH
from cachefleet_controlplane.admin.app import admin_app
from cachefleet_controlplane.admin.file_tokens import FileAuthorizer
from cachefleet_controlplane.admin.token_review import ReviewBounds, TokenReviewAuthorizer
from cachefleet_controlplane.engines import Engine, engine
from cachefleet_controlplane.fleet import Fleet
from cachefleet_controlplane.fleet_metrics import FleetCollector
from cachefleet_controlplane.gateway.app import Gateway, GatewayBounds
from cachefleet_controlplane.gateway.credentials import Credentials
from cachefleet_controlplane.gateway.fingerprints import Fingerprints
from cachefleet_controlplane.gateway.memo import KeyMemo
from cachefleet_controlplane.gateway.placing import Placer
from cachefleet_controlplane.gateway.serve import Parts
from cachefleet_controlplane.gateway.upstream import Upstream
from cachefleet_controlplane.kube import KubePoolSource, WatchBounds
from cachefleet_controlplane.kube_api import HttpKubeApi
from cachefleet_controlplane.metrics import CONTENT_TYPE, Metrics
from cachefleet_controlplane.pools import FilePoolSource, PoolSource
from cachefleet_controlplane.renderer import Renderer
from cachefleet_controlplane.reports.server import ReportsServer
from cachefleet_controlplane.reports.settings import ReportLimits
from cachefleet_controlplane.routing import RoutingPolicy
from cachefleet_controlplane.settings import Settings, SettingsError
from cachefleet_controlplane.store.database import Database
from cachefleet_controlplane.store.decisions import DecisionLog, LogBounds
from cachefleet_controlplane.store.sql import SqlDecisions
from cachefleet_core.native import NativeError
from cachefleet_core.reports import PATH as REPORTS_PATH
from cachefleet_core.tenancy import FleetKey

logger = logging.getLogger(__name__)
T = TypeVar("T")

RESTART_SECONDS: Final = 1.0
"""Pause before a task that ended unexpectedly is started again."""


Authority = FileAuthorizer | TokenReviewAuthorizer
"""Who decides about tokens, for agents and for people."""


class ControlPlane:
    """One replica. A context manager; within it ``gateway`` and ``internal`` may be served.

    Raises at once: OSError or ValueError where the fleet key cannot be read; SettingsError where native code was asked
    for by name and cannot be had.
    """

    def __init__(self, settings: Settings) -> None:
        fleet_key = FleetKey.parse(settings.fleet_key_file.read_text())
        self._settings = settings
        self._resources = AsyncExitStack()
        self._source: PoolSource | None = None
        self._draining = False
        self.metrics = Metrics()
        self.engine = _engine(settings)
        self.metrics.engine(code=self.engine.code.name, reason=self.engine.code.reason)
        self.fleet = Fleet(
            self.engine.index(),
            index_key=fleet_key.index_key,
            salt_key=fleet_key.salt_key,
            keyer=self.engine.code.keyer,
            chooser=self.engine.chooser,
            policy=RoutingPolicy(settings.policy),
        )
        self.metrics.collect_from(FleetCollector(self.fleet.view))
        self.decisions = DecisionLog(_repository(settings), metrics=self.metrics, bounds=_log_bounds(settings))
        self._credentials = Credentials(fleet_key)
        self._upstream = Upstream(
            connect_seconds=settings.upstream_connect_seconds, idle_seconds=settings.upstream_idle_seconds
        )
        self.gateway = self._gateway(fleet_key.salt_key)

    def _gateway(self, salt_key: bytes) -> Gateway:
        settings = self._settings
        renderer = Renderer(
            self._upstream, self._credentials, metrics=self.metrics, timeout_seconds=settings.render_timeout_seconds
        )
        parts = Parts(
            fleet=self.fleet,
            upstream=self._upstream,
            credentials=self._credentials,
            metrics=self.metrics,
            fingerprints=Fingerprints(),
            max_legs=settings.max_legs,
        )
        bounds = GatewayBounds(
            body_bytes=settings.request_max_bytes,
            body_seconds=settings.request_body_seconds,
            requests=settings.upstream_connections,
            send_seconds=settings.reply_send_seconds,
        )
        # Native code computes keys sooner than it would look them up.
        memo = None if self.engine.code.name == "native" else KeyMemo()
        placer = Placer(self.fleet, renderer, salt_key=salt_key, memo=memo)
        return Gateway(parts, placer, record=self.decisions.record, bounds=bounds)

    async def __aenter__(self) -> Self:
        await self._resources.__aenter__()
        logger.info("block keys and index in %s code: %s", self.engine.code.name, self.engine.code.reason)
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
        api = await self._kubernetes() if "kubernetes" in {settings.pool_source, settings.auth} else None
        authority = _authority(settings, api, self.metrics)
        self._source = _source(settings, api, self.metrics)
        self.internal = self._internal(authority)
        await self._resources.enter_async_context(self._upstream)
        self._start("store", self.decisions.run)
        self._start("pools", self._follow_pools)

    async def _kubernetes(self) -> HttpKubeApi:
        api = await HttpKubeApi.connect(self._settings.kubeconfig)
        self._resources.push_async_callback(api.close)
        return api

    def _internal(self, authority: Authority) -> Starlette:
        settings = self._settings
        limits = ReportLimits(connections=settings.report_connections, hello_seconds=settings.report_hello_seconds)
        reports = ReportsServer(self.fleet, authority.reports, self.metrics, limits=limits)
        admin = admin_app(self.fleet, self.decisions, authorize=authority.admin, max_bytes=settings.admin_max_bytes)
        return Starlette(
            routes=[
                WebSocketRoute(REPORTS_PATH, reports),
                Route(REPORTS_PATH, reports),
                Mount(ADMIN_PATH, admin),
                Route("/metrics", self._metrics),
                Route("/healthz", self._healthz),
                Route("/readyz", self._readyz),
            ]
        )

    def drain(self) -> None:
        """Say that this replica is going: not ready any more, and no new requests."""
        self._draining = True
        self.gateway.drain()

    def readiness(self) -> tuple[bool, dict[str, object]]:
        """Whether requests should come here, and in what state each part is. A failing store does not count."""
        informed = self.fleet.informed.is_set()
        detail: dict[str, object] = {
            "ready": informed and not self._draining,
            "draining": self._draining,
            "pools": {"known": informed, "problem": self._source.problem if self._source else "not started"},
            "store": {"problem": self.decisions.problem},
            "engine": {"code": self.engine.code.name, "reason": self.engine.code.reason},
            "requests_under_way": self.gateway.under_way,
        }
        return informed and not self._draining, detail

    async def _metrics(self, _: Request) -> Response:
        return Response(self.metrics.exposition(), media_type=CONTENT_TYPE)

    async def _healthz(self, _: Request) -> Response:
        return Response(b"ok\n", media_type="text/plain")

    async def _readyz(self, _: Request) -> Response:
        ready, detail = self.readiness()
        return Response(msgspec.json.encode(detail), status_code=200 if ready else 503, media_type="application/json")

    async def _follow_pools(self) -> None:
        if self._source is None:
            raise RuntimeError("pools are followed before there is a source")
        async for views in self._source.watch():
            self._credentials.update(views)
            self.fleet.update_pools(views)

    def _start(self, name: str, work: Callable[[], Awaitable[None]]) -> None:
        task = asyncio.create_task(self._keep(name, work), name=name)
        self._resources.push_async_callback(_end, task)

    async def _keep(self, name: str, work: Callable[[], Awaitable[None]]) -> None:
        """Run a task that never should end, and run it again where it does."""
        while True:
            try:
                await work()
            except Exception:
                logger.exception("task %s failed and is started again", name, extra={"task": name})
                self.metrics.task_error(name)
            await asyncio.sleep(RESTART_SECONDS)


async def _end(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.wait({task})


def _repository(settings: Settings) -> SqlDecisions:
    database = Database(settings.url, timeout_seconds=settings.database_timeout_seconds)
    return SqlDecisions(database, max_rows=settings.decisions_max_rows)


def _engine(settings: Settings) -> Engine:
    try:
        return engine(settings.engine)
    except NativeError as error:
        raise SettingsError([f"CACHEFLEET_ENGINE: {error}"]) from error


def _log_bounds(settings: Settings) -> LogBounds:
    return LogBounds(
        queue=settings.decisions_queue,
        batch=settings.decisions_batch,
        flush_seconds=settings.decisions_flush_seconds,
        retry_seconds=settings.database_retry_seconds,
    )


def _source(settings: Settings, api: HttpKubeApi | None, metrics: Metrics) -> PoolSource:
    if settings.pool_source == "kubernetes":
        bounds = WatchBounds(
            inactivity_seconds=settings.watch_inactivity_seconds,
            longest_pause_seconds=settings.watch_backoff_seconds,
            page=settings.watch_page,
        )
        return KubePoolSource(_needed(api), metrics=metrics, namespaces=settings.namespaces, bounds=bounds)
    return FilePoolSource(
        _needed(settings.pool_file),
        _needed(settings.endpoints_file),
        metrics=metrics,
        poll_seconds=settings.pool_file_poll_seconds,
    )


def _authority(settings: Settings, api: HttpKubeApi | None, metrics: Metrics) -> Authority:
    if settings.auth == "kubernetes":
        bounds = ReviewBounds(request_seconds=settings.review_timeout_seconds)
        return TokenReviewAuthorizer(_needed(api), metrics=metrics, namespaces=settings.namespaces, bounds=bounds)
    return FileAuthorizer(_needed(settings.reports_token_file), _needed(settings.admin_token_file), metrics=metrics)


def _needed(value: T | None) -> T:
    """What Settings has seen to."""
    if value is None:
        raise ValueError("a setting that this mode needs is missing")
    return value
