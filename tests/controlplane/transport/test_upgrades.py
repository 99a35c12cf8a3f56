"""WebSockets pass through the server; other upgrades are plain requests."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from typing import Any

import pytest
from websockets.frames import Frame, Opcode

from tests.controlplane.transport.probe import Probe
from tests.controlplane.transport.raw_client import posted, request
from tests.controlplane.transport.transports import Served, served

KEY = (b"sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==", b"sec-websocket-version: 13")
UPGRADE = request(b"/socket", b"connection: keep-alive, Upgrade", b"upgrade: WebSocket", *KEY)


async def app(scope: Any, receive: Any, send: Any) -> None:
    """Says what it is told; refuses at /refused."""
    assert scope["type"] == "websocket"
    assert (await receive())["type"] == "websocket.connect"
    if scope["path"] == "/refused":
        await send({"type": "websocket.close"})
        return
    await send({"type": "websocket.accept"})
    while (message := await receive())["type"] == "websocket.receive":
        await send({"type": "websocket.send", "text": message["text"]})


def _frame(text: bytes) -> bytes:
    return Frame(Opcode.TEXT, text).serialize(mask=True)


async def test_a_websocket_is_served() -> None:
    async with served(app, websocket_bytes=1 << 20) as side, await side.connect() as connection:
        await connection.send(UPGRADE)
        response = await connection.response()
        assert response.line == b"HTTP/1.1 101 Switching Protocols"
        assert response.field(b"sec-websocket-accept") == b"s3pPLMBiTxaQ9kYGzzhZRbK+xOo="
        await connection.send(_frame(b"first") + _frame(b"second" * 1000))
        for text in (b"first", b"second" * 1000):
            expected = Frame(Opcode.TEXT, text).serialize(mask=False)
            assert await asyncio.wait_for(connection.reader.readexactly(len(expected)), 30) == expected


async def test_a_long_path_of_the_folder_for_temporary_files_does_not_matter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A Unix socket's path has at most 107 bytes."""
    (long := tmp_path / ("x" * 120)).mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    async with served(app, websocket_bytes=1 << 20) as side, await side.connect() as connection:
        await connection.send(UPGRADE)
        assert (await connection.response()).status == 101


async def test_the_folder_of_a_killed_control_plane_goes_when_the_next_one_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    (left := tmp_path / "cachefleet-left").mkdir(mode=0o700)
    for name in ("lock", "websockets"):
        (left / name).write_text("")
    async with served(app, websocket_bytes=1 << 20):
        (own,) = _entries(tmp_path)
        assert own != left
    assert not _entries(tmp_path)


def _entries(folder: Path) -> list[Path]:
    return list(folder.iterdir())


async def test_a_refused_websocket_is_a_403() -> None:
    async with served(app, websocket_bytes=1 << 20) as side, await side.connect() as connection:
        await connection.send(UPGRADE.replace(b"/socket", b"/refused"))
        assert (await connection.rest()).startswith(b"HTTP/1.1 403 ")


async def test_a_server_that_stops_ends_its_websockets() -> None:
    async with served(app, websocket_bytes=1 << 20, drain_seconds=5.0) as side:
        connection = await side.connect()
        await connection.send(UPGRADE)
        assert (await connection.response()).status == 101
        side.server.stop()
        told = await connection.rest()
        assert told[:4] == b"\x88\x02\x03\xf4"  # close, 1012
        connection.close()


@pytest.mark.parametrize("upgrade", [b"h2c", b"websocket", b"TLS/1.0"])
async def test_without_websockets_an_upgrade_is_a_plain_request(side: Served, upgrade: bytes) -> None:
    async with await side.connect() as connection:
        await connection.send(request(b"/echo", b"connection: upgrade", b"upgrade: " + upgrade, *KEY))
        assert (await connection.response()).status == 200


async def test_another_upgrade_than_a_websocket_is_a_plain_request(probe: Probe) -> None:
    async with served(probe, websocket_bytes=1 << 20) as side, await side.connect() as connection:
        await connection.send(request(b"/echo", b"connection: upgrade", b"upgrade: h2c"))
        assert (await connection.response()).status == 200


async def test_before_a_websocket_there_may_be_requests(probe: Probe) -> None:
    async def either(scope: Any, receive: Any, send: Any) -> None:
        await (app if scope["type"] == "websocket" else probe)(scope, receive, send)

    async with served(either, websocket_bytes=1 << 20) as side, await side.connect() as connection:
        await connection.send(posted(b"hello"))
        assert (await connection.response()).body == b"hello"
        await connection.send(UPGRADE)
        assert (await connection.response()).status == 101
        await connection.send(_frame(b"first"))
        expected = Frame(Opcode.TEXT, b"first").serialize(mask=False)
        assert await asyncio.wait_for(connection.reader.readexactly(len(expected)), 30) == expected
