"""The sockets of one engine rank's event stream: feeds the follower and carries out its effects."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic
from typing import Final

import zmq
import zmq.asyncio
from zmq.utils.monitor import parse_monitor_message

from cachefleet_worker.agent.blocks.resident_blocks import Residents
from cachefleet_worker.agent.engines.vllm.endpoints import Endpoints
from cachefleet_worker.agent.engines.vllm.events.event_reader import EventReader
from cachefleet_worker.agent.engines.vllm.events.follower import Follower
from cachefleet_worker.agent.engines.vllm.events.messages import (
    Apply,
    Count,
    Effect,
    Forget,
    Input,
    Marked,
    NewEpoch,
    PeekMark,
    ReplayFailed,
    RequestReplay,
    RequestSnapshot,
    Restarted,
    Restore,
    Seq,
    Snapped,
    SnapshotFailed,
    Tick,
    UnreadableBatch,
    read_live,
)
from cachefleet_worker.agent.engines.vllm.events.replay_client import BURST, ReplayClient, configure
from cachefleet_worker.agent.engines.vllm.events.snapshot_client import SnapshotError, Snapshots
from cachefleet_worker.agent.metrics import AgentMetrics

log = logging.getLogger(__name__)

_TICK_SECONDS: Final = 0.25


@dataclass(frozen=True, slots=True)
class SourceLimits:
    """Bounds of a source's sockets: messages queued, bytes of one message, seconds per reply."""

    queue: int = 200_000
    max_bytes: int = 64 * 1024 * 1024
    replay_timeout_seconds: float = 5.0


class Source:
    """Follows one rank until cancelled. ``snapshots`` is None where the follower takes none.

    ``changed`` is called when the held blocks have changed, ``restarted`` when another process may be behind the
    stream: after that the source does nothing more.
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
        snapshots: Snapshots | None = None,
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
        self._snapshots = snapshots
        self._replays = ReplayClient(
            endpoints.replay,
            max_bytes=limits.max_bytes,
            queue=limits.queue,
            timeout_seconds=limits.replay_timeout_seconds,
            take=self._step,
            malformed=lambda: self._count("malformed_messages"),
        )
        self._event_reader = EventReader(residents, snapshots=snapshots is not None)
        self._request: asyncio.Task[None] | None = None  # the last replay or snapshot request
        self._over = False

    async def run(self) -> None:
        """Follow the stream until cancelled. ZMQError where a socket cannot be opened."""
        with self._context.socket(zmq.SUB) as live:
            configure(live, max_bytes=self._limits.max_bytes, queue=self._limits.queue)
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
                if self._request is not None:
                    self._request.cancel()
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

    async def _receive(self, live: zmq.asyncio.Socket) -> None:
        while True:
            await live.poll()
            self._drain(BURST)
            await asyncio.sleep(0)

    async def _watch(self, monitor: zmq.asyncio.Socket) -> None:
        """Report disconnections, which over loopback mean that a process ended; what had arrived is taken first."""
        while True:
            parse_monitor_message(await monitor.recv_multipart())
            while self._drain(BURST):
                pass
            self._step(Restarted("disconnected"))

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(_TICK_SECONDS)
            if self._request is not None and self._request.done() and not self._request.cancelled():
                self._request.result()  # its failure ends the source
            self._step(Tick())
            self._metrics.held_back.labels(self._rank).set(self._follower.held_back)

    def _drain(self, limit: int) -> bool:
        """Take what has arrived, at most ``limit`` messages; returns whether there may be more."""
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

    async def _replay_from(self, ask: RequestReplay) -> None:
        try:
            ended = await self._replays.request(ask)
        except zmq.ZMQError as error:
            log.warning("replay socket failed", extra={"rank": self._rank, "error": str(error)})
            ended = False
        if not ended:
            self._step(ReplayFailed(ask.ticket))

    def _step(self, event: Input) -> None:
        if not self._over:
            self._do(self._follower.step(event, monotonic()))

    async def _fetch(self, ask: RequestSnapshot, snapshots: Snapshots) -> None:
        draft = self._residents.draft()
        try:
            head = await snapshots.fetch(self._rank, draft)
        except SnapshotError as error:
            log.warning("no snapshot of the engine", extra={"rank": self._rank, "error": str(error)})
            self._step(SnapshotFailed(ask.ticket))
            return
        self._event_reader.lay_ready(draft)
        self._step(Snapped(ask.ticket, Seq(head.sequence), head.boot))

    def _do(self, effects: list[Effect]) -> None:
        for effect in effects:
            if self._over:
                return
            self._do_one(effect)
        if self._residents.changed and not self._over:
            self._changed()

    def _do_one(self, effect: Effect) -> None:
        match effect:
            case Apply():
                self._pass_on(self._event_reader.apply(effect.payload))
                self._count_events()
            case PeekMark():
                self._pass_on(self._event_reader.peek(effect.payload))
            case Count():
                self._count(effect.what)
            case Forget():
                self._forget(effect)
            case Restore():
                self._event_reader.restore()
                self._count_events()
                log.info("held blocks are the engine's snapshot", extra={"rank": self._rank, "sequence": effect.seq})
            case NewEpoch():
                self._over = True
                self._restarted(effect.reason)
            case RequestReplay() | RequestSnapshot():
                self._start(effect)

    def _pass_on(self, item: Marked | UnreadableBatch | None) -> None:
        """Pass what a batch held besides events to the follower."""
        if isinstance(item, UnreadableBatch):
            self._count("malformed_batches")
            log.warning("event batch not readable", extra={"rank": self._rank})
        if item is not None:
            self._step(item)

    def _count_events(self) -> None:
        for outcome, count in self._event_reader.counts().items():
            self._metrics.events.labels(self._rank, outcome).inc(count)

    def _forget(self, effect: Forget) -> None:
        if effect.lost:
            self._count("losses")
        log.warning("held blocks forgotten", extra={"rank": self._rank, "batches_lost": effect.lost})
        self._event_reader.forget()

    def _start(self, ask: RequestReplay | RequestSnapshot) -> None:
        """Start a request; an earlier one is cancelled."""
        if self._request is not None:
            self._request.cancel()
        if isinstance(ask, RequestReplay):
            self._request = asyncio.create_task(self._replay_from(ask))
        elif self._snapshots is not None:
            self._request = asyncio.create_task(self._fetch(ask, self._snapshots))

    def _count(self, what: str) -> None:
        self._metrics.stream.labels(self._rank, what).inc()
