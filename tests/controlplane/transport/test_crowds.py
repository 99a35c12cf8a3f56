"""Many connections at once, and one that floods beside others; told by the order of events, never by time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest

from tests.controlplane.transport.probe import Probe
from tests.controlplane.transport.raw_client import chunk, posted, request
from tests.controlplane.transport.transports import Served, served
from tests.controlplane.waiting import until


@pytest.fixture(params=[1, 4])
async def side(request: pytest.FixtureRequest, probe: Probe) -> AsyncIterator[Served]:
    """A server on so many threads."""
    async with served(probe, threads=request.param) as made:
        yield made


CROWD = 1000
FLOOD = 4000
OTHERS = 10
TURNS = 5


async def test_a_thousand_connections_are_all_served(side: Served, probe: Probe) -> None:
    connections = [await side.connect() for _ in range(CROWD)]
    for number, connection in enumerate(connections):
        await connection.send(posted(b"%d" % number, b"/held"))
    await until(lambda: probe.under_way == CROWD)
    probe.release.set()
    for number, connection in enumerate(connections):
        assert (await connection.response()).body == b"%d" % number
    for connection in connections:
        connection.close()


async def test_a_thousand_that_leave_at_once_leave_nothing(side: Served, probe: Probe) -> None:
    connections = [await side.connect() for _ in range(CROWD)]
    for connection in connections:
        await connection.send(posted(b"hello", b"/held"))
    await until(lambda: probe.under_way == CROWD)
    for connection in connections:
        connection.reset()
    await until(lambda: not probe.under_way)
    assert probe.noted.count("left /held") == CROWD


async def test_a_thousand_streams_each_go_on(side: Served, probe: Probe) -> None:
    connections = [await side.connect() for _ in range(CROWD // 4)]
    for connection in connections:
        await connection.send(posted(b"", b"/streamed"))
    for connection in connections:
        await connection.reader.readuntil(b"data: 1\n\n")
    probe.release.set()
    for connection in connections:
        await connection.reader.readuntil(b"data: [DONE]\n\n")
        connection.close()


async def _others(side: Served) -> None:
    """Several clients, one after another, each with several requests."""
    for _ in range(OTHERS):
        async with await side.connect() as connection:
            for _ in range(TURNS):
                await connection.send(posted(b"mine"))
                assert (await connection.response()).body == b"mine"


async def test_who_sends_requests_without_end_takes_turns_with_others(side: Served) -> None:
    async with await side.connect() as flooding:
        served = 0

        async def flood() -> None:
            await flooding.send(posted(b"x") * FLOOD)

        async def count() -> None:
            nonlocal served
            while served < FLOOD:
                assert (await flooding.response()).status == 200
                served += 1

        tasks = [asyncio.create_task(flood()), asyncio.create_task(count())]
        await until(lambda: served > 0)
        await _others(side)
        assert 0 < served < FLOOD
        for task in tasks:
            task.cancel()


async def test_who_sends_a_body_without_end_takes_turns_with_others(side: Served, probe: Probe) -> None:
    probe.limit = 1 << 40
    piece = chunk(b"x" * 1000) * 50

    def endless() -> Iterator[bytes]:
        yield request(b"/dropped", b"transfer-encoding: chunked", method=b"POST")
        while True:
            yield piece

    async with await side.connect() as flooding:
        task = asyncio.create_task(flooding.flood(endless()))
        await until(lambda: bool(probe.scopes))
        await _others(side)
        assert not task.done()
        task.cancel()


async def test_who_takes_an_answer_without_end_takes_turns_with_others(side: Served, probe: Probe) -> None:
    async with await side.connect() as flooding:
        await flooding.send(request(b"/flood"))
        taken = 0

        async def take() -> None:
            nonlocal taken
            while piece := await flooding.reader.read(1 << 20):
                taken += len(piece)

        task = asyncio.create_task(take())
        await until(lambda: taken > 1 << 20)
        before = taken
        await _others(side)
        assert taken > before
        task.cancel()
    await until(lambda: not probe.under_way)
