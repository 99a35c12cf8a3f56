"""One WebSocket to every control plane: resolved, reconnected, sent all report frames; commands come back."""

from __future__ import annotations

import asyncio
import errno
import logging
import random
from collections.abc import Callable
from enum import Enum, auto
from time import monotonic
from typing import Final, Protocol

import aiohttp

from cachefleet_core.report_frames import (
    MAX_FRAME_BYTES,
    SUBPROTOCOL,
    Drain,
    LoadHead,
    Policy,
    ReadFrame,
    Resync,
    Share,
    Warm,
    decode_down,
)
from cachefleet_runtime.backoff import backoff
from cachefleet_runtime.tls import TrustedAuthorities
from cachefleet_worker.agent.metrics import AgentMetrics
from cachefleet_worker.agent.reports.feed import Feed, Outbox
from cachefleet_worker.agent.reports.targets import Registration, Target, resolve, static_targets
from cachefleet_worker.agent.settings import AgentSettings

log = logging.getLogger(__name__)

_STABLE_SECONDS: Final = 10.0
"""A connection that lasted this long resets the reconnect delay."""
_REFUSED_CODES: Final = frozenset({1002, 1003, 1007, 1008, 1009, 4400, 4401, 4403, 4404, 4409})
"""Close codes after which a reconnect waits for the longest delay: it would be refused again."""
_ABSENT_SECONDS: Final = 1.0
"""The longest delay while nobody listens: asking costs nothing, and one that restarts at its address is told soon."""
_CONNECT_SECONDS: Final = 5.0
_ADMITTED_SECONDS: Final = 0.5
"""A connection still open so long after the first frames were sent counts as admitted."""


class _Ending(Enum):
    """How a connection ended, or why there was none, as far as the next one's delay depends on it."""

    LOST = auto()
    REFUSED = auto()
    ABSENT = auto()


class Commands(Protocol):
    """Commands that control planes send to a worker."""

    def policy(self, policy: Policy) -> None: ...
    def warm(self, warm: Warm) -> None: ...
    def drain(self, drain: Drain) -> None: ...


