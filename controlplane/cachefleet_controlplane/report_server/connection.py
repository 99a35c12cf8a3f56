"""One agent's WebSocket connection, from acceptance to close."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import cachefleet_native
from starlette.types import Message, Receive, Send

from cachefleet_controlplane.fleet.agent_connection import Connection
from cachefleet_controlplane.fleet.agent_connections import MAX_RANKS, RefusedError, UndeclaredRankError
from cachefleet_controlplane.fleet.fleet import Fleet
from cachefleet_controlplane.hot_prefixes.new_worker_warmup import NewWorkerWarmUp
from cachefleet_controlplane.index.frame_ingest import kind, read
from cachefleet_controlplane.internal_auth.authorizer import AccessUnavailableError, Reporter
from cachefleet_controlplane.report_server.peer_log import PeerLog
from cachefleet_controlplane.report_server.report_limits import CLOSE_CODES, ReportLimits, ReportMetrics
from cachefleet_controlplane.report_streams.report_stream import StreamEvent
from cachefleet_core.report_frames import DownFrame, FrameError, Hello, Loads, SharedLoad, State, encode


@dataclass(frozen=True, slots=True)
class ConnectionClose:
    """Why the connection is closed: a code of CLOSE_CODES, and a sentence for the agent's log."""

    code: str
    reason: str


class Outbox:
    """A bounded queue of frames for an agent, and at most one farewell; the Link of a connection."""

    def __init__(self, frames: int) -> None:
        self._queue: asyncio.Queue[bytes] = asyncio.Queue(frames)
        self.farewell: asyncio.Future[ConnectionClose] = asyncio.get_running_loop().create_future()

    def send(self, frame: DownFrame) -> None:
        """Queue a frame; a full queue closes the connection as slow. Never waits.

        A half full one takes no Load, whose next whole one makes up for it.
        """
        if isinstance(frame, SharedLoad) and 2 * self._queue.qsize() >= self._queue.maxsize:
            return
        try:
            self._queue.put_nowait(encode(frame))
        except asyncio.QueueFull:
            self.close("slow", "the agent does not read what it is sent")
        except FrameError as error:
            self.close("internal", str(error))

    def close(self, code: str, reason: str) -> None:
        """Set the farewell; only the first one counts."""
        if not self.farewell.done():
            self.farewell.set_result(ConnectionClose(code, reason))

    async def take(self) -> bytes:
        """The next frame as bytes; waits for one."""
        return await self._queue.get()


logger = logging.getLogger(__name__)

TOO_BIG: Final = 1009
"""Close code with which uvicorn ends a connection whose message exceeds its bound (RFC 6455)."""
_MAX_REASON: Final = 120
"""Bytes; a close frame has room for 123."""
_RESYNCS: Final = frozenset(
    {StreamEvent.GAP, StreamEvent.DIVERGENCE, StreamEvent.BROKEN_SNAPSHOT, StreamEvent.TOO_LARGE, StreamEvent.OVERDUE}
)


@dataclass(frozen=True, slots=True)
class AgentSocket:
    """An agent's accepted WebSocket, its bearer token, and its address for the log."""

    token: str
    address: str
    receive: Receive
    send: Send
    tap: cachefleet_native.ReportTap | None = None
    """Takes Deltas of live streams out of it; None where it did not come through the native server."""


