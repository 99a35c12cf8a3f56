"""TLS of the public port: what is presented, to whom, and what follows when that is replaced."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from cachefleet_controlplane.transport.served_tls import ServedTls
from cachefleet_core.tls_names import CERTIFICATE, PRIVATE_KEY
from tests.controlplane.transport.probe import Probe
from tests.controlplane.transport.raw_client import posted, request
from tests.controlplane.transport.tls_side import Secured, pair, secured, trusting
from tests.controlplane.waiting import until

OTHER = "other.test"


@pytest.fixture
async def side(probe: Probe, tmp_path: Path) -> AsyncIterator[Secured]:
    """A server of the application, with generous bounds."""
    async with secured(probe, tmp_path) as made:
        yield made


async def test_requests_are_answered_and_know_that_they_came_by_tls(side: Secured, probe: Probe) -> None:
    async with await side.connect() as connection:
        for body in (b"hello", b"x" * 300_000):
            await connection.send(posted(body))
            response = await connection.response()
            assert (response.status, response.body) == (200, body)
        assert connection.writer.get_extra_info("ssl_object").version() == "TLSv1.3"
    assert [(scope["scheme"], scope["http_version"]) for scope in probe.scopes] == [("https", "1.1")] * 2
    assert side.server.origin.startswith("https://")


async def test_a_stream_flows_by_tls(side: Secured, probe: Probe) -> None:
    async with await side.connect() as connection:
        await connection.send(request(b"/streamed"))
        await connection.reader.readuntil(b"data: 1\n\n")
        probe.release.set()
        assert (await connection.reader.readuntil(b"0\r\n\r\n")).count(b"data: ") == 2


async def test_a_client_that_leaves_is_noticed(side: Secured, probe: Probe) -> None:
    connection = await side.connect()
    await connection.send(posted(b"hello", b"/held"))
    await until(lambda: "held 5" in probe.noted)
    connection.reset()
    await until(lambda: "left /held" in probe.noted)


async def test_a_pair_that_is_replaced_is_presented_and_connections_go_on(side: Secured) -> None:
    async with await side.connect() as kept:
        assert await side.presents("gateway.test")
        assert not await side.presents(OTHER)
        side.volume.put(pair(OTHER))
        await side.will_present(OTHER)
        assert not await side.presents("gateway.test")
        await kept.send(posted(b"still"))
        assert (await kept.response()).body == b"still"


async def test_a_broken_pair_keeps_the_one_before_and_is_logged_once(
    side: Secured, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, logger="cachefleet_runtime.tls")
    mixed = pair() | {PRIVATE_KEY: pair()[PRIVATE_KEY]}
    side.volume.put(mixed)
    while not _refused(caplog):
        assert await side.presents("gateway.test")
    for _ in range(3):
        assert await side.presents("gateway.test")
        await asyncio.sleep(0.05)
    assert len(_refused(caplog)) <= 2  # one for OpenSSL, one for native code
    side.volume.put(pair(OTHER))
    await side.will_present(OTHER)


def _refused(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [one.message for one in caplog.records if "stay in force" in one.message]


async def test_plain_http_and_old_tls_are_not_answered(side: Secured, probe: Probe) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", side.port)
    writer.write(request())
    assert b"200" not in await reader.read()
    writer.close()
    old = trusting()
    old.minimum_version = old.maximum_version = ssl.TLSVersion.TLSv1_2
    with pytest.raises((ssl.SSLError, ConnectionError)):
        await side.connect(old)
    assert probe.scopes == []


async def test_a_client_that_knows_http1_alone_gets_it(side: Secured) -> None:
    for context in (trusting(), trusting("http/1.1")):
        async with await side.connect(context) as connection:
            assert connection.writer.get_extra_info("ssl_object").selected_alpn_protocol() in {None, "http/1.1"}
            await connection.send(posted(b"hello"))
            assert (await connection.response()).line == b"HTTP/1.1 200 OK"


async def test_a_handshake_that_does_not_come_is_bounded_and_hinders_nobody(probe: Probe, tmp_path: Path) -> None:
    async with secured(probe, tmp_path, head_seconds=0.5) as side:
        silent = [await asyncio.open_connection("127.0.0.1", side.port) for _ in range(5)]
        silent[0][1].write(b"\x16\x03\x01")  # the beginning of one
        begun = time.monotonic()
        assert await side.presents("gateway.test")
        for reader, writer in silent:
            assert await asyncio.wait_for(reader.read(), 20) == b""
            writer.close()
        assert time.monotonic() - begun >= 0.4


@pytest.mark.parametrize(("path", "body"), [(b"/flood", b""), (b"/echo", b"x" * 8_000_000)], ids=["stream", "whole"])
async def test_a_client_that_takes_nothing_is_cut(probe: Probe, tmp_path: Path, path: bytes, body: bytes) -> None:
    probe.limit = len(body) + 1
    async with (
        secured(probe, tmp_path, send_seconds=0.4) as side,
        await side.connect() as connection,
    ):
        own: socket.socket = connection.writer.get_extra_info("socket")
        own.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)  # the kernel would take all of it by itself
        connection.writer.transport.pause_reading()  # type: ignore[attr-defined] # it is one that reads, too
        await connection.send(posted(body, path))
        await until(lambda: len(probe.scopes) == 1)
        await until(lambda: probe.under_way == 0 and side.server.connections == 0)


def test_a_folder_without_a_sound_pair_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No such file"):
        ServedTls(tmp_path)
    (tmp_path / CERTIFICATE).write_bytes(pair()[CERTIFICATE])
    (tmp_path / PRIVATE_KEY).write_bytes(pair()[PRIVATE_KEY])
    with pytest.raises(OSError, match="mismatch"):
        ServedTls(tmp_path)
