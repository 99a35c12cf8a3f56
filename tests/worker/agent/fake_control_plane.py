"""A control plane's end of the reports protocol: keeps what agents send, as a set for each stream, and checks it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from typing import Self

from aiohttp import WSMsgType, web

from cachefleet_core.block_keys import BlockKey
from cachefleet_core.report_frames import (
    PATH,
    SUBPROTOCOL,
    Delta,
    DownFrame,
    Hello,
    Snapshot,
    State,
    UpFrame,
    decode_up,
    encode,
)
from tests.worker.agent.receiver import Receiver


class ControlPlane:
    """Listens on a free port, or on ``port``. What came is in ``frames``, what the last stream says beside it."""

    def __init__(self, port: int = 0, *, token: str = "") -> None:
        self.port = port
        self._token = token
        self._runner: web.AppRunner | None = None
        self._sockets: set[web.WebSocketResponse] = set()
        self.frames: list[UpFrame] = []
        self.connects = 0
        self.refused = 0
        self.receiver = Receiver()
        self.hello: Hello | None = None
        self.state: State | None = None
        self.sequence = -1
        self.close_with: int | None = None
        self.read = asyncio.Event()
        self.read.set()

    @property
    def url(self) -> str:
        return f"ws://127.0.0.1:{self.port}"

    @property
    def epochs(self) -> list[str]:
        return [frame.epoch for frame in self.frames if isinstance(frame, Hello)]

    async def __aenter__(self) -> Self:
        app = web.Application()
        app.router.add_get(PATH, self._serve)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.5)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self.port).start()
        self.port = self._runner.addresses[0][1]
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._runner is not None
        self.read.set()
        await self.close()
        await self._runner.cleanup()

    async def send(self, frame: DownFrame) -> None:
        await self.send_bytes(encode(frame))

    async def send_bytes(self, data: bytes) -> None:
        for socket in list(self._sockets):
            await socket.send_bytes(data)

    async def close(self, code: int = 1001) -> None:
        for socket in list(self._sockets):
            await socket.close(code=code)

    async def until(self, condition: Callable[[], object], seconds: float = 30.0) -> None:
        """Wait for a condition, or fail with what was received last; by real time, as threads are not hurried."""
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, f"not so after {seconds} s: {self.frames[-3:]}"
            await asyncio.sleep(0.01)

    async def next_state(self, seconds: float = 30.0) -> State:
        """The next State to come; what happened on the worker's side before it has arrived then."""
        last = self.state
        await self.until(lambda: self.state is not last, seconds)
        assert self.state is not None
        return self.state

    async def holds(self, keys: Iterable[BlockKey], seconds: float = 30.0) -> None:
        """Wait until all these keys are reported."""
        wanted = set(keys)
        await self.until(lambda: wanted <= self.receiver.keys, seconds)

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        self.connects += 1
        if self._token and request.headers.get("Authorization") != f"Bearer {self._token}":
            self.refused += 1
            return web.Response(status=401)
        socket = web.WebSocketResponse(protocols=(SUBPROTOCOL,))
        await socket.prepare(request)
        assert socket.ws_protocol == SUBPROTOCOL
        if self.close_with is not None:
            await socket.close(code=self.close_with)
            return socket
        self._sockets.add(socket)
        self.receiver, self.sequence = Receiver(), -1
        try:
            while True:
                await self.read.wait()
                message = await socket.receive()
                if message.type is not WSMsgType.BINARY:
                    return socket
                self._take(decode_up(message.data))
        finally:
            self._sockets.discard(socket)

    def _take(self, frame: UpFrame) -> None:
        self.frames.append(frame)
        match frame:
            case Hello():
                self.hello, self.sequence = frame, -1
            case Snapshot():
                if frame.part == 0:
                    self.receiver = Receiver()
                self.receiver.apply(frame.chains)
                self.sequence = frame.sequence
            case Delta():
                assert frame.sequence == self.sequence + 1, "a delta is missing or came twice"
                self.receiver.apply(frame.operations)
                self.sequence = frame.sequence
            case State():
                assert frame.sequence == self.sequence
                assert frame.digest == self.receiver.digest, "the digest is not that of what was sent"
                assert frame.held == len(self.receiver.held)
                self.state = frame
