"""Clients that dawdle are closed; those that do not are left alone."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from cachefleet_controlplane.http_server import HttpServer, http_server
from tests.controlplane.waiting import until

pytestmark = pytest.mark.usefixtures("hurried")

HEAD_SECONDS = 0.3
REQUEST = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"


async def app(_: Any, receive: Any, send: Any) -> None:
    while (await receive()).get("more_body"):
        pass
    await asyncio.sleep(2 * HEAD_SECONDS)  # answering may take longer than a head
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"ok"})


@pytest.fixture
async def port() -> AsyncIterator[int]:
    server = http_server(app, host="127.0.0.1", port=0, head_seconds=HEAD_SECONDS, drain_seconds=1)
    serving = asyncio.create_task(server.serve())
    yield await server.listening()
    server.stop()
    await serving


async def _connect(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection("127.0.0.1", port)


async def _closed(reader: asyncio.StreamReader) -> bool:
    async with asyncio.timeout(30):
        return await reader.read() == b""


@pytest.mark.parametrize("said", [b"", b"G", b"\r\n", b"GET / HTTP/1.1\r\nhost:"])
async def test_without_a_whole_head_a_connection_is_closed(port: int, said: bytes) -> None:
    reader, writer = await _connect(port)
    writer.write(said)
    assert await _closed(reader)
    writer.close()


async def test_a_head_that_drips_is_closed_all_the_same(port: int) -> None:
    reader, writer = await _connect(port)

    async def drip() -> None:
        for byte in REQUEST:
            writer.write(bytes([byte]))
            await asyncio.sleep(HEAD_SECONDS / 5)

    dripping = asyncio.create_task(drip())
    assert await _closed(reader)
    dripping.cancel()
    writer.close()


async def test_a_second_head_is_bounded_like_the_first(port: int) -> None:
    reader, writer = await _connect(port)
    writer.write(REQUEST)
    assert b"200" in await reader.readuntil(b"\r\n\r\n")
    assert await reader.readexactly(2) == b"ok"
    writer.write(b"GET / HT")
    assert await _closed(reader)
    writer.close()


async def test_a_port_that_cannot_be_had_is_told(port: int) -> None:
    server: HttpServer = http_server(app, host="127.0.0.1", port=port, head_seconds=1, drain_seconds=1)
    with pytest.raises(SystemExit):
        await server.serve()


async def _asked(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection on which one request was answered; it may be used again."""
    reader, writer = await _connect(port)
    writer.write(REQUEST)
    head = await reader.readuntil(b"\r\n\r\n")
    assert b"200" in head
    assert b"connection: close" not in head
    assert await reader.readexactly(2) == b"ok"
    return reader, writer


@pytest.fixture
async def server() -> AsyncIterator[HttpServer]:
    server = http_server(app, host="127.0.0.1", port=0, head_seconds=10, drain_seconds=10)
    serving = asyncio.create_task(server.serve())
    yield server
    server.stop()
    await serving


async def test_one_that_leaves_says_so_on_every_connection_and_takes_new_ones(server: HttpServer) -> None:
    port = await server.listening()
    reader, writer = await _asked(port)
    under_way, asking = await _connect(port)
    asking.write(REQUEST)
    await asyncio.sleep(0.1)  # the request arrives in the server first
    server.leave()
    writer.write(REQUEST)
    fresh, new = await _connect(port)
    new.write(REQUEST)
    async with asyncio.timeout(30):
        for end in (reader, under_way, fresh):
            assert b"connection: close" in await end.readuntil(b"\r\n\r\n")
            assert await end.read() == b"ok"
    for one in (writer, asking, new):
        one.close()


async def test_one_that_stops_still_answers_what_was_asked_on_a_connection_it_said_was_kept(server: HttpServer) -> None:
    port = await server.listening()
    reader, writer = await _asked(port)
    silent, connected = await _connect(port)
    server.stop()
    await until(lambda: not server.servers[0].is_serving())
    for one in (writer, connected):
        one.write(REQUEST)
    async with asyncio.timeout(30):
        for end in (reader, silent):
            assert b"connection: close" in await end.readuntil(b"\r\n\r\n")
            assert await end.read() == b"ok"
    for one in (writer, connected):
        one.close()


async def test_one_that_stops_waits_for_nobody_who_asks_nothing(server: HttpServer) -> None:
    port = await server.listening()
    idle = [await _asked(port), await _connect(port)]
    server.stop()
    async with asyncio.timeout(5):  # well within the ten seconds of a head and of a drain
        for reader, writer in idle:
            assert await reader.read() == b""
            writer.close()
