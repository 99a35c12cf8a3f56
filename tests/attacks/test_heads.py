"""Request heads: without end, smuggled, malformed. No key is asked for before a head is whole."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.attacks.target import Target, raw

MIB = 1024 * 1024
PORTS = pytest.mark.parametrize("port", ["gateway", "internal"])
BEGIN = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\n"
INNER = b"GET /v1/models HTTP/1.1\r\nhost: x\r\n\r\n"


def _lines() -> Iterator[bytes]:
    yield BEGIN
    for _ in range(32):
        yield b"a: b\r\n" * (MIB // 6)


def _value() -> Iterator[bytes]:
    yield BEGIN + b"a: "
    for _ in range(53):
        yield b"b" * MIB


def _target() -> Iterator[bytes]:
    yield b"GET /"
    for _ in range(32):
        yield b"a" * MIB


@PORTS
@pytest.mark.parametrize("pieces", [_lines, _value, _target])
async def test_a_head_without_end(target: Target, port: str, pieces: Iterator[bytes]) -> None:
    told = await raw(getattr(target, port), pieces())  # type: ignore[operator]
    assert told.startswith(b"HTTP/1.1 431 ")


SMUGGLED = {
    "two lengths": BEGIN + b"content-length: 0\r\ncontent-length: 36\r\n\r\n" + INNER,
    "length and chunks": BEGIN + b"content-length: 36\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n" + INNER,
    "chunks twice": BEGIN + b"transfer-encoding: chunked\r\ntransfer-encoding: identity\r\n\r\n0\r\n\r\n" + INNER,
    "odd chunks": BEGIN + b"transfer-encoding: \x0bchunked\r\n\r\n0\r\n\r\n" + INNER,
    "space before colon": BEGIN + b"content-length : 36\r\n\r\n" + INNER,
    "folded": BEGIN + b"content-length: 0\r\n 36\r\n\r\n" + INNER,
    "bare return": BEGIN + b"a: b\rcontent-length: 36\r\n\r\n" + INNER,
    "nul": BEGIN + b"a: \x00\r\ncontent-length: 0\r\n\r\n" + INNER,
    "negative length": BEGIN + b"content-length: -1\r\n\r\n" + INNER,
    "plus length": BEGIN + b"content-length: +36\r\n\r\n" + INNER,
    "long chunk": BEGIN + b"transfer-encoding: chunked\r\n\r\nfffffffffffffffff\r\n" + INNER,
}


@PORTS
@pytest.mark.parametrize("name", SMUGGLED)
async def test_a_head_that_two_readers_may_read_differently(target: Target, port: str, name: str) -> None:
    told = await raw(getattr(target, port), SMUGGLED[name])
    assert told.startswith(b"HTTP/1.1 4") or not told
    assert told.count(b"HTTP/1.1") <= 1  # the request inside was never seen as one
    assert not target.worker.requests


@pytest.mark.parametrize(
    "line",
    [
        b"CONNECT evil:80 HTTP/1.1",
        b"TRACE / HTTP/1.1",
        b"GET http://evil/v1/models HTTP/1.1",
        b"GET //evil/v1/models HTTP/1.1",
        b"GET /v1/../admin/v1/pools HTTP/1.1",
        b"GET /v1/models/%2e%2e%2fadmin HTTP/1.1",
        b"GET /%0d%0aset-cookie:x HTTP/1.1",
        b"PRI * HTTP/2.0",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    ],
)
async def test_a_request_line_of_somebody_else(target: Target, line: bytes) -> None:
    told = await raw(target.gateway, line + b"\r\nhost: x\r\nconnection: close\r\n\r\n")
    status = told.split(b" ")[1] if told else b"4"
    assert status.startswith(b"4") or b'"object":"list"' in told
    assert b"set-cookie" not in told.split(b"\r\n\r\n")[0].lower()
    assert not target.worker.requests
