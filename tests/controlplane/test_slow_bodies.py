"""Clients of both ports whose requests are too long, do not come, or are not what they announce."""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from cachefleet_controlplane.wiring.control_plane import ControlPlane
from cachefleet_controlplane.wiring.replica_bounds import ReplicaBounds
from cachefleet_controlplane.wiring.replica_process import servers
from tests.controlplane.gateway.harness import engine
from tests.controlplane.wiring.test_control_plane import settings

pytestmark = pytest.mark.usefixtures("hurried")

GENEROUS = 30
SHORT = 0.5
TRIES = 10
LIMIT = 100_000
GATEWAY = ("gateway", b"/v1/completions")
INTERNAL = ("internal", b"/admin/v1/explain")
PORTS = pytest.mark.parametrize(("port", "path"), [GATEWAY, INTERNAL])


@dataclass
class Asked:
    """One connection."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def told(self) -> bytes:
        """All that is said until the connection ends, be it by a reset."""
        try:
            return await asyncio.wait_for(self.reader.read(), GENEROUS)
        except ConnectionError:
            return b""

    async def status(self) -> int:
        line = await asyncio.wait_for(self.reader.readline(), GENEROUS)
        return int(line.split()[1])


@dataclass
class Ports:
    """Where the two ports are."""

    gateway: int
    internal: int

    @asynccontextmanager
    async def ask(self, port: str, sent: bytes) -> AsyncIterator[Asked]:
        reader, writer = await asyncio.open_connection("127.0.0.1", getattr(self, port))
        try:
            writer.write(sent)
            yield Asked(reader, writer)
        finally:
            writer.transport.abort()


@pytest.fixture
async def ports(tmp_path: Path) -> AsyncIterator[Ports]:
    bounds = ReplicaBounds(head_seconds=SHORT, stall_seconds=SHORT, admin_bytes=LIMIT)
    changes = {"request_body_seconds": 4 * SHORT, "request_max_bytes": LIMIT}
    async with engine() as worker:
        told = settings(tmp_path, worker, {"gateway": 0, "internal": 0}, **changes)
        async with ControlPlane(told, bounds) as plane:
            both = servers(plane, told)
            serving = [asyncio.create_task(server.serve()) for server in both]
            yield Ports(*[await server.listening() for server in both])
            for server in both:
                server.stop()
            await asyncio.gather(*serving)


def head(path: bytes, *lines: bytes) -> bytes:
    start = (b"POST " + path + b" HTTP/1.1", b"host: x", b"authorization: Bearer for-people")
    return b"\r\n".join((*start, b"content-type: application/json", *lines, b"", b""))


def length(size: int) -> bytes:
    return b"content-length: %d" % size


def chunk(data: bytes) -> bytes:
    return b"%x\r\n" % len(data) + data + b"\r\n"


@PORTS
@pytest.mark.parametrize("said", [b"", b"POST ", b"POST / HTTP/1.1\r\nhost: x\r\naut"])
async def test_a_client_without_a_whole_head_is_closed(ports: Ports, port: str, path: bytes, said: bytes) -> None:
    async with ports.ask(port, said) as asked:
        assert await asked.told() == b""


@PORTS
@pytest.mark.parametrize("body", [b"", b'{"prompt"'])
async def test_a_body_that_stalls_ends_its_connection(ports: Ports, port: str, path: bytes, body: bytes) -> None:
    async with ports.ask(port, head(path, length(1000)) + body) as asked:
        assert await asked.status() == 408


@PORTS
async def test_chunks_that_stall_end_their_connection(ports: Ports, port: str, path: bytes) -> None:
    async with ports.ask(port, head(path, b"transfer-encoding: chunked") + chunk(b"{") + b"5\r\nab") as asked:
        assert await asked.status() == 408


@PORTS
async def test_a_body_that_drips_has_an_end_as_well(ports: Ports, port: str, path: bytes) -> None:
    async with ports.ask(port, head(path, length(1_000_00))) as asked:

        async def drip() -> None:
            while True:
                asked.writer.write(b" ")
                await asyncio.sleep(SHORT / 5)

        dripping = asyncio.create_task(drip())
        told = await asked.told()
        dripping.cancel()
    assert told == b"" or b" 408 " in told


@PORTS
async def test_a_slow_body_that_keeps_coming_is_answered(ports: Ports, port: str, path: bytes) -> None:
    """In all it takes longer than a pause may. Other work on the machine lengthens pauses: then it is tried again."""
    for _ in range(TRIES):
        if (status := await _slowly(ports, port, path)) == 200:
            return
        assert status == 408
    pytest.fail(f"none of {TRIES} was answered")


async def _slowly(ports: Ports, port: str, path: bytes) -> int:
    body = b'{"model":"fake","prompt":"hello","max_tokens":1}'
    async with ports.ask(port, head(path, length(len(body)))) as asked:
        for piece in (body[:10], body[10:20], body[20:30], body[30:]):
            await asyncio.sleep(SHORT / 3)
            asked.writer.write(piece)
        try:
            return await asked.status()
        except (ConnectionError, IndexError):  # closed meanwhile: the answer may be lost to what was still sent
            return 408


@PORTS
async def test_a_length_over_the_limit_is_refused_before_the_body(ports: Ports, port: str, path: bytes) -> None:
    async with ports.ask(port, head(path, length(LIMIT + 1))) as asked:
        assert await asked.status() == 413
        assert b"connection: close" in (await asked.told()).lower()


@PORTS
async def test_who_sends_it_all_before_reading_is_told_of_the_413(ports: Ports, port: str, path: bytes) -> None:
    """Without a lingering end the kernel would throw the answer away."""
    async with ports.ask(port, head(path, length(100 * LIMIT))) as asked:
        for _ in range(100):
            asked.writer.write(b" " * LIMIT)
            await asked.writer.drain()
        assert await asked.status() == 413


@PORTS
async def test_chunks_over_the_limit_are_a_413(ports: Ports, port: str, path: bytes) -> None:
    async with ports.ask(port, head(path, b"transfer-encoding: chunked")) as asked:
        for _ in range(20):
            asked.writer.write(chunk(b" " * (LIMIT // 10)))
            await asked.writer.drain()
        assert await asked.status() == 413


@PORTS
@pytest.mark.parametrize(
    "lines",
    [
        (b"content-length: -1",),
        (b"content-length: many",),
        (b"content-length: 2", b"content-length: 3"),
        (b"content-length: 2", b"transfer-encoding: chunked"),
        (b"content-length: " + b"9" * 30,),
    ],
)
async def test_a_length_that_is_none_is_refused(ports: Ports, port: str, path: bytes, lines: tuple[bytes, ...]) -> None:
    async with ports.ask(port, head(path, *lines) + b"{}") as asked:
        told = await asked.told()
    assert told == b"" or told.startswith((b"HTTP/1.1 400 ", b"HTTP/1.1 413 ")), told[:200]


@PORTS
async def test_what_comes_after_the_announced_length_is_not_the_body(ports: Ports, port: str, path: bytes) -> None:
    async with ports.ask(port, head(path, length(2)) + b'{}"model":"fake"}') as asked:
        told = await asked.told()
    first, *others = re.findall(rb"HTTP/1.1 (\d+) ", told)
    assert first == (b"400" if port == "gateway" else b"200")  # what an empty object asks
    assert others in ([], [b"400"])


@PORTS
async def test_both_ports_live_on(ports: Ports, port: str, path: bytes) -> None:
    body = b'{"model":"fake","prompt":"hello","max_tokens":1}'
    async with ports.ask(port, head(path, length(10**9))) as first:
        assert await first.status() == 413
    async with ports.ask(port, head(path, length(len(body))) + body) as asked:
        assert await asked.status() == 200


async def test_agents_stay_connected_longer_than_a_body_may_take(ports: Ports) -> None:
    """A WebSocket is no body."""
    greeting = (
        b"GET /v1/reports HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: websocket\r\n"
        b"sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
        b"sec-websocket-protocol: cachefleet.reports.v1\r\nauthorization: Bearer for-agents\r\n\r\n"
    )
    probe = b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n"
    async with ports.ask("internal", probe) as asked:
        assert await asked.status() == 200
        await asyncio.wait_for(asked.reader.readuntil(b"ok\n"), GENEROUS)
        asked.writer.write(greeting)
        assert await asked.status() == 101
        await asyncio.wait_for(asked.reader.readuntil(b"\r\n\r\n"), GENEROUS)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asked.reader.read(1), 8 * SHORT)
