"""HTTP/2 of the native transport: answers, streams beside each other, bounds, and how a server leaves."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from h2.errors import ErrorCodes
from h2.exceptions import ProtocolError

from tests.controlplane.transport.http2_client import Http2Client, http2
from tests.controlplane.transport.probe import Probe
from tests.controlplane.transport.tls_side import NAME, Secured, secured
from tests.controlplane.waiting import until


@pytest.fixture
async def side(probe: Probe, tmp_path: Path) -> AsyncIterator[Secured]:
    """A server of the application, with generous bounds."""
    async with secured(probe, tmp_path, drain_seconds=20.0) as made:
        yield made


@pytest.fixture
async def client(side: Secured) -> AsyncIterator[Http2Client]:
    """A connection to it."""
    async with http2(side) as made:
        yield made


async def test_a_request_is_told_as_one_of_http1_is(client: Http2Client, probe: Probe) -> None:
    answer = await client.asked("/a%20b?c=d", b"hello", fields=[("x-name", "value")])
    told = json.loads(answer.body)
    assert (probe.scopes[0]["http_version"], probe.scopes[0]["scheme"]) == ("2", "https")
    assert (told["method"], told["path"]) == ("POST", "/a b")
    assert (told["raw_path"], told["query_string"], told["body"]) == ("/a%20b", "c=d", "hello")
    assert sorted(map(tuple, told["headers"])) == [("host", NAME), ("x-name", "value")]
    assert (answer.status, answer.fields["content-length"]) == (200, str(len(answer.body)))
    assert not {"connection", "transfer-encoding"} & set(answer.fields)


async def test_bodies_longer_than_any_window(client: Http2Client) -> None:
    body = bytes(range(256)) * 4000
    assert (await client.asked("/echo", body)).body == body


async def test_a_stream_flows(client: Http2Client, probe: Probe) -> None:
    number = await client.ask("/streamed")
    await client.until(lambda: client.exchanges[number].body)
    assert client.exchanges[number].body == b"data: 1\n\n"
    probe.release.set()
    assert (await client.answer(number)).body.endswith(b"data: [DONE]\n\n")
    assert (await client.asked("/empty")).status == 204


async def test_many_at_once_and_one_that_its_client_gives_up(client: Http2Client, probe: Probe) -> None:
    numbers = [await client.ask("/held", b"%d" % index) for index in range(100)]
    await until(lambda: probe.under_way == 100)
    await client.reset(numbers[50])
    await until(lambda: probe.noted.count("left /held") == 1)
    probe.release.set()
    for index, number in enumerate(numbers):
        if index != 50:
            assert (await client.answer(number)).body == b"%d" % index


async def test_a_client_that_dies_leaves_all_its_requests(side: Secured, probe: Probe) -> None:
    async with http2(side) as client:
        for _ in range(10):
            await client.ask("/held")
        await client.ask("/streamed")
        await until(lambda: probe.under_way == 11)
    await until(lambda: probe.under_way == 0)
    assert (probe.noted.count("left /held"), probe.noted.count("left /streamed")) == (10, 1)


async def test_a_failure_costs_its_own_stream(client: Http2Client, probe: Probe) -> None:
    held = await client.ask("/held")
    assert (await client.asked("/fails")).status == 500
    probe.release.set()
    assert (await client.answer(held)).status == 200


async def test_a_body_that_is_not_read_and_one_that_is_too_long(client: Http2Client) -> None:
    for path, status in (("/refused", 413), ("/unread", 200)):
        number = await client.ask(path, b"x" * 1000, ends=False)
        await client.until(lambda number=number: client.exchanges[number].over)
        assert client.exchanges[number].status == status
    assert (await client.asked("/echo", b"next")).body == b"next"


@pytest.mark.parametrize(
    "fields", [[("x-name", "x" * 70_000)], [(f"x-{index}", "y") for index in range(101)]], ids=["bytes", "fields"]
)
async def test_heads_are_bounded(side: Secured, probe: Probe, fields: list[tuple[str, str]]) -> None:
    async with http2(side) as client:
        await client.until(lambda: client.advertised.max_header_list_size)
        assert client.advertised.max_header_list_size == 64 * 1024
        client.state.remote_settings[6] = 1 << 20  # h2 would not send it
        client.state.remote_settings.acknowledge()
        answer = await client.asked("/echo", fields=fields)
        assert client.closed or answer.reset is not None or answer.status == 431
    assert probe.scopes == []


async def test_streams_are_bounded(client: Http2Client) -> None:
    await client.until(lambda: client.advertised.max_concurrent_streams < 1000)
    assert client.advertised.max_concurrent_streams == 256


def open_and_reset(client: Http2Client) -> int:
    """Number of the stream; nothing is sent yet."""
    number = client.state.get_next_available_stream_id()
    head = [(":method", "GET"), (":scheme", "https"), (":authority", NAME), (":path", "/held")]
    client.state.send_headers(number, head, end_stream=True)
    client.state.reset_stream(number)
    return number


async def test_a_client_that_opens_and_resets_many_streams_is_told_why_it_is_cut(client: Http2Client) -> None:
    for _ in range(60):  # in one packet: nothing comes to a connection that is closed
        open_and_reset(client)
    await client.flush()
    await client.until(lambda: client.closed)
    assert client.goaway == ErrorCodes.ENHANCE_YOUR_CALM


async def test_a_client_that_opens_and_resets_without_end_is_cut(client: Http2Client, probe: Probe) -> None:
    for _ in range(2000):
        if client.closed or client.goaway is not None:
            break
        try:
            number = open_and_reset(client)
        except ProtocolError:
            break
        if number % 50 == 1:
            await client.flush()
    await client.flush()
    await client.until(lambda: client.closed)
    # What the client still sends to a closed connection may cost it the last frame, unread.
    assert client.goaway in {ErrorCodes.ENHANCE_YOUR_CALM, None}
    await until(lambda: probe.under_way == 0)


@pytest.mark.parametrize(("path", "body"), [("/flood", b""), ("/echo", b"x" * 500_000)], ids=["stream", "whole"])
async def test_a_stream_whose_client_takes_nothing_ends_alone(
    probe: Probe, tmp_path: Path, path: str, body: bytes
) -> None:
    async with (
        secured(probe, tmp_path, send_seconds=0.4) as side,
        http2(side, window=1000, reads=False) as client,
    ):
        slow = await client.ask(path, body)
        await client.until(lambda: len(client.exchanges[slow].body) == 1000)
        while not (answer := client.exchanges[slow]).over:
            assert (await client.asked("/echo", b"others")).body == b"others"
            await asyncio.sleep(0.02)
        assert answer.reset is not None
        await until(lambda: probe.under_way == 0)
        assert (await client.asked("/echo", b"others")).body == b"others"


async def test_a_client_that_reads_nothing_at_all_is_cut(probe: Probe, tmp_path: Path) -> None:
    probe.limit = 8_000_001
    async with (
        secured(probe, tmp_path, send_seconds=0.4) as side,
        http2(side, window=2**31 - 1) as client,
    ):
        client.state.increment_flow_control_window(2**30)
        await client.asked("/echo", b"hello")
        client.pause()
        for _ in range(20):
            await client.ask("/flood")
        await until(lambda: probe.under_way == 20)
        await until(lambda: probe.under_way == 0 and side.server.connections == 0)


async def test_a_server_that_leaves_says_so_and_ends_what_is_under_way(side: Secured, probe: Probe) -> None:
    async with http2(side) as client, http2(side) as idle:
        assert (await idle.asked("/echo", b"hello")).body == b"hello"
        held = await client.ask("/held", b"under way")
        await until(lambda: probe.under_way == 1)
        side.server.leave()
        await idle.until(lambda: idle.closed)
        await client.until(lambda: client.goaway is not None)
        assert (client.goaway, idle.goaway, client.exchanges[held].over) == (0, 0, False)
        probe.release.set()
        assert (await client.answer(held)).body == b"under way"
        await client.until(lambda: client.closed)
        async with http2(side) as late:  # requests are still taken, each with word to go elsewhere
            assert (await late.asked("/echo", b"late")).body == b"late"
            await late.until(lambda: late.closed)
            assert late.goaway == 0


async def test_a_server_that_stops_waits_for_nobody_who_asks_nothing(probe: Probe, tmp_path: Path) -> None:
    async with (
        secured(probe, tmp_path, drain_seconds=30.0) as side,
        http2(side) as silent,
        http2(side) as idle,
    ):
        await idle.asked("/echo")
        async with asyncio.timeout(15):
            side.server.stop()
            await idle.until(lambda: idle.closed)
            await silent.until(lambda: silent.closed)


async def test_an_idle_connection_ends_with_word_of_it(probe: Probe, tmp_path: Path) -> None:
    async with secured(probe, tmp_path, head_seconds=0.3) as side, http2(side) as client:
        await client.asked("/echo")
        await client.until(lambda: client.closed)
        assert client.goaway == 0


async def test_a_flood_of_pings_ends_its_connection(side: Secured, client: Http2Client) -> None:
    async with http2(side) as flooding:
        for _ in range(200):
            for _ in range(1000):
                flooding.state.ping(b"12345678")
            await flooding.flush()
            if flooding.closed:
                break
        await flooding.until(lambda: flooding.closed)
    for _ in range(200):  # as many as clients measure a connection by
        client.state.ping(b"12345678")
    assert (await client.asked("/echo", b"fine")).body == b"fine"
