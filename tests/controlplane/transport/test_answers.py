"""Whole and streamed answers to sound requests, byte by byte."""

from __future__ import annotations

import asyncio
import json
from operator import itemgetter
from typing import Any

import pytest

from tests.controlplane.transport.probe import SIZED, Probe
from tests.controlplane.transport.raw_client import Response, chunk, chunked, posted, request
from tests.controlplane.transport.transports import Served, served
from tests.controlplane.waiting import until

PLAIN = (b"content-type", b"text/plain")
STREAM = (b"content-type", b"text/event-stream")
FIRST, SECOND = (b"x-first", b"1"), (b"x-second", b"2")
LONG = bytes(range(256)) * 1024


async def _asked(side: Served, sent: bytes) -> Response:
    async with await side.connect() as connection:
        await connection.send(sent)
        return await connection.response(sent.split(b" ")[0].decode())


async def _told(side: Served, sent: bytes) -> dict[str, Any]:
    response = await _asked(side, sent)
    assert response.status == 200
    told: dict[str, Any] = json.loads(response.body)
    return told


async def test_a_whole_answer(side: Served) -> None:
    response = await _asked(side, posted(b"hello"))
    assert response.line == b"HTTP/1.1 200 OK"
    assert response.fields == (PLAIN, FIRST, SECOND, (b"content-length", b"5"))
    assert response.body == b"hello"


async def test_an_answer_has_a_date(side: Served) -> None:
    async with await side.connect() as connection:
        await connection.send(posted(b"hello", b"/echo", b"connection: close"))
        head = (await connection.rest()).split(b"\r\n\r\n")[0]
    assert sum(line.lower().startswith(b"date: ") for line in head.split(b"\r\n")) == 1


