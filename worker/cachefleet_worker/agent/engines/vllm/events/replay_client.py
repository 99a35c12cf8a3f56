"""Client of vLLM's replay socket: requests missed batches and passes the replies on as they come."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

import zmq
import zmq.asyncio

from cachefleet_worker.agent.engines.vllm.events.messages import (
    Replayed,
    ReplayEnded,
    RequestReplay,
    read_reply,
    replay_request,
)

BURST: Final = 256
"""Messages read before other tasks may run."""


def configure(socket: zmq.asyncio.Socket, *, max_bytes: int, queue: int) -> None:
    """Set a socket's queue length, largest message and reconnect interval."""
    socket.linger = 0
    socket.setsockopt(zmq.RCVHWM, queue)
    socket.setsockopt(zmq.MAXMSGSIZE, max_bytes)
    socket.setsockopt(zmq.RECONNECT_IVL, 100)
    socket.setsockopt(zmq.RECONNECT_IVL_MAX, 1000)


class ReplayClient:
    """``take`` is called with each reply, ``malformed`` for each unreadable message."""

    def __init__(
        self,
        endpoint: str,
        *,
        max_bytes: int,
        queue: int,
        timeout_seconds: float,
        take: Callable[[Replayed | ReplayEnded], None],
        malformed: Callable[[], None],
    ) -> None:
        self._endpoint = endpoint
        self._max_bytes = max_bytes
        self._queue = queue
        self._timeout_ms = round(timeout_seconds * 1000)
        self._take = take
        self._malformed = malformed

    async def request(self, ask: RequestReplay) -> bool:
        """Request a replay; returns whether its end marker came before a timeout. ZMQError where the socket fails."""
        with zmq.asyncio.Context.instance().socket(zmq.DEALER) as socket:
            configure(socket, max_bytes=self._max_bytes, queue=self._queue)
            socket.connect(self._endpoint)
            await socket.send_multipart(replay_request(ask.start))
            shadow: zmq.Socket[bytes] = zmq.Socket.shadow(socket)
            while await socket.poll(self._timeout_ms):
                if self._take_replies(shadow, ask):
                    return True
                await asyncio.sleep(0)
        return False

    def _take_replies(self, socket: zmq.Socket[bytes], ask: RequestReplay) -> bool:
        """Take the replies that have arrived; returns whether the last was the end marker."""
        for _ in range(BURST):
            try:
                frames = socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return False
            reply = read_reply(frames, ask.ticket)
            if reply is None:
                self._malformed()
                continue
            self._take(reply)
            if isinstance(reply, ReplayEnded):
                return True
        return False
