"""Contexts that follow their files, with real handshakes at loopback."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from cachefleet_core.tls_names import AUTHORITIES, CERTIFICATE, PRIVATE_KEY
from cachefleet_runtime.tls import TrustedAuthorities, client_context, server_context, settled
from tests.fakes.secret_volume import SecretVolume, authority, issued

Context = ssl.SSLContext | bool


@asynccontextmanager
async def serving(context: ssl.SSLContext) -> AsyncIterator[int]:
    """A server that sends each line back; its port."""

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while line := await reader.readline():
                writer.write(line)
        writer.close()

    server = await asyncio.start_server(echo, "127.0.0.1", 0, ssl=context)
    async with server:
        yield server.sockets[0].getsockname()[1]


class Client:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self.names = [name for _, name in writer.get_extra_info("peercert")["subjectAltName"]]
        self.version = writer.get_extra_info("ssl_object").version()

    async def echo(self) -> bytes:
        self._writer.write(b"x\n")
        return await self._reader.readline()

    async def close(self) -> None:
        self._writer.close()
        with suppress(OSError):
            await self._writer.wait_closed()


async def connected(port: int, context: Context, name: str) -> Client:
    return Client(*await asyncio.open_connection("127.0.0.1", port, ssl=context, server_hostname=name))


async def names_at(port: int, context: Context, name: str) -> list[str]:
    client = await connected(port, context, name)
    await client.close()
    return client.names


async def test_each_handshake_presents_the_certificate_of_the_moment(tmp_path: Path) -> None:
    root = authority()
    volume = SecretVolume(tmp_path / "tls", issued(root, "same", "first"))
    trusted = client_context(root.pem.decode())
    async with serving(server_context(volume.folder)) as port:
        before = await connected(port, trusted, "same")
        assert (before.names, before.version) == (["first", "same"], "TLSv1.3")
        for turn in ("second", "third", "fourth"):
            volume.put(issued(root, "same", turn))
            assert await names_at(port, trusted, "same") == sorted(["same", turn])
        assert await before.echo() == b"x\n"  # an open connection goes on
        await before.close()


async def test_who_names_no_server_gets_the_newest_too(tmp_path: Path) -> None:
    root = authority()
    volume = SecretVolume(tmp_path / "tls", issued(root, "first", "127.0.0.1"))
    trusted = client_context(root.pem.decode())
    async with serving(server_context(volume.folder)) as port:
        volume.put(issued(root, "second", "127.0.0.1"))
        assert "second" in await names_at(port, trusted, "127.0.0.1")


@pytest.mark.parametrize("broken", ["another key", "no certificate", "no file"])
async def test_a_pair_that_does_not_fit_changes_nothing_until_it_does(tmp_path: Path, broken: str) -> None:
    root = authority()
    first, second = issued(root, "a"), issued(root, "a", "b")
    volume = SecretVolume(tmp_path / "tls", first)
    trusted = client_context(root.pem.decode())
    wrong = {
        "another key": {**first, CERTIFICATE: second[CERTIFICATE]},
        "no certificate": {**first, CERTIFICATE: b"nothing"},
        "no file": {AUTHORITIES: first[AUTHORITIES]},
    }[broken]
    async with serving(server_context(volume.folder)) as port:
        volume.put(wrong)
        assert await names_at(port, trusted, "a") == ["a"]
        assert await names_at(port, trusted, "a") == ["a"]
        volume.put(second)
        assert await names_at(port, trusted, "a") == ["a", "b"]


async def test_a_client_trusts_what_its_file_names_now(tmp_path: Path) -> None:
    old, new = authority(), authority()
    volume = SecretVolume(tmp_path / "client", {AUTHORITIES: old.pem})
    server = SecretVolume(tmp_path / "server", issued(old, "a"))
    trusted = TrustedAuthorities(volume.folder / AUTHORITIES)
    async with serving(server_context(server.folder)) as port:
        assert await names_at(port, trusted.context(), "a")
        server.put(issued(new, "a"))
        with pytest.raises(ssl.SSLCertVerificationError):
            await names_at(port, trusted.context(), "a")
        volume.put({AUTHORITIES: old.pem + new.pem})
        assert await names_at(port, trusted.context(), "a")
        volume.put({AUTHORITIES: b"\xff nothing"})  # cannot be used
        assert await names_at(port, trusted.context(), "a")
        server.put(issued(old, "a"))
        volume.put({AUTHORITIES: new.pem})
        with pytest.raises(ssl.SSLCertVerificationError):  # what is not trusted any more
            await names_at(port, trusted.context(), "a")


async def test_another_name_and_old_versions_are_refused(tmp_path: Path) -> None:
    root = authority()
    volume = SecretVolume(tmp_path / "tls", issued(root, "demo.serving.workers.cachefleet.internal"))
    trusted = client_context(root.pem.decode())
    async with serving(server_context(volume.folder)) as port:
        with pytest.raises(ssl.SSLCertVerificationError):
            await names_at(port, trusted, "other.serving.workers.cachefleet.internal")
        trusted.minimum_version = ssl.TLSVersion.TLSv1_2
        trusted.maximum_version = ssl.TLSVersion.TLSv1_2
        with pytest.raises(OSError):
            await names_at(port, trusted, "demo.serving.workers.cachefleet.internal")


def test_a_context_that_has_not_changed_is_the_same(tmp_path: Path) -> None:
    volume = SecretVolume(tmp_path / "client", {AUTHORITIES: authority().pem})
    trusted = TrustedAuthorities(volume.folder / AUTHORITIES)
    assert trusted.context() is trusted.context()
    assert TrustedAuthorities(None).context() is True


@pytest.mark.parametrize("missing", [CERTIFICATE, PRIVATE_KEY])
def test_without_a_pair_there_is_no_server(tmp_path: Path, missing: str) -> None:
    data = issued(authority(), "a")
    del data[missing]
    with pytest.raises(OSError, match=missing):
        server_context(SecretVolume(tmp_path / "tls", data).folder)


def test_a_pair_replaced_while_it_is_read_first_is_read_again(tmp_path: Path) -> None:
    volume, root = SecretVolume(tmp_path / "tls", issued(authority(), "a")), authority()
    files, tried = [volume.folder / CERTIFICATE, volume.folder / PRIVATE_KEY], list[str]()

    def load() -> bytes:
        """Reads the certificate of one turn and the key of another."""
        certificate = files[0].read_bytes()
        if len(tried) < 2:
            volume.put(issued(root, f"turn-{len(tried)}"))
            tried.append("mixed")
            raise ssl.SSLError("key values mismatch")
        return certificate

    _, read = settled(files, load)
    assert (read, tried) == (files[0].read_bytes(), ["mixed", "mixed"])


def test_a_pair_that_never_fits_is_told_at_once(tmp_path: Path) -> None:
    data = issued(authority(), "a") | {PRIVATE_KEY: issued(authority(), "b")[PRIVATE_KEY]}
    with pytest.raises(ssl.SSLError, match=r"(?i)mismatch"):
        server_context(SecretVolume(tmp_path / "tls", data).folder)
