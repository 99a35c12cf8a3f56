"""An HTTP client that sends bytes as they are given, and reads answers without forgiving anything."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass
from typing import Final, Self

PATIENCE_SECONDS: Final = 60.0
"""Ends a hang; nothing is decided by it."""
_HEAD_BYTES: Final = 1024 * 1024
_WITHOUT_BODY: Final = (204, 304)


@dataclass(frozen=True)
class Response:
    """One answer as it came; ``fields`` in their order, names in lower case, without Date."""

    line: bytes
    fields: tuple[tuple[bytes, bytes], ...]
    body: bytes = b""
    chunks: tuple[bytes, ...] = ()
    """Where the body was chunked; where one write ends and the next begins is the server's affair."""

    @property
    def status(self) -> int:
        return int(self.line.split()[1])

    def field(self, name: bytes) -> bytes | None:
        """The one value of a field; None without one."""
        values = [value for given, value in self.fields if given == name]
        assert len(values) <= 1, self
        return values[0] if values else None

    @property
    def closes(self) -> bool:
        return self.field(b"connection") == b"close"

    def told(self) -> tuple[int, tuple[tuple[bytes, bytes], ...], frozenset[tuple[bytes, bytes]], bytes]:
        """What both transports must say alike, but for the reason phrase and where framing fields stand."""
        framing = {b"connection", b"content-length", b"transfer-encoding"}
        others = tuple(field for field in self.fields if field[0] not in framing)
        return self.status, others, frozenset(set(self.fields) - set(others)), self.body


class Connection:
    """One connection to a server."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def send(self, *pieces: bytes) -> None:
        """Send pieces, each by a write of its own."""
        for piece in pieces:
            self.writer.write(piece)
            await self.writer.drain()

    async def flood(self, pieces: Iterable[bytes]) -> int:
        """Send until the server takes no more or says something; how many bytes were taken."""
        sent = 0
        with contextlib.suppress(ConnectionError):
            for piece in pieces:
                self.writer.write(piece)
                await self.writer.drain()
                sent += len(piece)
                if self.reader.at_eof() or self.reader._buffer:  # type: ignore[attr-defined] # what has come
                    break
        return sent

    async def response(self, method: str = "GET") -> Response:
        """The next answer, read exactly to its end; IncompleteReadError where the connection ends before."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            head = await self.reader.readuntil(b"\r\n\r\n")
            response = parsed_head(head)
            bare = response.status < 200 or response.status in _WITHOUT_BODY
            if method == "HEAD" or bare:
                return response
            return await self._body(response)

    async def _body(self, response: Response) -> Response:
        length, coding = response.field(b"content-length"), response.field(b"transfer-encoding")
        chunks: tuple[bytes, ...] = ()
        if coding is not None:
            assert (coding, length) == (b"chunked", None), response
            chunks = tuple([chunk async for chunk in self._chunks()])
            body = b"".join(chunks)
        elif length is not None:
            body = await self.reader.readexactly(int(length))
        else:
            body = await self.reader.read()
        return Response(response.line, response.fields, body, chunks)

    async def _chunks(self) -> AsyncIterator[bytes]:
        while size := int(await self.reader.readuntil(b"\r\n"), 16):
            yield await self.reader.readexactly(size)
            assert await self.reader.readexactly(2) == b"\r\n"
        assert await self.reader.readexactly(2) == b"\r\n"

    async def rest(self) -> bytes:
        """All that still comes until the connection ends, be it by a reset."""
        told = bytearray()
        with contextlib.suppress(ConnectionError):
            async with asyncio.timeout(PATIENCE_SECONDS):
                while piece := await self.reader.read(65536):
                    told += piece
        return bytes(told)

    async def ended(self) -> bool:
        """Whether the connection ends without another byte."""
        return await self.rest() == b""

    def half_close(self) -> None:
        """Say that nothing more comes; answers can still be read."""
        self.writer.write_eof()

    def reset(self) -> None:
        """End the connection by a reset, as a client that dies."""
        self.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()

    def close(self) -> None:
        self.writer.transport.abort()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()


async def connected(port: int, *, receive_bytes: int = 0) -> Connection:
    """A connection to a port of this machine; ``receive_bytes`` bounds what the kernel holds of an answer."""
    made = socket.socket()
    made.settimeout(0)
    if receive_bytes:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
    try:
        await asyncio.get_running_loop().sock_connect(made, ("127.0.0.1", port))
    except OSError:
        made.close()
        raise
    limit = receive_bytes or _HEAD_BYTES
    return Connection(*await asyncio.open_connection(sock=made, limit=limit))


def parsed_head(head: bytes) -> Response:
    """A head's line and fields."""
    line, *lines = head.removesuffix(b"\r\n\r\n").split(b"\r\n")
    assert line.startswith((b"HTTP/1.1 ", b"HTTP/1.0 ")), head
    fields = (field.split(b":", 1) for field in lines)
    return Response(line, tuple((n.lower(), v.strip(b" ")) for n, v in fields if n.lower() != b"date"))


def request(target: bytes = b"/", *fields: bytes, method: bytes = b"GET", version: bytes = b"1.1") -> bytes:
    """A request's head."""
    return b"\r\n".join((b"%s %s HTTP/%s" % (method, target, version), b"host: x", *fields, b"", b""))


def posted(body: bytes, target: bytes = b"/echo", *fields: bytes) -> bytes:
    """A request with a body of known length."""
    return request(target, b"content-length: %d" % len(body), *fields, method=b"POST") + body


def chunk(data: bytes, extension: bytes = b"") -> bytes:
    """A chunk of a chunked body."""
    return b"%x%s\r\n%s\r\n" % (len(data), extension, data)


def chunked(*pieces: bytes, target: bytes = b"/echo", fields: tuple[bytes, ...] = (), trailer: bytes = b"") -> bytes:
    """A request with a chunked body of these pieces."""
    head = request(target, b"transfer-encoding: chunked", *fields, method=b"POST")
    return head + b"".join(map(chunk, pieces)) + b"0\r\n" + trailer + b"\r\n"