class Uplink:
    """Keeps one connection task for each target until cancelled. OSError where the authorities cannot be read."""

    def __init__(
        self,
        settings: AgentSettings,
        feed: Feed,
        commands: Commands,
        metrics: AgentMetrics,
        *,
        registration: Registration,
        http: aiohttp.ClientSession,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self._settings = settings
        self._feed = feed
        self._registration = registration
        self._commands = commands
        self._metrics = metrics
        self._http = http
        self._jitter = jitter
        self._trusted = TrustedAuthorities(settings.ca_file)
        self._tasks: dict[Target, asyncio.Task[None]] = {}
        self._trouble: dict[str, str] = {}  # the last error logged by target: each is logged once until it is over
        self.connected = 0
        """Connections open now on which everything held has been sent."""

    async def run(self) -> None:
        """Resolve targets periodically and keep their connections until cancelled."""
        try:
            while True:
                self._follow(await self._targets())
                await asyncio.sleep(self._settings.resolve_seconds)
        finally:
            await self._stop()

    async def _targets(self) -> list[Target]:
        """The replicas known now; those of before where the name does not resolve."""
        targets = static_targets(self._settings.control_planes)
        if self._settings.control_plane_dns:
            tls = self._settings.ca_file is not None
            try:
                targets += await resolve(self._settings.control_plane_dns, tls=tls)
            except OSError as error:
                self._metrics.connects.labels("unresolved").inc()
                self._say("control planes not resolved", self._settings.control_plane_dns, str(error))
                targets += [target for target in self._tasks if target.host]
            else:
                self._trouble.pop(self._settings.control_plane_dns, None)
        return targets[: self._settings.max_control_planes]

    def _follow(self, targets: list[Target]) -> None:
        for gone in self._tasks.keys() - set(targets):
            self._tasks.pop(gone).cancel()
            self._trouble.pop(gone.url, None)
        for target in targets:
            task = self._tasks.get(target)
            if task is None or task.done():
                self._tasks[target] = asyncio.create_task(self._keep(target))

    async def _stop(self) -> None:
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _keep(self, target: Target) -> None:
        attempt = 0
        await self._feed.begun.wait()  # a connection is opened to say something
        while True:
            started = monotonic()
            ending = await self._attempt(target)
            stable = monotonic() - started > _STABLE_SECONDS
            attempt = 1 if stable else attempt + 1
            await asyncio.sleep(self._jitter() * self._pause(ending, attempt))

    def _pause(self, ending: _Ending, attempt: int) -> float:
        first, longest = self._settings.reconnect_base_seconds, self._settings.reconnect_cap_seconds
        if ending is _Ending.REFUSED:
            return longest
        return backoff(
            attempt, first=first, longest=min(longest, _ABSENT_SECONDS) if ending is _Ending.ABSENT else longest
        )

    async def _attempt(self, target: Target) -> _Ending:
        """Run one connection until it ends."""
        try:
            return await self._connect(target)
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
            self._metrics.connects.labels("failed").inc()
            self._say("control plane not reached", target.url, _reason(error))
            return _ending(error)
        except Exception:  # a task's root: it connects again
            self._metrics.crashed("uplink")
            log.exception("connection to control plane failed", extra={"target": target.url})
            return _Ending.LOST

    async def _connect(self, target: Target) -> _Ending:
        async with asyncio.timeout(_CONNECT_SECONDS):
            ws = await self._http.ws_connect(
                target.url,
                protocols=(SUBPROTOCOL,),
                headers=self._headers(),
                ssl=self._trusted.context(),
                server_hostname=target.host if target.url.startswith("wss:") else None,
                heartbeat=self._settings.heartbeat_seconds,
                max_msg_size=MAX_FRAME_BYTES,
            )
        async with ws:
            self._metrics.connects.labels("connected").inc()
            await self._serve(ws, target)
            self._say("control plane disconnected", target.url, f"close code {ws.close_code}")
            return _Ending.REFUSED if ws.close_code in _REFUSED_CODES else _Ending.LOST

    def _headers(self) -> dict[str, str]:
        """Request headers; the token is read for each connection, as it is rotated on disk."""
        path = self._settings.token_file
        return {"Authorization": f"Bearer {path.read_text().strip()}"} if path else {}

    def _say(self, what: str, where: str, error: str) -> None:
        if self._trouble.get(where) != error:
            log.warning(what, extra={"target": where, "error": error})
        self._trouble[where] = error

    async def _serve(self, ws: aiohttp.ClientWebSocketResponse, target: Target) -> None:
        outbox = self._feed.attach(
            max_frames=self._settings.send_queue_frames, max_bytes=self._settings.send_queue_bytes
        )
        sending = asyncio.create_task(self._send(ws, outbox, target))
        receiving = asyncio.create_task(self._receive(ws, outbox))
        try:
            done, _ = await asyncio.wait((sending, receiving), return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            self._feed.detach(outbox)
            for task in (sending, receiving):
                task.cancel()
            await asyncio.gather(sending, receiving, return_exceptions=True)

    async def _send(self, ws: aiohttp.ClientWebSocketResponse, outbox: Outbox, target: Target) -> None:
        admission: asyncio.TimerHandle | None = None
        try:
            while True:
                for frame in await outbox.take():
                    async with asyncio.timeout(self._settings.send_timeout_seconds):
                        await ws.send_bytes(frame)
                if admission is None:
                    admission = asyncio.get_running_loop().call_later(_ADMITTED_SECONDS, self._admitted, target)
                    self._count(1)
        finally:
            if admission is not None:
                admission.cancel()
                self._count(-1)

    def _admitted(self, target: Target) -> None:
        self._registration.registered = True
        self._trouble.pop(target.url, None)
        log.info("control plane connected", extra={"target": target.url})

    def _count(self, change: int) -> None:
        self.connected += change
        self._metrics.connections.set(self.connected)

    async def _receive(self, ws: aiohttp.ClientWebSocketResponse, outbox: Outbox) -> None:
        async for message in ws:
            if message.type is not aiohttp.WSMsgType.BINARY:
                self._metrics.refused_frames.inc()
                continue
            try:
                frame = decode_down(message.data)
            except ValueError as error:  # FrameError, or UnicodeDecodeError for invalid text
                self._metrics.refused_frames.inc()
                log.warning("frame not understood", extra={"error": type(error).__name__})
                continue
            self._obey(frame, message.data, outbox)

    def _obey(self, frame: ReadFrame, data: bytes, outbox: Outbox) -> None:
        match frame:
            case Policy():
                self._commands.policy(frame)
            case Warm():
                self._commands.warm(frame)
            case Drain():
                self._commands.drain(frame)
            case LoadHead():
                self._feed.relay.tell(outbox.passing, data)
            case Share(origin):
                self._feed.relay.join(outbox.passing, origin)
            case Resync():
                self._metrics.resyncs.inc()
                log.info("snapshot asked for", extra={"rank": frame.rank, "reason": frame.reason})
                outbox.resync(frame.rank)


def _ending(error: Exception) -> _Ending:
    if isinstance(error, aiohttp.WSServerHandshakeError) and error.status in (401, 403):
        return _Ending.REFUSED
    is_absent = isinstance(error, aiohttp.ClientConnectorError) and error.os_error.errno == errno.ECONNREFUSED
    return _Ending.ABSENT if is_absent else _Ending.LOST


def _reason(error: Exception) -> str:
    return (
        f"HTTP {error.status}"
        if isinstance(error, aiohttp.WSServerHandshakeError)
        else str(error) or type(error).__name__
    )