class ReportSession:
    """Reads frames until the agent disconnects, is silent too long, or violates the protocol."""

    def __init__(
        self,
        fleet: Fleet,
        authorize: Callable[[str, Hello], Awaitable[Reporter | None]],
        metrics: ReportMetrics,
        *,
        agent: AgentSocket,
        limits: ReportLimits,
        log: PeerLog,
        new_workers: NewWorkerWarmUp | None = None,
    ) -> None:
        self._agent = agent
        self._log = log
        self._new_workers = new_workers
        self._fleet = fleet
        self._authorize = authorize
        self._metrics = metrics
        self._limits = limits
        self._outbox = Outbox(limits.outbox_frames)
        self._who = ""
        self._reporter = Reporter()
        self._left_out: set[int] = set()
        """Ranks of which nothing is taken, because the pool does not declare them."""
        self._connection: Connection | None = None
        self._heard_at = 0.0
        """When the last frame came, on the event loop's clock."""

    async def run(self) -> None:
        """Serve the connection to its end; sends the farewell, if there is one."""
        reading = asyncio.create_task(self._read())
        writing = asyncio.create_task(self._write())
        ends: set[asyncio.Future[Any]] = {reading, writing, self._outbox.farewell}
        try:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (reading, writing):
                task.cancel()
            await asyncio.gather(reading, writing, return_exceptions=True)
        if self._outbox.farewell.done():
            await self._say(self._outbox.farewell.result())

    async def _say(self, farewell: ConnectionClose) -> None:
        self._metrics.report_rejected(farewell.code)
        extra = {"worker": self._who, "code": farewell.code, "reason": farewell.reason}
        if (omitted := self._log.omitted(self._agent.address, farewell.code)) is not None:
            logger.warning("agent's connection closed", extra=extra | {"omitted": omitted})
        reason = farewell.reason.encode()[:_MAX_REASON].decode(errors="ignore")
        try:
            await self._agent.send({"type": "websocket.close", "code": CLOSE_CODES[farewell.code], "reason": reason})
        except (RuntimeError, OSError):
            logger.debug("agent was gone before it could be told", extra=extra)

    async def _write(self) -> None:
        while True:
            frame = await self._outbox.take()
            try:
                await self._agent.send({"type": "websocket.send", "bytes": frame})
            except (RuntimeError, OSError):
                return  # the connection is gone; the reader ends as well

    def take_states(self) -> None:
        """Deal with the States that native code has kept; one that is wrong ends the connection."""
        if self._connection is not None:
            with self._farewell():
                self._take_kept(self._connection)

    async def _read(self) -> None:
        """Every end of this sets a farewell, except that the agent has disconnected."""
        with self._farewell():
            try:
                first = await self._first()
                if first is not None:
                    self._connection = self._fleet.connect(self._outbox, pod=self._reporter.pod, tap=self._agent.tap)
                    await self._follow(self._connection, first)
            finally:
                if self._connection is not None:
                    self._fleet.disconnect(self._connection)
                    self._count_taken()
                    self._connection = None

    @contextmanager
    def _farewell(self) -> Iterator[None]:
        """Close the connection with the code of what fails within."""
        try:
            yield
        except RefusedError as error:
            self._outbox.close(error.code, str(error))
        except FrameError as error:
            self._metrics.malformed("frame")
            self._outbox.close("malformed", str(error))
        except TimeoutError:
            self._outbox.close("silent", "nothing was heard for too long")
        except Exception:  # a task's root: the agent connects again
            self._metrics.task_error("reports")
            logger.exception("agent's connection failed", extra={"worker": self._who})
            self._outbox.close("internal", "internal error")

    async def _first(self) -> Hello | None:
        """The Hello that opens the connection, authorized; None where the agent has disconnected."""
        async with asyncio.timeout(self._limits.hello_seconds):
            data = await self._frame(self._limits.first_frame_bytes)
        if data is None:
            return None
        hello = read(data)
        if not isinstance(hello, Hello):
            raise RefusedError("unannounced", "the first frame must be a hello")
        await self._allow(hello)
        await self._informed()
        self._metrics.frame("hello", len(data))
        return hello

    async def _allow(self, hello: Hello) -> None:
        try:
            async with asyncio.timeout(self._limits.authorize_seconds):
                reporter = await self._authorize(self._agent.token, hello)
        except (AccessUnavailableError, TimeoutError):
            raise RefusedError("not_ready", "nobody could say whose token this is") from None
        if reporter is None:
            raise RefusedError("forbidden", "the token is not this worker's, or its pod is not of the pool")
        self._reporter = reporter
        self._who = f"{hello.pool}/{hello.worker}"

    async def _informed(self) -> None:
        """Wait until this control plane knows its pools, which one that just started does not."""
        try:
            async with asyncio.timeout(self._limits.hello_seconds):
                await self._fleet.informed.wait()
        except TimeoutError:
            raise RefusedError("not_ready", "this control plane does not know its pools yet") from None

    async def _follow(self, connection: Connection, first: Hello) -> None:
        self._count(self._hello(connection, first))
        self._announced(connection, first)
        self._processed()
        while True:
            data = await self._next()
            if data is None:
                if _is_listed(connection):
                    logger.info("agent disconnected", extra={"worker": self._who})
                return
            self._take_kept(connection)
            self._take(connection, data)
            self._processed()
            await asyncio.sleep(0)

    async def _next(self) -> bytes | None:
        """The next frame that native code does not take; TimeoutError where nothing at all is heard for too long."""
        loop = asyncio.get_running_loop()
        self._heard_at = loop.time()
        while True:
            until = self._heard_at + self._limits.idle_seconds
            try:
                async with asyncio.timeout_at(until):
                    return await self._frame(self._limits.frame_bytes)
            except TimeoutError:
                if self._heard_at + self._limits.idle_seconds <= loop.time():
                    raise

    def _take_kept(self, connection: Connection) -> None:
        """Deal with the States that native code has kept, all of which came before what is still to be read."""
        if self._agent.tap is None:
            return
        for data, place in self._agent.tap.states():
            self._take(connection, data, place)
            self._heard_at = asyncio.get_running_loop().time()
        self._count_taken()

    def _announced(self, connection: Connection, first: Hello) -> None:
        extra = {"worker": self._who, "epoch": first.epoch}
        if _is_listed(connection):
            logger.info("agent connected", extra=extra)
        elif (omitted := self._log.omitted(self._agent.address, "unlisted")) is not None:
            logger.info("agent connected whose worker no pool lists", extra=extra | {"omitted": omitted})

    def _take(self, connection: Connection, data: bytes, place: tuple[int, int] | None = None) -> None:
        frame = read(data)
        events: list[StreamEvent] = []
        if isinstance(frame, Hello):
            events = self._hello(connection, frame)
        elif isinstance(frame, Loads):
            self._fleet.hear(connection, frame)
        elif frame.rank in self._left_out:
            return
        else:
            events = self._fleet.receive(connection, frame, place)
            if isinstance(frame, State):
                self._warm(connection, frame)
        self._metrics.frame(kind(frame), len(data))
        self._count(events)

    def _processed(self) -> None:
        """A message is dealt with: native code may take what comes next."""
        if self._agent.tap is not None:
            self._agent.tap.processed()
            self._count_taken()

    def _count_taken(self) -> None:
        """Count the Deltas that native code has taken out of the connection."""
        if self._agent.tap is not None and (taken := self._agent.tap.taken())[0]:
            self._metrics.frame("delta", taken[1], frames=taken[0])

    def _hello(self, connection: Connection, hello: Hello) -> list[StreamEvent]:
        try:
            events = self._fleet.hello(connection, hello)
        except UndeclaredRankError as error:
            self._leave_out(hello.rank, str(error))
            return []
        self._left_out.discard(hello.rank)
        return events

    def _leave_out(self, rank: int, why: str) -> None:
        if rank in self._left_out:
            return
        if len(self._left_out) >= MAX_RANKS:
            raise RefusedError("busy", f"more than {MAX_RANKS} ranks on one connection that its pool does not declare")
        self._left_out.add(rank)
        self._metrics.report_rejected("undeclared")
        if (omitted := self._log.omitted(self._agent.address, "undeclared")) is not None:
            logger.warning("a rank's reports are left out: %s", why, extra={"worker": self._who, "omitted": omitted})

    def _warm(self, connection: Connection, state: State) -> None:
        """All ranks of a worker share one engine, which is told once."""
        hello = connection.ranks[state.rank].hello
        if self._new_workers is None or hello is None or state.rank != min(connection.ranks):
            return
        if (warm := self._new_workers.reported(hello, state)) is not None:
            self._outbox.send(warm)

    async def _frame(self, limit: int) -> bytes | None:
        message: Message = await self._agent.receive()
        if message["type"] != "websocket.receive":
            if message.get("code") == TOO_BIG:
                raise FrameError("frame is too large for the connection")
            return None
        data = message.get("bytes")
        if data is None:
            raise FrameError("frames are binary")
        if len(data) > limit:
            raise FrameError(f"frame is {len(data)} bytes, the limit is {limit}")
        return bytes(data)

    def _count(self, events: list[StreamEvent]) -> None:
        for note in events:
            if note is StreamEvent.EPOCH:
                self._metrics.epoch()
            elif note is StreamEvent.DIVERGENCE:
                self._metrics.divergence()
            if note in _RESYNCS:
                self._metrics.resync(note.value)


def _is_listed(connection: Connection) -> bool:
    """Whether the pool source lists the worker of a connection."""
    return any(worker.endpoint is not None for worker in connection.ranks.values())
