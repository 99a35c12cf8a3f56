"""Clients that leave, half or wholly, at each point of an exchange, and clients that read slowly or not at all."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from tests.controlplane.transport.probe import PIECE, Probe
from tests.controlplane.transport.raw_client import Connection, chunk, connected, posted, request
from tests.controlplane.transport.transports import Served, served
from tests.controlplane.waiting import until

Leave = Callable[[Connection], None]
LEAVES = pytest.mark.parametrize("leave", [Connection.close, Connection.reset, Connection.half_close])


async def _lives(side: Served) -> None:
    async with await side.connect() as connection:
        await connection.send(posted(b"hello"))
        assert (await connection.response()).body == b"hello"


@LEAVES
@pytest.mark.parametrize("sent", [b"", b"P", b"POST /echo HTTP/1.1\r\nhost: x\r\nconte"])
async def test_who_leaves_within_a_head_asked_nothing(side: Served, probe: Probe, sent: bytes, leave: Leave) -> None:
    async with await side.connect() as connection:
        await connection.send(sent)
        leave(connection)
        assert b" 200 " not in await connection.rest()
        assert not probe.scopes
    await _lives(side)


@LEAVES
@pytest.mark.parametrize("sent", [b"", b"some"])
async def test_who_leaves_within_a_body_ends_its_reading(side: Served, probe: Probe, sent: bytes, leave: Leave) -> None:
    async with await side.connect() as connection:
        await connection.send(request(b"/echo", b"content-length: 100", method=b"POST") + sent)
        await until(lambda: "asked" in probe.noted)
        leave(connection)
        await until(lambda: not probe.under_way)
        assert probe.noted in (["asked", "left /echo"], ["asked", "gone /echo"])
        assert b" 200 " not in await connection.rest()
    await _lives(side)


@LEAVES
async def test_who_leaves_within_chunks_ends_their_reading(side: Served, probe: Probe, leave: Leave) -> None:
    async with await side.connect() as connection:
        await connection.send(
            request(b"/echo", b"transfer-encoding: chunked", method=b"POST") + chunk(b"a") + b"5\r\nab"
        )
        await until(lambda: "asked" in probe.noted)
        leave(connection)
        await until(lambda: not probe.under_way)
        assert not any(note.startswith(("read", "answered")) for note in probe.noted)


@LEAVES
async def test_who_leaves_before_its_answer_ends_the_work_at_once(side: Served, probe: Probe, leave: Leave) -> None:
    async with await side.connect() as connection:
        await connection.send(posted(b"hello", b"/held"))
        await until(lambda: "held 5" in probe.noted)
        leave(connection)
        await until(lambda: not probe.under_way)
        assert probe.noted[1:] == ["left /held"]
        assert await connection.rest() == b""
    await _lives(side)


@LEAVES
async def test_who_leaves_within_its_answer_ends_the_work_at_once(side: Served, probe: Probe, leave: Leave) -> None:
    async with await side.connect() as connection:
        await connection.send(posted(b"", b"/streamed"))
        await connection.reader.readuntil(b"data: 1\n\n")
        leave(connection)
        await until(lambda: not probe.under_way)
        assert probe.noted == ["left /streamed"]


@LEAVES
async def test_who_leaves_with_more_requests_sent_has_none_of_them_served(
    side: Served, probe: Probe, leave: Leave
) -> None:
    async with await side.connect() as connection:
        await connection.send(posted(b"first", b"/held") + posted(b"second") + posted(b"third"))
        await until(lambda: "held 5" in probe.noted)
        leave(connection)
        await until(lambda: not probe.under_way)
        probe.release.set()
        await _lives(side)
        assert [note for note in probe.noted if note.startswith("read")] == ["read 5"]  # of who lives


async def test_who_was_answered_and_leaves_left_nothing(side: Served, probe: Probe) -> None:
    async with await side.connect() as connection:
        await connection.send(posted(b"hello"))
        await connection.response()
    await until(lambda: "answered /echo" in probe.noted)
    assert probe.noted == ["asked", "read 5", "answered /echo"]


async def test_one_that_leaves_is_no_other(side: Served, probe: Probe) -> None:
    async with await side.connect() as stays, await side.connect() as leaves:
        for connection in (stays, leaves):
            await connection.send(posted(b"hello", b"/held"))
        await until(lambda: probe.noted == ["held 5", "held 5"])
        leaves.close()
        await until(lambda: probe.under_way == 1)
        probe.release.set()
        assert (await stays.response()).body == b"hello"


@asynccontextmanager
async def _flooded(seconds: float) -> AsyncIterator[tuple[Served, Probe, Connection]]:
    probe = Probe(send_seconds=seconds)
    async with served(probe) as side, await connected(side.port, receive_bytes=4096) as connection:
        await connection.send(request(b"/flood"))
        yield side, probe, connection


async def test_a_client_that_does_not_read_counts_as_gone() -> None:
    async with _flooded(0.3) as (_, probe, __):
        await until(lambda: bool(probe.noted))
        await until(lambda: not probe.under_way)
        assert probe.noted[-1] in {"gone /flood", "left /flood"}
        assert probe.noted.count("wrote") * len(PIECE) < 16 << 20  # what the sockets' own buffers hold


async def test_a_client_that_reads_slowly_bounds_what_waits_for_it() -> None:
    async with _flooded(30) as (side, probe, connection):
        await _still(probe)
        before = len(probe.noted)
        assert before * len(PIECE) < 16 << 20
        taken = 0
        while len(probe.noted) == before:  # it goes on once there is room
            taken += len(await asyncio.wait_for(connection.reader.read(4096), 30))
        assert taken
        await _lives(side)


async def _still(probe: Probe) -> None:
    """Until nothing more is written."""
    before = -1
    while before != len(probe.noted) or not probe.noted:
        before = len(probe.noted)
        await asyncio.sleep(0.05)


async def test_a_client_that_leaves_with_an_answer_full_of_data_is_noticed() -> None:
    async with _flooded(30) as (_, probe, connection):
        await _still(probe)
        connection.reset()
        await until(lambda: not probe.under_way)
