"""An agent from its start to its end: waits for the engine, reports it epoch by epoch, serves its own HTTP, drains."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from time import monotonic

import aiohttp
from aiohttp import web

from cachefleet_core.reports import Drain, Phase, Policy, Warm

from .engine import EngineClient, EngineError, EngineFacts
from .feed import Feed
from .metrics import AgentMetrics
from .phases import Condition, phase, unready
from .policy import read_policy, supersedes
from .server import agent_app
from .session import Session
from .settings import AgentSettings
from .stream import Standing
from .uplink import Uplink
from .vitals import Load
from .warmth import Warmer

log = logging.getLogger(__name__)


def new_epoch() -> str:
    """A name that no other epoch has."""
    return secrets.token_hex(16)


def boot_of(facts: EngineFacts) -> str:
    """The name that the engine itself gives this life of it; "" where it has none."""
    first = facts.fleet.ranks.get(0) if facts.fleet else None
    return first.boot if first else ""


class Agent:
    """The worker agent. ``run`` serves until cancelled; ``drain`` makes it finish by itself."""

    def __init__(
        self,
        settings: AgentSettings,
        http: aiohttp.ClientSession,
        *,
        clock: Callable[[], float] = monotonic,
        epoch: Callable[[], str] = new_epoch,
    ) -> None:
        self._settings = settings
        self._index_key = settings.index_key()
        self._clock = clock
        self._new_epoch = epoch
        self._started = clock()
        self._lost_at: float | None = None
        self._session: Session | None = None
        self._flushing: asyncio.TimerHandle | None = None
        self._draining_until: float | None = None
        self._policy = read_policy(settings.policy_file) if settings.policy_file else None
        self.metrics = AgentMetrics()
        self._client = EngineClient(
            http, settings.engine_url, key=settings.worker_key(), timeout_seconds=settings.engine_timeout_seconds
        )
        self.feed = Feed(self.metrics, self._standing)
        self._warmer = Warmer(
            self._client,
            self.metrics,
            limit=settings.warm_queue,
            timeout_seconds=settings.warm_timeout_seconds,
            changed=self.feed.publish_state,
        )
        self.uplink = Uplink(settings, self.feed, self, self.metrics, http=http)
        self.http_port = settings.http_port
        """The port served; the one the system chose where the settings say 0."""

    # What it is

    @property
    def epoch(self) -> str | None:
        return self._session.epoch if self._session else None

    @property
    def phase(self) -> Phase:
        return phase(self._condition(), failed_seconds=self._settings.failed_seconds)

    @property
    def unready(self) -> list[str]:
        """Why the worker should take no traffic; empty where it should."""
        return unready(self._condition(), registration_seconds=self._settings.registration_seconds)

    def _condition(self) -> Condition:
        now = self._clock()
        return Condition(
            known=self._session is not None,
            answering=self._session is not None and self._session.answering,
            draining=self._draining_until is not None,
            registered=self.uplink.registered or not self.uplink.wanted,
            waited_for=now - self._started,
            lost_for=None if self._lost_at is None else now - self._lost_at,
        )

    def _standing(self, rank: int) -> Standing:
        return Standing(
            phase=self.phase,
            load=self._session.load(rank) if self._session else Load(),
            generation=self._policy.generation if self._policy else 0,
            warmth=self._warmer.warmth,
        )

    # What control planes ask

    def policy(self, policy: Policy) -> None:
        if not supersedes(policy, self._policy, self._settings.pool):
            return
        if self._policy != policy:
            log.info("policy applied", extra={"pool": policy.pool, "generation": policy.generation})
        self._policy = policy
        self.feed.publish_state()

    def warm(self, warm: Warm) -> None:
        self._warmer.add(warm.prefixes)
        self.feed.publish_state()

    def drain(self, drain: Drain) -> None:
        """Take no new work; ``run`` goes on, so that what runs can end."""
        if self._draining_until is None:
            log.info("draining", extra={"seconds": drain.seconds})
        self._draining_until = self._clock() + drain.seconds
        self.feed.publish_state()

    async def drained(self) -> None:
        """Wait until the engine is idle or gone, or the time to drain is over."""
        while self._draining_until is None or self._clock() < self._draining_until:
            if self._draining_until is not None and (self._session is None or self._session.idle):
                return
            await asyncio.sleep(0.05)

    # What it does

    async def run(self) -> None:
        runner = web.AppRunner(
            agent_app(self.metrics, lambda: (self.phase, self.unready)), access_log=None, shutdown_timeout=1.0
        )
        await runner.setup()
        try:
            site = web.TCPSite(runner, self._settings.http_host, self._settings.http_port)
            await site.start()
            self.http_port = int(runner.addresses[0][1])
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self.uplink.run())
                tasks.create_task(self._epochs())
                tasks.create_task(self._tick())
        finally:
            await runner.cleanup()

    async def _epochs(self) -> None:
        while True:
            facts = await self._await_engine()
            try:
                await self._live_through(facts)
            except EngineError as error:
                log.warning("engine not usable", extra={"error": str(error)})
                await asyncio.sleep(self._settings.poll_seconds)
            except Exception:
                self.metrics.crashes.labels("session").inc()
                log.exception("session failed")
                await asyncio.sleep(self._settings.poll_seconds)

    async def _await_engine(self) -> EngineFacts:
        last = ""
        while True:
            try:
                return await self._client.facts()
            except EngineError as error:
                if str(error) != last:
                    log.info("waiting for the engine", extra={"error": str(error)})
                last = str(error)
            await asyncio.sleep(self._settings.poll_seconds)

    async def _live_through(self, facts: EngineFacts) -> None:
        """One epoch, from the engine's facts to its end."""
        session = Session(
            self._settings,
            facts,
            self._client,
            self.metrics,
            index_key=self._index_key,
            epoch=boot_of(facts) or self._new_epoch(),
            changed=self._flush_soon,
            polled=self.feed.publish_state,
        )
        self._begin(session, facts)
        warming = asyncio.create_task(self._warmer.run(session.model))
        reason = "failed"
        try:
            reason = await session.run()
        except asyncio.CancelledError:
            reason = "stopped"
            raise
        finally:
            warming.cancel()
            await asyncio.gather(warming, return_exceptions=True)
            self._finish(session, reason)

    def _begin(self, session: Session, facts: EngineFacts) -> None:
        self._session, self._lost_at = session, None
        self._warmer.reset()
        self.feed.begin(session.streams)
        log.info(
            "epoch begins",
            extra={"epoch": session.epoch, "engine_version": facts.version, "ranks": len(session.streams)},
        )

    def _finish(self, session: Session, reason: str) -> None:
        """Its blocks are withdrawn at once; the next epoch says what there is."""
        session.forget()
        self._session, self._lost_at = None, self._clock()
        self.metrics.epochs.labels(reason).inc()
        self.feed.publish_state()
        log.info("epoch ends", extra={"epoch": session.epoch, "reason": reason})

    def _flush_soon(self) -> None:
        if self._flushing is None:
            self._flushing = asyncio.get_running_loop().call_later(self._settings.delta_seconds, self._flush)

    def _flush(self) -> None:
        self._flushing = None
        self.feed.flush()

    async def _tick(self) -> None:
        """States go out while there is no engine to poll, too."""
        while True:
            await asyncio.sleep(self._settings.poll_seconds)
            if self._session is None:
                self.feed.publish_state()


@asynccontextmanager
async def running(settings: AgentSettings) -> AsyncIterator[Agent]:
    """An agent at work in this process; stopped at the end. Errors of the agent are raised there."""
    async with aiohttp.ClientSession(trust_env=False) as http:
        agent = Agent(settings, http)
        task = asyncio.create_task(agent.run())
        try:
            yield agent
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
