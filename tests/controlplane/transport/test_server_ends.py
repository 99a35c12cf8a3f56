"""Servers that leave and stop, with requests under way, idle connections, and requests sent ahead."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from cachefleet_controlplane.transport.completions import Completions
from cachefleet_controlplane.transport.listening_sockets import NeverListenedError
from tests.controlplane.transport.probe import Probe
from tests.controlplane.transport.raw_client import Connection, posted, request
from tests.controlplane.transport.transports import Served, made, served
from tests.controlplane.waiting import until


@pytest.fixture
async def side(probe: Probe) -> AsyncIterator[Served]:
    """A server with time for answers under way."""
    async with served(probe, drain_seconds=20.0) as made:
        yield made


async def _asked(side: Served) -> Connection:
    """A connection that was told nothing of an end."""
    connection = await side.connect()
    await connection.send(posted(b"before"))
    response = await connection.response()
    assert (response.body, response.closes) == (b"before", False)
    return connection


async def _refused(side: Served) -> bool:
    try:
        connection = await side.connect()
    except ConnectionError:
        return True
    async with connection:
        await connection.send(posted(b"late"))
        return await connection.ended()


async def test_one_that_leaves_says_so_on_every_connection_and_takes_new_ones(side: Served, probe: Probe) -> None:
    kept, asking = await _asked(side), await side.connect()
    await asking.send(posted(b"under way", b"/held"))
    await until(lambda: "held 9" in probe.noted)
    side.server.leave()
    probe.release.set()
    fresh = await side.connect()
    for connection in (kept, fresh):
        await connection.send(posted(b"hello"))
    for connection, body in ((kept, b"hello"), (asking, b"under way"), (fresh, b"hello")):
        response = await connection.response()
        assert (response.closes, response.body) == (True, body)
        assert await connection.ended()
        connection.close()


async def test_one_that_leaves_answers_what_was_sent_ahead_or_says_that_it_does_not(side: Served, probe: Probe) -> None:
    async with await side.connect() as connection:
        await connection.send(posted(b"first", b"/held") + posted(b"second"))
        await until(lambda: "held 5" in probe.noted)
        side.server.leave()
        probe.release.set()
        response = await connection.response()
        assert response.body == b"first"
        if not response.closes:
            response = await connection.response()
            assert (response.closes, response.body) == (True, b"second")
        assert await connection.ended()


async def test_one_that_leaves_lets_a_stream_end(side: Served, probe: Probe) -> None:
    async with await side.connect() as connection:
        await connection.send(posted(b"", b"/streamed"))
        await connection.reader.readuntil(b"data: 1\n\n")
        side.server.leave()
        side.server.stop()
        probe.release.set()
        assert (await connection.rest()).endswith(b"0\r\n\r\n")


async def test_one_that_stops_answers_what_is_under_way_and_takes_nothing_new(side: Served, probe: Probe) -> None:
    asking, idle = await side.connect(), await _asked(side)
    await asking.send(posted(b"under way", b"/held"))
    await until(lambda: "held 9" in probe.noted)
    side.server.stop()
    assert await idle.ended()
    idle.close()
    assert await _refused(side)
    probe.release.set()
    response = await asking.response()
    assert (response.closes, response.body) == (True, b"under way")
    assert await asking.ended()
    asking.close()


async def test_one_that_stops_still_answers_on_a_connection_it_said_was_kept(side: Served) -> None:
    kept, silent = await _asked(side), await side.connect()
    await asyncio.sleep(0.02)  # the server takes the silent one
    side.server.stop()
    for connection in (kept, silent):
        await connection.send(posted(b"just now"))
    for connection in (kept, silent):
        response = await connection.response()
        assert (response.closes, response.body) == (True, b"just now")
        assert await connection.ended()
        connection.close()


async def test_one_that_stops_waits_for_nobody_who_asks_nothing(probe: Probe) -> None:
    async with served(probe, drain_seconds=30.0) as side:
        idle = [await _asked(side), await side.connect(), await side.connect()]
        await idle[2].send(b"POST /echo HT")
        side.server.stop()
        for connection in idle:
            async with asyncio.timeout(15):  # well within the thirty seconds of a head and of a drain
                assert await connection.ended()
            connection.close()


async def test_one_that_stops_gives_up_what_takes_too_long(probe: Probe) -> None:
    async with served(probe, drain_seconds=1.0) as side, await side.connect() as connection:
        await connection.send(posted(b"hello", b"/held"))
        await until(lambda: "held 5" in probe.noted)
        side.server.stop()
        assert b" 200 " not in await connection.rest()
        await until(lambda: not probe.under_way)


async def test_the_end_without_connections_is_at_once(probe: Probe) -> None:
    async with Completions() as opened:
        server = made(opened, probe, drain_seconds=30.0)
        serving = asyncio.create_task(server.serve())
        await server.listening()
        server.stop()
        async with asyncio.timeout(15):
            await serving


async def test_one_that_is_stopped_while_it_starts_ends_without_an_error(probe: Probe) -> None:
    """At each turn of the loop until it listens: a stop may come at any of them."""
    for turns in range(40):
        async with Completions() as opened:
            server = made(opened, probe, drain_seconds=30.0, websocket_bytes=1024)
            serving, listening = asyncio.create_task(server.serve()), asyncio.create_task(server.listening())
            for _ in range(turns):
                await asyncio.sleep(0)
            server.stop()
            async with asyncio.timeout(30):
                await serving
                outcomes = await asyncio.gather(listening, return_exceptions=True)
            assert isinstance(outcomes[0], int | NeverListenedError), turns


async def test_a_port_that_cannot_be_had_is_told(side: Served, probe: Probe) -> None:
    async with Completions() as opened:
        with pytest.raises(SystemExit):
            await made(opened, probe, port=side.port).serve()


async def test_head_and_errors_of_one_that_leaves_end_their_connections(side: Served) -> None:
    side.server.leave()
    for sent, status in ((request(b"/unread", method=b"HEAD"), 200), (request(b"/empty"), 204)):
        async with await side.connect() as connection:
            await connection.send(sent)
            response = await connection.response(sent.split(b" ")[0].decode())
            assert (response.status, response.closes) == (status, True)
            assert await connection.ended()
