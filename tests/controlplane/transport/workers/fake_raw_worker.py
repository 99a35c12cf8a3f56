"""A fake worker that answers byte by byte what a test says, and notes what it is sent and when it is left."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final

_HEAD_BYTES: Final = 1 << 20


class End(Enum):
    """How a connection ends where an answer's steps say so; without one it is kept."""

    CLOSE = "close"
    RESET = "reset"
    SILENCE = "silence"
    """It stays open, and nothing more is said until the client leaves."""


Step = bytes | End | asyncio.Event | float
"""Bytes to send, an end, an event to wait for, or seconds to wait."""


@dataclass
class FakeRawWorker:
    """``answers`` are given in their order, the last one again and again; each is a list of steps."""

    answers: list[list[Step]] = field(default_factory=list)
    url: str = ""
    path: bytes = b""
    """The path that ``answers`` are for; "" for all."""
    others: list[Step] = field(default_factory=list)
    """Answers requests for another path."""
    early: bool = False
    """Answer after a request's head, and read its body afterwards."""
    connections: int = 0
    answered: int = 0
    requests: list[bytes] = field(default_factory=list)
    by_connection: list[int] = field(default_factory=list)
    """Of each request, the number of its connection."""
    steps: int = 0
    """Taken so far, of all answers."""
    left: int = 0
    """Connections that the client has ended."""
    open: int = 0
    idle_bytes: bytes = b""
    """Sent after each answer, unasked."""
    idle: asyncio.Event = field(default_factory=asyncio.Event)
    """Set once ``idle_bytes`` were sent."""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection."""
        number, self.connections, self.open = self.connections, self.connections + 1, self.open + 1
        try:
            while await self._served(reader, writer, number):
                pass
        except (ConnectionError, asyncio.IncompleteReadError):
            self.left += 1
        finally:
            self.open -= 1
            writer.close()

    async def _served(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int) -> bool:
        """Serve one request; whether the connection goes on."""
        head = await reader.readuntil(b"\r\n\r\n")
        body = b"" if self.early else await _body(reader, head)
        steps = self._answer(head.split(b" ")[1])
        self.requests.append(head + body)
        self.by_connection.append(number)
        for step in steps:
            if not await self._step(step, reader, writer):
                return False
        if self.early:
            await _body(reader, head)
        if self.idle_bytes:
            writer.write(self.idle_bytes)
            await writer.drain()
            self.idle.set()
        return True

    def _answer(self, path: bytes) -> list[Step]:
        if self.path and path != self.path:
            return self.others
        before, self.answered = self.answered, self.answered + 1
        return self.answers[min(before, len(self.answers) - 1)]

    async def _step(self, step: Step, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        self.steps += 1
        match step:
            case bytes():
                writer.write(step)
                await writer.drain()
            case asyncio.Event():
                await step.wait()
            case End.CLOSE:
                return False
            case End.RESET:
                _reset(writer)
                return False
            case End.SILENCE:
                while await reader.read(65536):
                    pass
                raise ConnectionResetError
            case _:
                assert isinstance(step, float)
                await asyncio.sleep(step)
        return True


async def _body(reader: asyncio.StreamReader, head: bytes) -> bytes:
    lines = head.lower().split(b"\r\n")
    length = next((line.split(b":")[1] for line in lines if line.startswith(b"content-length:")), b"0")
    return await reader.readexactly(int(length))


def _reset(writer: asyncio.StreamWriter) -> None:
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


@asynccontextmanager
async def fake_raw_worker(*answers: Iterable[Step], **options: Any) -> AsyncIterator[FakeRawWorker]:
    """One on a port of its own, with these answers; options as its other members."""
    worker = FakeRawWorker([list(answer) for answer in answers], **options)
    tasks: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        with contextlib.suppress(asyncio.CancelledError):
            await worker.serve(reader, writer)
        tasks.discard(task)

    server = await asyncio.start_server(serve, "127.0.0.1", 0, limit=_HEAD_BYTES)
    worker.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield worker
    finally:
        server.close()
        for task in list(tasks):
            task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.gather(*tasks, return_exceptions=True)


def head(*fields: bytes, status: bytes = b"200 OK", version: bytes = b"1.1") -> bytes:
    """An answer's head."""
    return b"\r\n".join((b"HTTP/%s %s" % (version, status), *fields, b"", b""))


JSON: Final = b"content-type: application/json"
STREAM: Final = b"content-type: text/event-stream"
CHUNKED: Final = b"transfer-encoding: chunked"


def whole(body: bytes = b"{}", *fields: bytes, status: bytes = b"200 OK") -> bytes:
    """A whole answer of known length."""
    return head(JSON, b"content-length: %d" % len(body), *fields, status=status) + body


def chunk(data: bytes) -> bytes:
    """A chunk of a chunked answer; of no data, its end."""
    return b"%x\r\n%s\r\n" % (len(data), data)


def streamed(*pieces: bytes) -> bytes:
    """A chunked stream of these pieces, with its end."""
    return head(STREAM, CHUNKED) + b"".join(map(chunk, pieces)) + b"0\r\n\r\n"
