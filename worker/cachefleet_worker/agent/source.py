"""The sockets of one engine rank's event stream: they carry bytes to the follower and do what it says."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic
from typing import Final
from urllib.parse import urlsplit

import zmq
import zmq.asyncio
from zmq.utils.monitor import parse_monitor_message

from .events import BatchError, decode_batch
from .follower import Follower
from .metrics import AgentMetrics
from .residents import Residents
from .signals import (
    Apply,
    Ask,
    Count,
    Effect,
    Forget,
    Input,
    NewEpoch,
    ReplayEnded,
    ReplayFailed,
    Restarted,
    Tick,
    read_live,
    read_reply,
    replay_request,
)

log = logging.getLogger(__name__)

_BURST: Final = 256
"""Messages taken before other tasks have their turn."""
_TICK_SECONDS: Final = 0.25
_WILDCARDS: Final = ("*", "0.0.0.0", "::", "[::]", "")  # noqa: S104 (names that stand for any address)


@dataclass(frozen=True, slots=True)
class Endpoints:
    """Where a rank's events come from. ``bind``: the engine connects to us. ``replay`` is "" where there is none."""

    events: str
    replay: str
    bind: bool = False


def endpoints_for(endpoint: str, replay: str, engine_url: str) -> Endpoints:
    """The sockets to use for an engine that says it publishes at ``endpoint`` and replays at ``replay``.

    vLLM binds wildcards and everything that is not TCP, and connects to the rest; its replay socket always binds.
    """
    bind = endpoint.startswith("tcp://") and "*" not in endpoint and "::" not in endpoint
    host = urlsplit(engine_url).hostname or "127.0.0.1"
    return Endpoints(endpoint if bind else _reachable(endpoint, host), _reachable(replay, host), bind)


def offset(endpoint: str, rank: int) -> str:
    """The endpoint of a rank, given rank 0's."""
    head, separator, port = endpoint.rpartition(":")
    return f"{head}{separator}{int(port) + rank}" if endpoint.startswith("tcp://") and port.isdigit() else endpoint


def _reachable(endpoint: str, host: str) -> str:
    if not endpoint.startswith("tcp://"):
        return endpoint
    address, _, port = endpoint.removeprefix("tcp://").rpartition(":")
    return f"tcp://{host if address in _WILDCARDS else address}:{port}"


@dataclass(frozen=True, slots=True)
class SourceLimits:
    queue: int = 200_000
    max_bytes: int = 64 * 1024 * 1024
    replay_timeout_seconds: float = 5.0


