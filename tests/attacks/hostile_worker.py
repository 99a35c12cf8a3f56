"""A worker that answers whatever it is told to, byte by byte; protocol-true in nothing."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass

from tests.controlplane.gateway.harness import MODEL

JSON = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"
STREAM = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
ANSWER = (
    b'{"id":"c","object":"chat.completion","created":1,"model":"%s","choices":[{"index":0,"message":{"role":"assistant",'
    b'"content":"hi"},"finish_reason":"stop"}],"usage":{"prompt_tokens":3,"completion_tokens":1,"total_tokens":4}}'
) % MODEL.encode()


@dataclass
class HostileWorker:
    """``answer`` is what each request gets, after which the connection ends."""

    url: str = ""
    answer: Iterable[bytes] = ()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Read a request and answer it."""
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            head = await reader.readuntil(b"\r\n\r\n")
            length = next((line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")), b":0")
            await reader.readexactly(int(length.split(b":")[1]))
            for piece in self.answer if b"/chat/" in head.split(b"\r\n")[0] else (JSON, b"content-length: 2\r\n\r\n{}"):
                writer.write(piece)
                await writer.drain()
        writer.close()


@contextlib.asynccontextmanager
async def hostile_worker() -> AsyncIterator[HostileWorker]:
    """One on a port of its own."""
    worker = HostileWorker()
    server = await asyncio.start_server(worker.serve, "127.0.0.1", 0)
    worker.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield worker
    finally:
        server.close()


def whole(body: bytes, headers: bytes = b"") -> tuple[bytes, ...]:
    """A whole answer with further header lines."""
    return (JSON + headers + b"content-length: %d\r\n\r\n" % len(body), body)


def chunked(*pieces: bytes) -> tuple[bytes, ...]:
    """A stream of these pieces, with its end."""
    return (STREAM, *(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces), b"0\r\n\r\n")
