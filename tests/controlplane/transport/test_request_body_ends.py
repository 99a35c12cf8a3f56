"""Request bodies: chunked ones, those over a limit, those that stall, and answers that do not wait for them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest

from tests.controlplane.transport.probe import Probe
from tests.controlplane.transport.raw_client import chunk, chunked, posted, request
from tests.controlplane.transport.transports import Served, served
from tests.controlplane.waiting import until

KIB = 1024
MIB = 1024 * KIB
SHORT = 0.2
EXPECT = b"expect: 100-continue"


@asynccontextmanager
async def limited(limit: int) -> AsyncIterator[tuple[Served, Probe]]:
    probe = Probe(limit=limit)
    async with served(probe) as side:
        yield side, probe


async def test_extensions_and_trailers_of_chunks_are_no_body(side: Served) -> None:
    head = request(b"/echo", b"transfer-encoding: chunked", b"trailer: x-end", method=b"POST")
    body = chunk(b"hel", b";a=b") + chunk(b"lo", b';c="d"') + b"0;last\r\nx-end: 1\r\nx-more: 2\r\n\r\n"
    async with await side.connect() as connection:
        await connection.send(head + body + posted(b"again"))
        assert [(await connection.response()).body for _ in range(2)] == [b"hello", b"again"]


@pytest.mark.parametrize("size", [b"00000002", b"2", b"02"])
async def test_a_chunks_size_may_have_zeros_before(side: Served, size: bytes) -> None:
    head = request(b"/echo", b"transfer-encoding: chunked", method=b"POST")
    async with await side.connect() as connection:
        await connection.send(head + size + b"\r\nok\r\n0\r\n\r\n")
        assert (await connection.response()).body == b"ok"


async def test_chunks_of_one_byte_are_a_body(side: Served) -> None:
    body = bytes(index % 251 for index in range(5000))
    async with await side.connect() as connection:
        await connection.send(chunked(*(bytes([byte]) for byte in body)))
        assert (await connection.response()).body == body


async def test_an_endless_extension_is_not_held(side: Served) -> None:
    def endless() -> Iterator[bytes]:
        yield request(b"/echo", b"transfer-encoding: chunked", method=b"POST") + b"2;"
        for _ in range(64):
            yield b"y" * MIB

    async with await side.connect() as connection:
        assert await connection.flood(endless()) < 16 * MIB
        assert b" 200 " not in await connection.rest()


async def test_a_body_at_its_limit_is_served() -> None:
    async with limited(100 * KIB) as (side, _):
        for sent in (posted(b"x" * 100 * KIB), chunked(b"x" * 50 * KIB, b"y" * 50 * KIB)):
            async with await side.connect() as connection:
                await connection.send(sent)
                assert len((await connection.response()).body) == 100 * KIB


async def test_a_length_over_the_limit_is_refused_before_the_body() -> None:
    async with limited(100 * KIB) as (side, _), await side.connect() as connection:
        await connection.send(request(b"/echo", b"content-length: %d" % (100 * KIB + 1), method=b"POST"))
        response = await connection.response()
        assert (response.status, response.closes) == (413, True)
        assert await connection.ended()


async def test_who_sends_it_all_before_reading_is_told_of_the_413() -> None:
    """Without a lingering end the kernel would throw the answer away."""
    async with limited(100 * KIB) as (side, _), await side.connect() as connection:
        await connection.send(request(b"/echo", b"content-length: %d" % (8 * MIB), method=b"POST"))
        for _ in range(128):
            await connection.send(b" " * 64 * KIB)
        assert (await connection.response()).status == 413
        assert await connection.ended()


async def test_chunks_over_the_limit_are_a_413() -> None:
    async with limited(100 * KIB) as (side, _), await side.connect() as connection:
        await connection.send(request(b"/echo", b"transfer-encoding: chunked", method=b"POST"))
        for _ in range(20):
            await connection.send(chunk(b" " * 10 * KIB))
        response = await connection.response()
        assert (response.status, response.closes) == (413, True)
        assert await connection.ended()


async def test_a_client_is_told_to_continue_once_its_body_is_wanted(side: Served) -> None:
    async with await side.connect() as connection:
        await connection.send(request(b"/echo", b"content-length: 5", EXPECT, method=b"POST"))
        interim = await connection.response()
        assert (interim.line, interim.fields) == (b"HTTP/1.1 100 Continue", ())
        await connection.send(b"hello")
        assert (await connection.response()).body == b"hello"
        await connection.send(posted(b"again"))
        assert (await connection.response()).body == b"again"


async def test_a_client_whose_body_nobody_wants_is_not_told_to_continue(side: Served) -> None:
    async with await side.connect() as connection:
        await connection.send(request(b"/refused", b"content-length: 5", EXPECT, method=b"POST"))
        response = await connection.response()
        assert (response.status, response.body, response.closes) == (413, b"refused", True)
        assert await connection.ended()


async def test_a_client_that_expects_and_does_not_wait_is_answered(side: Served) -> None:
    async with await side.connect() as connection:
        await connection.send(posted(b"hello", b"/echo", EXPECT))
        response = await connection.response()
        if response.status == 100:
            response = await connection.response()
        assert response.body == b"hello"


async def test_an_old_client_is_not_told_to_continue(side: Served) -> None:
    async with await side.connect() as connection:
        await connection.send(posted(b"hello", b"/echo", EXPECT).replace(b"HTTP/1.1", b"HTTP/1.0"))
        assert (await connection.response()).body == b"hello"


@pytest.mark.parametrize("sent", [b"", b"some"])
async def test_a_body_that_stalls_is_a_408(sent: bytes) -> None:
    probe = Probe(stall_seconds=SHORT)
    async with served(probe) as side, await side.connect() as connection:
        await connection.send(request(b"/echo", b"content-length: 100", method=b"POST") + sent)
        response = await connection.response()
        assert (response.status, response.closes) == (408, True)
        assert await connection.ended()
        await until(lambda: not probe.under_way)


async def test_a_body_that_drips_has_an_end_as_well() -> None:
    probe = Probe(body_seconds=2 * SHORT, stall_seconds=SHORT)
    async with served(probe) as side, await side.connect() as connection:
        await connection.send(request(b"/echo", b"content-length: 100000", method=b"POST"))

        async def drip() -> None:
            while True:
                await connection.send(b" ")
                await asyncio.sleep(SHORT / 10)

        dripping = asyncio.create_task(drip())
        assert (await connection.response()).status == 408
        dripping.cancel()


async def test_an_answer_before_the_body_can_be_read(side: Served) -> None:
    async with await side.connect() as connection:
        await connection.send(request(b"/refused", b"content-length: %d" % (4 * MIB), method=b"POST"))
        response = await connection.response()
        assert (response.status, response.body) == (413, b"refused")
        assert await connection.ended()


async def test_who_goes_on_sending_can_still_read_its_answer(side: Served) -> None:
    async with await side.connect() as connection:
        await connection.send(request(b"/refused", b"content-length: %d" % (4 * MIB), method=b"POST"))
        for _ in range(64):
            await connection.send(b" " * 64 * KIB)
        assert (await connection.response()).body == b"refused"
        assert await connection.ended()


@pytest.mark.parametrize("sent", [posted(b"ignored", b"/unread"), chunked(b"ign", b"ored", target=b"/unread")])
async def test_a_body_that_nobody_reads_is_no_next_request(side: Served, sent: bytes) -> None:
    async with await side.connect() as connection:
        await connection.send(sent + posted(b"again"))
        response = await connection.response()
        assert response.body == b"unread"
        if response.closes:
            assert await connection.ended()
        else:
            assert (await connection.response()).body == b"again"


async def test_a_slow_application_holds_little_of_a_long_body() -> None:
    held = asyncio.Event()

    async def app(_: object, receive: object, send: object) -> None:
        await held.wait()

    async with served(app) as side, await side.connect() as connection:
        await connection.send(request(b"/held", b"content-length: %d" % (256 * MIB), method=b"POST"))
        sent = 0
        try:
            while sent < 256 * MIB:
                connection.writer.write(b" " * MIB)
                await asyncio.wait_for(connection.writer.drain(), 0.5)
                sent += MIB
        except TimeoutError:
            pass
        held.set()
    assert sent < 32 * MIB  # what the sockets' own buffers hold
