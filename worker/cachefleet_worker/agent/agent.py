"""The agent: waits for the engine, reports each of its epochs, serves HTTP, drains."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable
from dataclasses import replace
from time import monotonic

import aiohttp
from aiohttp import web

from cachefleet_core.native import native_code
from cachefleet_core.report_frames import Drain, Phase
from cachefleet_runtime.tasks import restarting
from cachefleet_runtime.tls import server_context
from cachefleet_worker.agent.duties.draining import DrainRoute
from cachefleet_worker.agent.duties.policy_delivery import PolicyFile, read_policy
from cachefleet_worker.agent.engine_arrival import EngineArrival
from cachefleet_worker.agent.engine_session import Session
from cachefleet_worker.agent.engines.engine import Engine, EngineProcess
from cachefleet_worker.agent.engines.engine_errors import EngineError
from cachefleet_worker.agent.engines.engine_facts import EngineFacts
from cachefleet_worker.agent.metrics import AgentMetrics
from cachefleet_worker.agent.reports.feed import Feed
from cachefleet_worker.agent.reports.flush_timer import FlushTimer
from cachefleet_worker.agent.reports.targets import Registration
from cachefleet_worker.agent.reports.uplink import Uplink
from cachefleet_worker.agent.server import agent_app
from cachefleet_worker.agent.settings import AgentSettings
from cachefleet_worker.agent.worker_controller import WorkerController

log = logging.getLogger(__name__)


def new_epoch() -> str:
    """A random epoch name of 32 hex digits."""
    return secrets.token_hex(16)


class _Drained(Exception):  # noqa: N818 - not an error
    """Ends the agent: a drain that a control plane asked for is done."""


class Agent:
    """The worker agent. NativeError where the native module cannot be used.

    ``run`` serves until cancelled, or until a drain that a control plane asked for is done; in an exception group it
    raises KeyRefusedError where the engine does not take the worker key.
    """

    def __init__(
        self,
        settings: AgentSettings,
        engine: Engine,
        metrics: AgentMetrics,
        http: aiohttp.ClientSession,
        *,
        clock: Callable[[], float] = monotonic,
        epoch: Callable[[], str] = new_epoch,
    ) -> None:
        self._settings = settings
        self._index_key = settings.index_key()
        self._native = native_code().reason
        self._new_epoch = epoch
        self._session: Session | None = None
        self._lookahead: tuple[str | None, int] = (None, 0)
        self.metrics = metrics
        self._serving = server_context(settings.tls_folder) if settings.tls_folder else None
        self.feed = Feed(self.metrics)
        self._flushes = FlushTimer(self._flush, delta_seconds=settings.delta_seconds, removed=self.feed.removed)
        self.registration = Registration(wanted=bool(settings.control_planes or settings.control_plane_dns))
        self._arrival = EngineArrival(engine, poll_seconds=settings.poll_seconds, key_refusals=settings.key_refusals)
        self.controller = self._make_controller(engine, clock)
        self.uplink = Uplink(
            settings, self.feed, self.controller, self.metrics, registration=self.registration, http=http
        )
        if settings.policy_file:
            self.controller.policy(read_policy(settings.policy_file))
        self._drain_route = DrainRoute(
            settings.drain_path, self.controller, self._idle, seconds=settings.drain_seconds, clock=clock
        )
        self.http_port = settings.http_port
        """Port served; chosen by the system where the settings say 0."""

    def _make_controller(self, engine: Engine, clock: Callable[[], float]) -> WorkerController:
        return WorkerController(
            self._settings,
            engine,
            self.metrics,
            changed=self.feed.publish_state,
            registration=self.registration,
            clock=clock,
            key_refused=lambda: self._arrival.key_refused,
        )

    @property
    def epoch(self) -> str | None:
        """Name of the present epoch; None while there is no engine."""
        return self._session.epoch if self._session else None

    @property
    def phase(self) -> Phase:
        """The worker's phase, as its States report it."""
        return self.controller.phase

    @property
    def unready(self) -> list[str]:
        """Reasons against readiness; empty where the worker should take traffic."""
        return self.controller.unready

    def drain(self, drain: Drain) -> None:
        """Begin a drain: no new work, running requests finish."""
        self.controller.drain(drain)

    async def drained(self) -> None:
        """Wait until the engine is gone or idle for the settle time, or the drain's time is over."""
        while not self.controller.drained():
            await self.controller.drain_begun.wait()
            await asyncio.sleep(0.05)  # time alone may end it

    async def _idle(self) -> None:
        """As ``drained``; also returns where an engine restart cancels the drain."""
        while self.controller.draining.until is not None and not self.controller.drained():  # noqa: ASYNC110 (as above)
            await asyncio.sleep(0.05)

    async def run(self) -> None:
        """Serve HTTP and report until cancelled or drained. OSError where the port cannot be bound."""
        log.info("block keys by %s", self._native)
        runner = web.AppRunner(self._app(), access_log=None, shutdown_timeout=1.0, handler_cancellation=True)
        await runner.setup()
        try:
            host, port = self._settings.http_host, self._settings.http_port
            every = None if host == "::" else host  # of "::" asyncio takes IPv6 alone
            site = web.TCPSite(runner, every, port, ssl_context=self._serving)
            await site.start()
            self.http_port = int(runner.addresses[0][1])
            await self._work()
        finally:
            await runner.cleanup()

    def _app(self) -> web.Application:
        controller = self.controller
        return agent_app(
            self.metrics,
            lambda: (controller.phase, controller.unready, controller.note),
            (self._drain_route,),
        )

    async def _work(self) -> None:
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self.uplink.run())
                tasks.create_task(self._arrival.watch())
                pause, failed = self._settings.poll_seconds, self.metrics.crashed
                tasks.create_task(restarting("session", self._epochs, pause_seconds=pause, failed=failed))
                tasks.create_task(self._tick())
                if self._settings.policy_file:
                    tasks.create_task(self.controller.watch(PolicyFile(self._settings.policy_file)))
                if self._settings.after_drain == "exit":
                    tasks.create_task(self._end_when_drained())
        except* _Drained:
            log.info("drained")

    async def _end_when_drained(self) -> None:
        await self.drained()
        await asyncio.sleep(self._settings.delta_seconds)  # time for the last State to be sent
        if not self._drain_route.asked:
            raise _Drained

    async def _epochs(self) -> None:
        while True:
            process = await self._arrival.process()
            try:
                await self._live_through(process, self._with_lookahead(process.facts))
            except EngineError as error:
                log.warning("engine not usable", extra={"error": str(error)})
                await asyncio.sleep(self._settings.poll_seconds)

    def _with_lookahead(self, facts: EngineFacts) -> EngineFacts:
        """Facts with the lookahead that events showed, where the engine does not report it."""
        process, lookahead = self._lookahead
        return replace(facts, lookahead=lookahead) if process == facts.process else facts

    async def _live_through(self, process: EngineProcess, facts: EngineFacts) -> None:
        """Run one epoch, from the engine's facts to its end."""
        session = Session(
            self._settings,
            process,
            facts,
            self.metrics,
            index_key=self._index_key,
            epoch=facts.boot or self._new_epoch(),
            changed=self._flushes.changed,
            polled=self._polled,
        )
        reason = "failed"
        try:
            async with self.controller.epoch(session, facts):
                self._begin(session, facts)
                reason = await session.run()
        except asyncio.CancelledError:
            reason = "stopped"
            raise
        finally:
            if session.other_lookahead is not None:
                self._lookahead = facts.process, session.other_lookahead
            self._finish(session, reason)

    def _begin(self, session: Session, facts: EngineFacts) -> None:
        self._session = session
        self.feed.begin(session.streams, self.controller.worker_state)
        log.info(
            "epoch begins",
            extra={
                "epoch": session.epoch,
                "engine_version": facts.version,
                "plugin": facts.plugin,
                "ranks": len(session.streams),
            },
        )

    def _finish(self, session: Session, reason: str) -> None:
        """Drop the session and publish a State; its blocks are withdrawn by then."""
        self._session = None
        self.metrics.epochs.labels(reason).inc()
        self.feed.publish_state()
        log.info("epoch ends", extra={"epoch": session.epoch, "reason": reason})

    def _polled(self) -> None:
        self._flushes.flush_now()  # a State tells of all changes before it
        self.controller.polled()
        self.feed.publish_state()

    def _flush(self) -> None:
        self.feed.flush()
        self.controller.look_for_clears()

    async def _tick(self) -> None:
        """Publish States also while there is no engine to poll."""
        while True:
            await asyncio.sleep(self._settings.poll_seconds)
            if self._session is None:
                self.feed.publish_state()
