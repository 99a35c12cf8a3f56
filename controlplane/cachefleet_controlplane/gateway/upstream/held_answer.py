"""A request that one worker has rendered and holds: its block keys, and its answer when it is told to go on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, Final, NamedTuple, Protocol

import aiohttp
from multidict import CIMultiDict

from cachefleet_core.engine.held_requests import GO, HEAD, KEYS, Head, HoldError, read_head, split

PIECE_BYTES: Final = 64 * 1024
"""A longer body is written piece by piece."""


class Held(Protocol):
    """A request that a worker holds, until it is told to answer or its connection is cut."""

    def take(self) -> bool:
        """Whether it can be answered: once."""
        ...

    def drop(self) -> None:
        """Have the worker drop the request, where it is not to be answered."""
        ...

    def close(self) -> None:
        """Cut the connection: the worker drops the request."""
        ...

    async def answered(self, members: bytes = b"") -> Any:
        """Have the worker answer; return its response (a ``WorkerResponse``) once its head is here.

        ``members`` of the body may come late (LateMembers), as JSON. OSError, HoldError.
        """
        ...


class HeldKeys(NamedTuple):
    """A held request, and the document of its block keys."""

    held: Held
    keys: bytes


class HeldBody:
    """A request's body in two parts; the second comes with ``go``."""

    def __init__(self, body: bytes) -> None:
        self._body = body
        self._members = b""
        self._going = asyncio.Event()

    def go(self, members: bytes = b"") -> None:
        """Send the second part, with late members."""
        self._members = members
        self._going.set()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for start in range(0, len(self._body), PIECE_BYTES):
            yield self._body[start : start + PIECE_BYTES]
        await self._going.wait()
        yield GO + self._members


class HeldAnswer:
    """A held request's connection; ``body`` is what was sent of it.

    After ``answered`` it is read as an aiohttp response is, with status and headers of the answer itself.
    """

    def __init__(self, response: aiohttp.ClientResponse, body: HeldBody) -> None:
        self._response = response
        self._body = body
        self._rest = b""
        self._head: Head | None = None
        self._free = True

    @property
    def content(self) -> HeldAnswer:
        """Where the answer's body is read."""
        return self

    def take(self) -> bool:
        """Whether it can be answered: once."""
        free, self._free = self._free, False
        return free

    def drop(self) -> None:
        """Have the worker drop the request, where it is not to be answered."""
        if self.take():
            self.close()

    async def keys(self) -> bytes | None:
        """Return the document of the prompt's block keys; None where the answer comes without one. HoldError."""
        kind, payload = await self._frame()
        if kind == KEYS:
            self._read_on(reading=False)
            return payload
        self._head = read_head(payload)
        return None

    async def answered(self, members: bytes = b"") -> HeldAnswer:
        """Have the worker answer, with late ``members``, and read the answer's head; return this, to be read as a
        response. HoldError.
        """
        self._body.go(members)
        self._read_on(reading=True)
        if self._head is None:
            kind, payload = await self._frame()
            if kind != HEAD:
                raise HoldError("no head of an answer")
            self._head = read_head(payload)
        return self

    @property
    def status(self) -> int:
        """Status of the answer."""
        return self._known.status

    @property
    def raw_headers(self) -> list[tuple[bytes, bytes]]:
        """Headers of the answer."""
        return [(name.encode("latin-1"), value.encode("latin-1")) for name, value in self._known.headers]

    @property
    def headers(self) -> CIMultiDict[str]:
        """The same, to look names up in."""
        return CIMultiDict(self._known.headers)

    @property
    def content_type(self) -> str:
        """Its type, without parameters."""
        return self.headers.get("content-type", "").partition(";")[0].strip().lower()

    async def readany(self) -> bytes:
        """Return the next part of the answer's body; b"" at its end."""
        rest, self._rest = self._rest, b""
        return rest or await self._response.content.readany()

    def release(self) -> None:
        """Give the connection back."""
        self._response.release()

    def close(self) -> None:
        """Cut the connection: the worker drops the request."""
        self._response.close()

    @property
    def _known(self) -> Head:
        if self._head is None:
            raise RuntimeError("read before it was answered")
        return self._head

    def _read_on(self, *, reading: bool) -> None:
        """Read the connection or, while the worker waits for word, do not: that is no silence of its own."""
        protocol = self._response.connection.protocol if self._response.connection else None
        if protocol is not None:  # else it has ended
            (protocol.resume_reading if reading else protocol.pause_reading)()

    async def _frame(self) -> tuple[bytes, bytes]:
        data = self._rest
        while (found := split(data)) is None:
            part = await self._response.content.readany()
            if not part:
                raise aiohttp.ClientPayloadError("a held request ended without an answer")
            data += part
        kind, payload, self._rest = found
        return kind, payload
