"""A TCP relay of our own, as the kernel here has no netem: it notes, delays, keeps back or refuses."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress


class Relay:
    """Stands before one address. ``delay`` holds each piece back by so many seconds, in order."""

    def __init__(self, host: str, port: int) -> None:
        self._target = host, port
        self._open = asyncio.Event()
        self._open.set()
        self._refuses = False
        self._writers: set[asyncio.StreamWriter] = set()
        self._passing: set[asyncio.Task[None]] = set()
        self.delay = 0.0
        self.port = 0
        self.connections = 0
        """How many were asked for, refused ones included."""
        self.asked: list[bytearray] = []
        """All bytes that clients sent, by connection."""
        self.answered: list[bytearray] = []

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Relay]:
        server = await asyncio.start_server(self._accepted, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            server.close()
            self.cut()
            for passing in list(self._passing):
                passing.cancel()
            await asyncio.gather(*self._passing, return_exceptions=True)

    @contextmanager
    def silent(self) -> Iterator[None]:
        """Half open: connections stay, new ones are made, and nothing passes."""
        self._open.clear()
        try:
            yield
        finally:
            self._open.set()

    @contextmanager
    def refusing(self) -> Iterator[None]:
        """Nobody is there: what is open is cut, and new connections end at once."""
        self._refuses = True
        self.cut()
        try:
            yield
        finally:
            self._refuses = False

    def cut(self) -> None:
        """End all connections without a word."""
        for writer in list(self._writers):
            writer.transport.abort()

    async def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        passing = asyncio.current_task()
        assert passing is not None
        self._passing.add(passing)
        passing.add_done_callback(self._passing.discard)
        self._writers.add(writer)
        try:
            with suppress(OSError):
                if not self._refuses:
                    there = await asyncio.open_connection(*self._target)
                    self._writers.add(there[1])
                    self.asked.append(asked := bytearray())
                    self.answered.append(answered := bytearray())
                    await asyncio.gather(self._copy(reader, there[1], asked), self._copy(there[0], writer, answered))
                    self._writers.discard(there[1])
        finally:
            self._writers.discard(writer)
            writer.transport.abort()

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, passed: bytearray) -> None:
        with suppress(OSError):
            while data := await reader.read(65536):
                passed += data
                await asyncio.sleep(self.delay)
                await self._open.wait()
                writer.write(data)
                await writer.drain()
        writer.close()
