"""Workers at https URLs: verified by authorities that change and their pool's name."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from cachefleet_controlplane.gateway.send.client import Upstream
from cachefleet_controlplane.gateway.send.outcome import Outcome
from cachefleet_controlplane.gateway.send.worker_tls import WorkerTls, WorkerTrust
from cachefleet_controlplane.transport.completions import Completions
from cachefleet_core.tls_names import AUTHORITIES, CERTIFICATE, PRIVATE_KEY, worker_server_name
from cachefleet_operator.certificates.certificate import Pair
from cachefleet_runtime.tls import TrustedAuthorities, server_context
from tests.fakes.secret_volume import SecretVolume, authority, issued

NAME = worker_server_name("default/demo")
OTHER = worker_server_name("default/other")
EVENTS = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
REFUSED = "the certificate of a worker is refused"


@dataclass
class Worker:
    """Serves TLS; each request is answered with the number of its connection, /stream with a stream of its body."""

    volume: SecretVolume
    url: str = ""
    connections: int = 0
    cut: asyncio.Event = field(default_factory=asyncio.Event)
    serving: set[asyncio.Task[None]] = field(default_factory=set)

    def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.serving.add(asyncio.create_task(self.serve(reader, writer)))

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        number = b"%d" % self.connections
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).lower()
                length = int(head.partition(b"content-length: ")[2].split(b"\r\n")[0])
                body = await reader.readexactly(length)
                if b" /stream " in head:
                    await self._stream(reader, writer, body)
                else:
                    writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(number) + number)
        writer.close()

    async def _stream(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, body: bytes) -> None:
        writer.write(EVENTS)
        for event in body.split(b","):
            writer.write(b"%x\r\ndata: %b\n\n\r\n" % (len(event) + 8, event))
            await writer.drain()
        if body.endswith(b"..."):
            with suppress(ConnectionError):
                assert await reader.read() == b""
            self.cut.set()
        else:
            writer.write(b"0\r\n\r\n")


@dataclass
class Side:
    """A client of a worker, and what it trusts."""

    upstream: Upstream
    worker: Worker
    trusted: SecretVolume

    async def asked(self) -> tuple[Outcome, bytes]:
        opened = await self.upstream.open(self.worker.url, "/x", b"{}", headers=[])
        return opened.outcome, b"" if opened.answer is None else opened.answer.body


@pytest.fixture
async def side(tmp_path: Path) -> AsyncIterator[Side]:
    """Both of one authority."""
    async with running(tmp_path, authority()) as made:
        yield made


@asynccontextmanager
async def running(
    folder: Path, signing: Pair, names: tuple[str, ...] = (NAME,), *, tls: bool = True
) -> AsyncIterator[Side]:
    worker = Worker(SecretVolume(folder / "worker", issued(signing, *names)))
    trusted = SecretVolume(folder / "trusted", {AUTHORITIES: signing.pem})
    verified = WorkerTls(TrustedAuthorities(trusted.folder / AUTHORITIES), lambda _: NAME) if tls else None
    async with AsyncExitStack() as stack:
        completions = await stack.enter_async_context(Completions())
        context = server_context(worker.volume.folder)
        server = await asyncio.start_server(worker.accept, "127.0.0.1", 0, ssl=context)
        await stack.enter_async_context(server)
        worker.url = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        upstream = Upstream(completions, connect_seconds=5, idle_seconds=30, tls=verified)
        async with upstream:
            yield Side(upstream, worker, trusted)
        await asyncio.gather(*worker.serving)


async def test_a_connection_is_used_again(side: Side) -> None:
    assert [await side.asked() for _ in range(3)] == [(Outcome.ANSWERED, b"1")] * 3


async def test_long_bodies_and_streams(side: Side) -> None:
    sent = b",".join([b"x" * 1000] * 2000)
    opened = await side.upstream.open(side.worker.url, "/stream", sent, headers=[])
    assert (opened.outcome, opened.stream is not None) == (Outcome.FIRST_EVENT, True)
    assert opened.stream is not None
    events = opened.stream.first
    while more := await opened.stream.more():
        events += more
    assert b"".join(events) == b"".join(b"data: %b\n\n" % (b"x" * 1000) for _ in range(2000))
    opened.stream.close()
    assert await side.asked() == (Outcome.ANSWERED, b"1")


async def test_a_stream_that_is_given_up_is_cut(side: Side) -> None:
    opened = await side.upstream.open(side.worker.url, "/stream", b"1,...", headers=[])
    assert opened.stream is not None
    opened.stream.close()
    async with asyncio.timeout(30):
        await side.worker.cut.wait()
    assert await side.asked() == (Outcome.ANSWERED, b"2")


async def test_another_authority_is_refused_and_logged_once(side: Side, caplog: pytest.LogCaptureFixture) -> None:
    side.worker.volume.put(issued(authority(), NAME))
    assert [await side.asked() for _ in range(3)] == [(Outcome.UNREACHABLE, b"")] * 3
    told = [record.message for record in caplog.records if REFUSED in record.message]
    assert told == [f"{REFUSED}: no authority that is trusted has issued it"]


async def test_another_name_is_refused(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with running(tmp_path, authority(), (OTHER, "127.0.0.1", "localhost")) as side:
        assert await side.asked() == (Outcome.UNREACHABLE, b"")
    assert f"{REFUSED}: it has another name than the worker's" in caplog.messages


async def test_authorities_that_are_replaced_hold_for_the_next_connection(side: Side) -> None:
    assert (await side.asked())[1] == b"1"
    other = authority()
    side.trusted.put({AUTHORITIES: other.pem})
    assert (await side.asked())[0] is Outcome.UNREACHABLE  # also where one of before waits
    side.worker.volume.put(issued(other, NAME))
    assert (await side.asked())[0] is Outcome.ANSWERED
    side.trusted.put({AUTHORITIES: b"broken"})  # half of a change
    assert (await side.asked())[0] is Outcome.ANSWERED


async def test_who_presents_an_authority_s_own_certificate_is_refused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    signing = authority()
    async with running(tmp_path, signing) as side:
        side.worker.volume.put({CERTIFICATE: signing.pem, PRIVATE_KEY: signing.key_pem})
        assert (await side.asked())[0] is Outcome.UNREACHABLE
    assert f"{REFUSED}: it is an authority's (CA:TRUE), not one that an authority has issued" in caplog.messages


async def test_a_worker_without_tls_is_unreachable(side: Side, caplog: pytest.LogCaptureFixture) -> None:
    async with await asyncio.start_server(_plain, "127.0.0.1", 0) as server:
        side.worker.url = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        assert (await side.asked())[0] is Outcome.UNREACHABLE
    assert f"{REFUSED}: the worker does not speak TLS" in caplog.messages


async def _plain(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read(1)
    writer.write(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n")
    writer.close()


async def test_a_handshake_that_stalls_is_bounded(tmp_path: Path) -> None:
    signing = authority()
    trusted = SecretVolume(tmp_path / "trusted", {AUTHORITIES: signing.pem})
    tls = WorkerTls(TrustedAuthorities(trusted.folder / AUTHORITIES), lambda _: NAME)
    silent, ended = asyncio.Event(), asyncio.Event()

    async def hold(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await silent.wait()
        writer.close()
        ended.set()

    async with (
        Completions() as completions,
        Upstream(completions, connect_seconds=0.1, idle_seconds=30, tls=tls) as upstream,
        await asyncio.start_server(hold, "127.0.0.1", 0) as server,
    ):
        url = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        assert (await upstream.open(url, "/x", b"{}", headers=[])).outcome is Outcome.UNREACHABLE
        silent.set()
        await ended.wait()


async def test_what_no_pool_has_is_verified_as_a_server_of_the_web(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the machine's authorities, and the host of its URL."""
    signing = authority()
    machine = tmp_path / "machine.pem"
    machine.write_bytes(signing.pem)
    monkeypatch.setenv("SSL_CERT_FILE", str(machine))
    async with running(tmp_path, authority(), tls=False) as side:
        side.worker.volume.put(issued(signing, "localhost"))
        assert (await side.asked())[0] is Outcome.UNREACHABLE  # the host of its URL is an address
        side.worker.url = side.worker.url.replace("127.0.0.1", "localhost")
        assert (await side.asked())[0] is Outcome.ANSWERED


async def test_a_machine_without_authorities_asks_nobody_by_tls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "none.pem"))
    async with running(tmp_path, authority(), tls=False) as side:
        assert (await side.asked())[0] is Outcome.UNREACHABLE
    assert any("a worker cannot be asked: [Errno 2]" in message for message in caplog.messages)


def test_authorities_that_are_replaced_are_read_anew(tmp_path: Path) -> None:
    trusted = SecretVolume(tmp_path / "trusted", {AUTHORITIES: authority().pem})
    trust = WorkerTrust(WorkerTls(TrustedAuthorities(trusted.folder / AUTHORITIES), lambda _: NAME))
    first, name = trust.of("https://a")
    assert (first is not None, name) == (True, NAME)
    assert trust.of("https://b")[0] is first
    assert trust.of("http://b") == (None, "")
    trusted.put({AUTHORITIES: authority().pem})
    assert trust.of("https://a")[0] not in {first, None}