@pytest.mark.parametrize("size", [0, 1, 65_535, 65_536, 65_537, 262_144])
async def test_a_body_comes_and_goes_as_it_is(side: Served, size: int) -> None:
    body = LONG[:size]
    assert (await _asked(side, posted(body))).body == body
    assert (await _asked(side, chunked(body[: size // 2] or b"x", body[size // 2 :] or b"y"))).body == (
        (body[: size // 2] or b"x") + (body[size // 2 :] or b"y")
    )


async def test_a_streamed_answer_goes_on_at_once(side: Served, probe: Probe) -> None:
    async with await side.connect() as connection:
        await connection.send(posted(b"", b"/streamed"))
        head = await connection.reader.readuntil(b"\r\n\r\n")
        first = chunk(b"data: 1\n\n")
        assert await connection.reader.readexactly(len(first)) == first
        probe.release.set()
        rest = chunk(b"data: 2\n\n") + chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n"
        told = b""
        while not told.endswith(b"0\r\n\r\n"):
            told += await connection.reader.read(100)
    assert head.lower().count(b"transfer-encoding: chunked\r\n") == 1
    assert _without_chunks(told) == _without_chunks(rest)


def _without_chunks(told: bytes) -> bytes:
    """The bytes of a chunked body, however they were cut into chunks."""
    body = b""
    while told:
        size, told = told.split(b"\r\n", 1)
        body, told = body + told[: int(size, 16)], told[int(size, 16) + 2 :]
    return body


async def test_a_stream_has_no_length_and_keeps_its_connection(side: Served, probe: Probe) -> None:
    probe.release.set()
    async with await side.connect() as connection:
        for _ in range(3):
            await connection.send(posted(b"", b"/streamed"))
            response = await connection.response()
            assert set(response.fields) == {STREAM, FIRST, (b"transfer-encoding", b"chunked")}
            assert response.body == b"data: 1\n\ndata: 2\n\ndata: [DONE]\n\n"


@pytest.mark.parametrize("method", ["GET", "HEAD"])
@pytest.mark.parametrize("plain", [True, False])
async def test_a_stream_of_a_known_length_is_whole_with_its_last_byte_and_keeps_its_connection(
    method: str, *, plain: bool
) -> None:
    """Its client has all of it while the application is not done yet, which is no client that left."""
    probe = Probe(plain=plain)
    async with served(probe) as side, await side.connect() as connection:
        for number in range(3):
            probe.release.clear()
            await connection.send(request(b"/sized", method=method.encode()))
            response = await connection.response(method)
            assert response.fields == (PLAIN, (b"content-length", b"%d" % len(SIZED)))
            assert response.body == (b"" if method == "HEAD" else SIZED)
            await connection.send(posted(b"next"))
            assert (await connection.response()).body == b"next"
            assert probe.under_way == 1
            probe.release.set()
            await until(lambda: probe.under_way == 0)
            await connection.send(posted(b"and then"))
            assert (await connection.response()).body == b"and then"
            assert probe.noted.count("answered /sized") == number + 1
        assert [line for line in probe.noted if line.startswith(("left", "gone"))] == []


async def test_a_stream_that_ends_before_its_length_ends_its_connection(side: Served, probe: Probe) -> None:
    """Else its client would take what comes next for the rest of it."""
    probe.short = True
    async with await side.connect() as connection:
        await connection.send(request(b"/sized"))
        await connection.reader.readuntil(b"\r\n\r\n" + SIZED[:3])
        probe.release.set()
        assert await connection.ended()


async def test_a_client_that_leaves_before_the_whole_length_is_told(side: Served, probe: Probe) -> None:
    probe.short = True
    async with await side.connect() as connection:
        await connection.send(request(b"/sized"))
        await connection.reader.readuntil(SIZED[:3])
        connection.reset()
        await until(lambda: "left /sized" in probe.noted)


async def test_an_answer_without_a_body(side: Served) -> None:
    async with await side.connect() as connection:
        await connection.send(request(b"/empty"), request(b"/echo"))
        response = await connection.response()
        assert (response.line, response.fields) == (b"HTTP/1.1 204 No Content", (FIRST,))
        assert (await connection.response()).status == 200


async def test_head_has_the_head_alone(side: Served) -> None:
    async with await side.connect() as connection:
        await connection.send(request(b"/unread", method=b"HEAD"), request(b"/echo"))
        response = await connection.response("HEAD")
        assert response.told() == (
            *(200, (PLAIN,)),
            *(frozenset({(b"content-length", b"6")}), b""),
        )
        assert (await connection.response()).body == b""


@pytest.mark.parametrize("method", [b"OPTIONS", b"PUT", b"DELETE", b"PATCH", b"GET", b"POST"])
async def test_the_application_sees_the_method(side: Served, method: bytes) -> None:
    assert (await _told(side, request(method=method)))["method"] == method.decode()


@pytest.mark.parametrize(
    ("target", "path", "raw", "query"),
    [
        (b"/", "/", "/", ""),
        (b"/a%20b%2Fc", "/a b/c", "/a%20b%2Fc", ""),
        (b"/%C3%A4%E2%82%AC", "/ä€", "/%C3%A4%E2%82%AC", ""),
        (b"/a?b=c&d=%20?e", "/a", "/a", "b=c&d=%20?e"),
        (b"/a?", "/a", "/a", ""),
        (b"/a//b/../c", "/a//b/../c", "/a//b/../c", ""),
        (b"/100%", "/100%", "/100%", ""),
        (b"/%ff", "/�", "/%ff", ""),
    ],
)
async def test_the_application_sees_the_target(side: Served, target: bytes, path: str, raw: str, query: str) -> None:
    told = await _told(side, request(target))
    assert (told["path"], told["raw_path"], told["query_string"]) == (path, raw, query)


async def test_an_absolute_target_is_its_path(side: Served) -> None:
    told = await _told(side, request(b"http://elsewhere:80/a?b=c"))
    assert (told["path"], told["query_string"]) == ("/a", "b=c")


async def test_the_application_sees_the_fields(side: Served) -> None:
    """In lower case; those of one name in their order."""
    fields = [["host", "x"], ["x-empty", ""], ["x-latin", "\xe4"], ["x-one", "1"], ["x-one", "3"], ["x-two", "a  b"]]
    sent = request(b"/", b"X-One: 1", b"x-two:  a  b", b"x-ONE:3", b"x-empty:", b"x-latin: \xe4")
    assert sorted((await _told(side, sent))["headers"], key=itemgetter(0)) == fields


async def test_an_old_client_is_answered_and_closed(side: Served) -> None:
    async with await side.connect() as connection:
        await connection.send(posted(b"hello").replace(b"HTTP/1.1", b"HTTP/1.0"))
        response = await connection.response()
        assert (response.status, response.body) == (200, b"hello")
        assert response.field(b"connection") != b"keep-alive"
        assert await connection.ended()


async def test_an_old_client_can_read_a_stream(side: Served, probe: Probe) -> None:
    probe.release.set()
    async with await side.connect() as connection:
        await connection.send(request(b"/streamed", version=b"1.0"))
        assert b"data: 2\n\n" in (await connection.response()).body
        assert await connection.ended()


async def test_a_client_that_asks_for_the_end_gets_it(side: Served) -> None:
    async with await side.connect() as connection:
        await connection.send(posted(b"hello", b"/echo", b"connection: close"))
        response = await connection.response()
        assert (response.closes, response.body) == (True, b"hello")
        assert await connection.ended()


async def test_a_kept_connection_serves_many(side: Served) -> None:
    async with await side.connect() as connection:
        for number in range(50):
            body = b"%d" % number
            await connection.send(posted(body) if number % 2 else chunked(body))
            response = await connection.response()
            assert (response.body, response.field(b"connection")) == (body, None)


async def test_requests_in_one_packet_are_answered_in_their_order(side: Served) -> None:
    async with await side.connect() as connection:
        bodies = [b"%d" % number * (1 + number * 50) for number in range(40)]
        await connection.send(b"".join(posted(body) if body[0] % 2 else chunked(body) for body in bodies))
        assert [(await connection.response()).body for _ in bodies] == bodies


async def test_requests_are_served_one_by_one(side: Served, probe: Probe) -> None:
    async with await side.connect() as connection:
        await connection.send(posted(b"first", b"/held") + posted(b"second") + posted(b"third", b"/held"))
        await until(lambda: "held 5" in probe.noted)
        await asyncio.sleep(0.02)
        assert probe.noted == ["held 5"]
        probe.release.set()
        assert [(await connection.response()).body for _ in range(3)] == [b"first", b"second", b"third"]


async def test_a_request_byte_by_byte(side: Served) -> None:
    sent = chunked(b"hel", b"lo", trailer=b"x-end: 1\r\n")
    async with await side.connect() as connection:
        connection.writer.get_extra_info("socket").setsockopt(6, 1, 1)
        for byte in sent + posted(b"again"):
            await connection.send(bytes([byte]))
            await asyncio.sleep(0)
        assert [(await connection.response()).body for _ in range(2)] == [b"hello", b"again"]


async def test_empty_lines_before_a_request_are_nothing(side: Served) -> None:
    async with await side.connect() as connection:
        await connection.send(b"\r\n\r\n" + posted(b"hello"))
        assert (await connection.response()).body == b"hello"
        await connection.send(b"\r\n" + posted(b"again"))
        assert (await connection.response()).body == b"again"


async def test_what_fails_is_a_500_and_costs_that_request(side: Served) -> None:
    async with await side.connect() as connection:
        await connection.send(request(b"/fails"))
        assert (await connection.response()).status == 500
    assert (await _asked(side, posted(b"hello"))).body == b"hello"


SOUND = {
    "whole": posted(b"hello"),
    "chunked": chunked(b"hel", b"lo"),
    "stream": posted(b"", b"/streamed"),
    "empty": request(b"/empty"),
    "head": request(b"/unread", method=b"HEAD"),
    "head of a stream": request(b"/streamed", method=b"HEAD"),
    "head of nothing": request(b"/empty", method=b"HEAD"),
    "closing": posted(b"hello", b"/echo", b"connection: close"),
    "refused": posted(b"hello", b"/refused"),
    "told": request(b"/a%20b?c=d", b"x-one: 1", b"X-Two: 2"),
}


@pytest.mark.parametrize("name", SOUND)
async def test_asgi_and_the_gateways_way_say_the_same(name: str) -> None:
    told = []
    for plain in (True, False):
        probe = Probe(plain=plain)
        probe.release.set()
        async with served(probe) as side:
            told.append((await _asked(side, SOUND[name])).told())
    assert told[0] == told[1]
