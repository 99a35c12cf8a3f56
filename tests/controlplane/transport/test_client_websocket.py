"""Messages of clients that dawdle, and what unfinished ones may hold."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from websockets.frames import Frame, Opcode

from cachefleet_controlplane.transport import client_websocket as module
from cachefleet_controlplane.transport.client_websocket import (
    LEAVING,
    MessageBounds,
    UnfinishedMessages,
    client_websocket,
)
from cachefleet_controlplane.transport.websocket_protocol import CautiousWebSocket, RefusingWebSocket
from cachefleet_controlplane.transport.websocket_server import WebSocketServer
from tests.controlplane.waiting import until

pytestmark = pytest.mark.usefixtures("hurried")

HEAD = (
    b"GET / HTTP/1.1\r\nhost: x\r\nupgrade: websocket\r\nconnection: upgrade\r\n"
    b"sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\nsec-websocket-version: 13\r\n\r\n"
)


@dataclass
class App:
    """Accepts once it may, and notes what it receives."""

    may_accept: asyncio.Event = field(default_factory=asyncio.Event)
    received: list[dict[str, Any]] = field(default_factory=list)

    async def __call__(self, _: Any, receive: Any, send: Any) -> None:
        self.received.append(await receive())
        await self.may_accept.wait()
        await send({"type": "websocket.accept"})
        while True:
            self.received.append(await receive())
            if self.received[-1]["type"] in {"websocket.disconnect", LEAVING}:
                return

    @property
    def said(self) -> list[str]:
        return [message["text"] for message in self.received if message["type"] == "websocket.receive"]


@dataclass
class Side:
    app: App
    server: WebSocketServer
    unfinished: UnfinishedMessages
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    def send(self, text: bytes, opcode: Opcode = Opcode.TEXT, *, fin: bool = True, upto: int | None = None) -> None:
        self.writer.write(Frame(opcode, text, fin=fin).serialize(mask=True)[:upto])

    async def close_code(self) -> int:
        """As soon as it is told: a write after that may find the connection closed."""
        rest = b""
        async with asyncio.timeout(60):
            while (at := rest.rfind(b"\x88")) < 0 or len(rest) < at + 4:
                block = await self.reader.read(65536)
                assert block, rest
                rest += block
        return int.from_bytes(rest[at + 2 : at + 4], "big")


@asynccontextmanager
async def side(
    *,
    accepted: bool = True,
    limit: int = 1 << 20,
    seconds: float = 5.0,
    protocol: type[RefusingWebSocket] | None = None,
) -> AsyncIterator[Side]:
    unfinished = UnfinishedMessages(limit)
    bounds = MessageBounds(seconds=seconds, stall_seconds=2, unfinished=unfinished)
    app = App()
    with TemporaryDirectory() as folder:
        path = Path(folder) / "websockets"
        protocol = protocol or client_websocket(bounds)
        server = WebSocketServer(app, path, drain_seconds=1, message_bytes=1 << 20, protocol=protocol)
        serving = asyncio.create_task(server.serve())
        await server.listening()
        reader, writer = await asyncio.open_unix_connection(path)
        writer.write(HEAD)
        made = Side(app, server, unfinished, reader, writer)
        if accepted:
            app.may_accept.set()
            assert b" 101 " in await reader.readuntil(b"\r\n\r\n")
        try:
            yield made
        finally:
            app.may_accept.set()
            writer.close()
            server.stop()
            await serving


async def test_nothing_is_read_before_the_connection_is_accepted() -> None:
    async with side(accepted=False) as one:
        await until(lambda: bool(one.app.received))
        one.send(b"x" * 100_000, upto=50_000)
        await asyncio.sleep(0.04)
        assert one.unfinished.held == 0
        one.app.may_accept.set()
        await until(lambda: one.unfinished.held > 49_000)


async def test_a_message_that_stalls_closes_the_connection() -> None:
    async with side() as one:
        one.send(b"whole")
        one.send(b"x" * 1000, upto=500)
        assert await one.close_code() == 1008
        await until(lambda: one.unfinished.held == 0)
        assert one.app.said == ["whole"]


async def test_a_message_that_drips_closes_the_connection() -> None:
    async with side() as one:
        one.send(b"begin", fin=False)

        async def drip() -> None:
            while True:
                one.send(b"x", Opcode.CONT, fin=False)
                await asyncio.sleep(0.5)

        dripping = asyncio.create_task(drip())
        assert await one.close_code() == 1008
        dripping.cancel()


async def test_a_connection_that_is_quiet_between_messages_stays() -> None:
    async with side() as one:
        for text in (b"one", b"two"):
            one.send(text)
            await until(lambda: len(one.app.said) == len(one.app.received) - 1)
            await asyncio.sleep(20)
        one.send(b"three", fin=False)
        one.send(b"", Opcode.PING)
        one.send(b"four", Opcode.CONT)
        await until(lambda: one.app.said[-1:] == ["threefour"])
        assert one.app.said[:2] == ["one", "two"]
        assert one.unfinished.held == 0


async def test_unfinished_messages_are_bounded_over_all_connections() -> None:
    async with side(limit=10_000) as one:
        one.unfinished.held += 8000  # another connection's
        one.send(b"x" * 5000, upto=1500)
        await until(lambda: one.unfinished.held > 9000)
        one.writer.write(b"x" * 1000)
        assert await one.close_code() == 1013
        await until(lambda: one.unfinished.held == 8000)


async def test_fragments_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_FRAGMENTS", 10)
    async with side() as one:
        one.send(b"", fin=False)
        for _ in range(10):
            one.send(b"", Opcode.CONT, fin=False)
        assert await one.close_code() == 1009


async def test_a_client_that_answers_no_ping_stays() -> None:
    async with side(seconds=600) as one:
        await asyncio.sleep(120)
        one.send(b"still here")
        await until(lambda: one.app.said == ["still here"])


async def test_a_server_that_stops_while_a_client_closes_ends_without_an_error() -> None:
    async with side(protocol=CautiousWebSocket) as one:
        connection: Any = next(iter(one.server.server_state.connections))
        handle_close = connection.handle_close
        stopped: list[bool] = []

        def close_and_stop(event: Any) -> None:
            handle_close(event)
            connection.shutdown()
            stopped.append(True)

        connection.handle_close = close_and_stop
        one.send((1000).to_bytes(2, "big"), Opcode.CLOSE)
        assert await one.close_code() == 1000
        assert stopped == [True]


async def test_a_server_that_stops_tells_the_application() -> None:
    async with side() as one:
        one.server.stop()
        await until(lambda: one.app.received[-1]["type"] == LEAVING)
