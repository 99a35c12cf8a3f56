"""The ZMQ side of vLLM's KV events: a PUB socket and a ROUTER that replays from a bounded buffer.

Three frames a message: topic, sequence as a big-endian u64, payload. The sequence starts at 0 with each publisher. A
replay request is ``[b"", start]`` from a DEALER; the answers are ``[b"", topic, sequence, payload]`` and, last,
``[b"", b"", -1, b""]``.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Sequence
from typing import Final

import zmq

from tests.fakes.kv_events import Encoding, Event
from tests.fakes.loop_clock import clock

END: Final = (-1).to_bytes(8, "big", signed=True)
HIGH_WATER: Final = 100_000
_BIND_ATTEMPTS: Final = 100
_BIND_PAUSE: Final = 0.02


class Publisher:
    """Publishes from the event loop it is opened in; sends never block (a PUB drops for a slow subscriber).

    ``drop(n)`` keeps the next n batches off the wire (they still advance the sequence and can be replayed, unless
    ``lose``); ``delay`` holds each batch back by so many seconds, in order.
    """

    def __init__(self, encoding: Encoding, *, topic: str = "", rank: int = 0, buffer_steps: int = 10_000) -> None:
        self.delay = 0.0
        self.sequence = 0
        self._encoding = encoding
        self._topic = topic.encode()
        self._rank = rank
        self._buffer: deque[tuple[int, bytes]] = deque(maxlen=buffer_steps)
        self._dropping = 0
        self._losing = False
        self._late: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()
        self._pub: zmq.Socket[bytes] | None = None
        self._router: zmq.Socket[bytes] | None = None
        self._task: asyncio.Task[None] | None = None
        self._held = False

    async def open(self, endpoint: str, replay_endpoint: str) -> None:
        """Bind both sockets. zmq.ZMQError where an address stays taken."""
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context.instance()
        self._pub = context.socket(zmq.PUB)
        self._pub.set_hwm(HIGH_WATER)
        await _bind(self._pub, endpoint)
        self._router = context.socket(zmq.ROUTER)
        await _bind(self._router, replay_endpoint)
        asyncio.get_running_loop().add_reader(self._router.fileno(), self._serve_replay)
        self._task = asyncio.create_task(self._publish_late())

    async def close(self) -> None:
        """Close at once; what was not sent is lost."""
        if self._router is not None:
            asyncio.get_running_loop().remove_reader(self._router.fileno())
            self._router.close(linger=0)
        if self._pub is not None:
            self._pub.close(linger=0)
        self._pub = self._router = None
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    def publish(self, events: Sequence[Event]) -> None:
        payload = self._encoding.batch(time.time(), events, self._rank)
        if self.delay > 0 or not self._late.empty():
            self._late.put_nowait((clock() + self.delay, payload))
        else:
            self._send(payload)

    def drop(self, count: int, *, lose: bool = False) -> None:
        self._dropping, self._losing = count, lose

    def hold(self) -> None:
        """Leave replay requests unanswered (a process that hangs)."""
        self._held = True

    def unhold(self) -> None:
        self._held = False
        self._serve_replay()

    def _send(self, payload: bytes) -> None:
        sequence, self.sequence = self.sequence, self.sequence + 1
        dropped = self._dropping > 0
        self._dropping -= dropped
        if not (dropped and self._losing):
            self._buffer.append((sequence, payload))
        if not dropped and self._pub is not None:
            self._pub.send_multipart((self._topic, sequence.to_bytes(8, "big"), payload))

    async def _publish_late(self) -> None:
        while True:
            due, payload = await self._late.get()
            await asyncio.sleep(max(0.0, due - clock()))
            self._send(payload)

    def _serve_replay(self) -> None:
        """Answer all waiting requests; the descriptor is edge-triggered, so look again after each answer."""
        while not self._held and self._router is not None and int(self._router.getsockopt(zmq.EVENTS)) & zmq.POLLIN:
            frames = self._router.recv_multipart()
            if len(frames) == 3:
                self._replay(frames[0], int.from_bytes(frames[2], "big"))

    def _replay(self, client: bytes, start: int) -> None:
        assert self._router is not None
        for sequence, payload in self._buffer:
            if sequence >= start:
                self._router.send_multipart((client, b"", self._topic, sequence.to_bytes(8, "big"), payload))
        self._router.send_multipart((client, b"", b"", END, b""))


async def _bind(socket: zmq.Socket[bytes], endpoint: str) -> None:
    """Bind; a socket closed just before, by a crash, may need a moment to let go of its address."""
    for _ in range(_BIND_ATTEMPTS):
        try:
            socket.bind(endpoint)
        except zmq.ZMQError as error:
            if error.errno != zmq.EADDRINUSE:
                raise
            await asyncio.sleep(_BIND_PAUSE)
        else:
            return
    socket.bind(endpoint)