class Source:
    """Follows one rank until cancelled.

    ``changed`` is called when the residents have something new, ``restarted`` when the process behind the stream may
    be another: then this source is of no more use.
    """

    def __init__(
        self,
        rank: int,
        endpoints: Endpoints,
        follower: Follower,
        residents: Residents,
        metrics: AgentMetrics,
        *,
        limits: SourceLimits,
        changed: Callable[[], None],
        restarted: Callable[[str], None],
    ) -> None:
        self._rank = rank
        self._endpoints = endpoints
        self._follower = follower
        self._residents = residents
        self._metrics = metrics
        self._limits = limits
        self._changed = changed
        self._restarted = restarted
        self._context = zmq.asyncio.Context.instance()
        self._live: zmq.asyncio.Socket | None = None
        self._replay: asyncio.Task[None] | None = None
        self._over = False

    async def run(self) -> None:
        with self._context.socket(zmq.SUB) as live:
            self._configure(live)
            live.setsockopt(zmq.RCVHWM, self._limits.queue)
            live.subscribe(b"")
            monitor: zmq.asyncio.Socket = live.get_monitor_socket(zmq.EVENT_DISCONNECTED)
            try:
                await self._open(live)
                self._live = live
                self._do(self._follower.start(monotonic()))
                async with asyncio.TaskGroup() as tasks:
                    tasks.create_task(self._receive(live))
                    tasks.create_task(self._watch(monitor))
                    tasks.create_task(self._tick())
            finally:
                if self._replay is not None:
                    self._replay.cancel()
                live.disable_monitor()
                monitor.close(linger=0)

    async def _open(self, live: zmq.asyncio.Socket) -> None:
        if self._endpoints.bind:
            try:
                live.bind(self._endpoints.events)
            except zmq.ZMQError as error:
                if error.errno != zmq.EADDRINUSE:
                    raise
                log.info("events endpoint is bound already, connecting", extra={"endpoint": self._endpoints.events})
            else:
                return
        live.connect(self._endpoints.events)

    def _configure(self, socket: zmq.asyncio.Socket) -> None:
        socket.linger = 0
        socket.setsockopt(zmq.MAXMSGSIZE, self._limits.max_bytes)
        socket.setsockopt(zmq.RECONNECT_IVL, 100)
        socket.setsockopt(zmq.RECONNECT_IVL_MAX, 1000)

    async def _receive(self, live: zmq.asyncio.Socket) -> None:
        while True:
            await live.poll()
            self._drain(_BURST)
            await asyncio.sleep(0)

    async def _watch(self, monitor: zmq.asyncio.Socket) -> None:
        """A connection over loopback ends only with one of its processes. What it had delivered is taken first."""
        while True:
            parse_monitor_message(await monitor.recv_multipart())
            while self._drain(_BURST):
                pass
            self._step(Restarted("disconnected"))

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(_TICK_SECONDS)
            if self._replay is not None and self._replay.done() and not self._replay.cancelled():
                self._replay.result()  # what broke there ends the source, as it does here
            self._step(Tick())
            self._metrics.held_back.labels(self._rank).set(self._follower.held_back)

    def _drain(self, limit: int) -> bool:
        """Take what has arrived; whether there may be more."""
        if self._live is None:
            return False
        socket: zmq.Socket[bytes] = zmq.Socket.shadow(self._live)
        for _ in range(limit):
            try:
                frames = socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return False
            live = read_live(frames)
            if live is None:
                self._count("malformed_messages")
            else:
                self._step(live)
        return True

    async def _replay_from(self, ask: Ask) -> None:
        try:
            ended = await self._request_replay(ask)
        except zmq.ZMQError as error:
            log.warning("replay socket failed", extra={"rank": self._rank, "error": str(error)})
            ended = False
        if not ended:
            self._step(ReplayFailed(ask.ticket))

    async def _request_replay(self, ask: Ask) -> bool:
        """Hand every answer to the follower; whether the end marker came."""
        with self._context.socket(zmq.DEALER) as socket:
            self._configure(socket)
            socket.setsockopt(zmq.RCVHWM, self._limits.queue)
            socket.connect(self._endpoints.replay)
            await socket.send_multipart(replay_request(ask.start))
            shadow: zmq.Socket[bytes] = zmq.Socket.shadow(socket)
            while await socket.poll(round(self._limits.replay_timeout_seconds * 1000)):
                if self._take_replies(shadow, ask):
                    return True
                await asyncio.sleep(0)
        return False

    def _take_replies(self, socket: zmq.Socket[bytes], ask: Ask) -> bool:
        """Take the answers that have arrived; whether the last was the end marker."""
        for _ in range(_BURST):
            try:
                frames = socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return False
            reply = read_reply(frames, ask.ticket)
            if reply is None:
                self._count("malformed_messages")
                continue
            self._step(reply)
            if isinstance(reply, ReplayEnded):
                return True
        return False

    def _step(self, event: Input) -> None:
        if not self._over:
            self._do(self._follower.step(event, monotonic()))

    def _do(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Apply():
                    self._apply(effect.payload)
                case Ask():
                    self._start_replay(effect)
                case Count():
                    self._count(effect.what)
                case Forget():
                    self._forget(effect)
                case NewEpoch():
                    self._over = True
                    self._restarted(effect.reason)
                    return
        if self._residents.changed:
            self._changed()

    def _apply(self, payload: bytes) -> None:
        try:
            batch = decode_batch(payload)
        except BatchError as error:
            self._count("malformed_batches")
            log.warning(
                "event batch not readable, held blocks forgotten", extra={"rank": self._rank, "error": str(error)}
            )
            self._residents.forget()
            return
        self._residents.apply(batch.events)
        for outcome, count in (("unknown", batch.unknown), ("malformed", batch.malformed)):
            if count:
                self._metrics.events.labels(self._rank, outcome).inc(count)
        for outcome, count in self._residents.counts.items():
            self._metrics.events.labels(self._rank, outcome).inc(count)
        self._residents.counts.clear()

    def _forget(self, effect: Forget) -> None:
        self._count("losses")
        log.warning("event batches lost, held blocks forgotten", extra={"rank": self._rank, "batches": effect.lost})
        self._residents.forget()

    def _start_replay(self, ask: Ask) -> None:
        if self._replay is not None:
            self._replay.cancel()
        self._replay = asyncio.create_task(self._replay_from(ask))

    def _count(self, what: str) -> None:
        self._metrics.stream.labels(self._rank, what).inc()
