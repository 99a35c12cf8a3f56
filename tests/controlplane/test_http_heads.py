"""A request's head is bounded in bytes and fields, whoever sends it and however it arrives."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable
from typing import Any

import pytest

from cachefleet_controlplane.http_heads import MAX_HEAD_BYTES, MAX_HEAD_FIELDS
from cachefleet_controlplane.http_server import http_server

BEGIN = b"POST / HTTP/1.1\r\nhost: x\r\n"
MIB = 1024 * 1024


async def app(_: Any, receive: Any, send: Any) -> None:
    size = 0
    while (message := await receive()).get("more_body"):
        size += len(message["body"])
    body = b"%d" % (size + len(message.get("body", b"")))
    head = [(b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": 200, "headers": head})
    await send({"type": "http.response.body", "body": body})


@pytest.fixture
async def port() -> AsyncIterator[int]:
    server = http_server(app, host="127.0.0.1", port=0, head_seconds=30, drain_seconds=1)
    serving = asyncio.create_task(server.serve())
    yield await server.listening()
    server.stop()
    await serving


async def _answer(port: int, pieces: Iterable[bytes]) -> tuple[bytes, int]:
    """All that is answered, "" where the connection is reset, and how many bytes the server took until then."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    answered = asyncio.Event()
    sending = asyncio.create_task(_send(writer, pieces, answered))
    answer = b""
    with contextlib.suppress(ConnectionError):
        async with asyncio.timeout(30):
            answer = await reader.read()
    answered.set()
    sent = await sending
    writer.close()
    return answer, sent


async def _send(writer: asyncio.StreamWriter, pieces: Iterable[bytes], answered: asyncio.Event) -> int:
    sent = 0
    with contextlib.suppress(ConnectionError):
        for piece in pieces:
            if answered.is_set():
                break
            writer.write(piece)
            await writer.drain()
            sent += len(piece)
    return sent


def _fields(number: int, size: int = 4) -> bytes:
    return b"".join(b"x-%d: %s\r\n" % (index, b"v" * size) for index in range(number))


def _ended(head: bytes) -> Iterable[bytes]:
    yield head + b"content-length: 2\r\nconnection: close\r\n\r\nok"


async def test_a_head_at_its_bounds_is_served(port: int) -> None:
    head = BEGIN + _fields(MAX_HEAD_FIELDS - 3, size=600)
    assert b" 200 " in (await _answer(port, _ended(head)))[0]


@pytest.mark.parametrize(
    "head",
    [
        pytest.param(BEGIN + _fields(MAX_HEAD_FIELDS), id="fields"),
        pytest.param(BEGIN + _fields(90, size=800), id="bytes"),
        pytest.param(BEGIN + b"x: " + b"v" * (MAX_HEAD_BYTES + 1) + b"\r\n", id="one value"),
        pytest.param(BEGIN + b"x" * (MAX_HEAD_BYTES + 1) + b": v\r\n", id="one name"),
        pytest.param(b"POST /?" + b"a" * MAX_HEAD_BYTES + b" HTTP/1.1\r\nhost: x\r\n", id="target"),
    ],
)
async def test_a_head_over_its_bounds_is_refused_and_closed(port: int, head: bytes) -> None:
    answer, _ = await _answer(port, _ended(head))
    assert answer.startswith(b"HTTP/1.1 431 ")
    assert b"connection: close" in answer
    assert answer.count(b"HTTP/1.1") == 1


@pytest.mark.parametrize("begin", [BEGIN + b"x: ", BEGIN, b"POST /"])
async def test_what_never_ends_is_refused_while_it_arrives(port: int, begin: bytes) -> None:
    def endless() -> Iterable[bytes]:
        yield begin
        for _ in range(64):
            yield b"y" * MIB if begin is not BEGIN else b"a: b\r\n" * (MIB // 6)

    answer, sent = await _answer(port, endless())
    assert answer.startswith(b"HTTP/1.1 431 ")
    assert sent < 16 * MIB  # what the sockets' own buffers hold


async def test_a_second_head_is_bounded_like_the_first(port: int) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(BEGIN + b"content-length: 2\r\n\r\nok")
    assert b" 200 " in await reader.readuntil(b"\r\n\r\n2")
    writer.write(BEGIN + _fields(MAX_HEAD_FIELDS) + b"\r\n")
    assert (await reader.read()).startswith(b"HTTP/1.1 431 ")
    writer.close()


async def test_each_head_is_counted_by_itself(port: int) -> None:
    def many() -> Iterable[bytes]:
        for _ in range(30):
            yield BEGIN + _fields(50, size=100) + b"content-length: 2\r\n\r\nok"
        yield from _ended(BEGIN)

    assert (await _answer(port, many()))[0].count(b" 200 ") == 31


async def test_bodies_do_not_count(port: int) -> None:
    body = b"b" * (4 * MIB)
    chunked = b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)
    head = BEGIN + b"transfer-encoding: chunked\r\nconnection: close\r\n\r\n"
    answer, _ = await _answer(port, [head, chunked])
    assert answer.endswith(b"%d" % len(body))


async def test_a_trailer_is_bounded_too(port: int) -> None:
    def endless() -> Iterable[bytes]:
        yield BEGIN + b"transfer-encoding: chunked\r\n\r\n2\r\nok\r\n0\r\nx: "
        for _ in range(64):
            yield b"y" * MIB

    answer, sent = await _answer(port, endless())
    assert b" 200 " not in answer
    assert sent < 16 * MIB
