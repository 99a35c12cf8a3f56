"""An answer of server-sent events, which ends with its client, with its server, or where a client reads no more."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Final

from starlette.types import Receive, Scope, Send

SEND_SECONDS: Final = 20.0
"""A client that has not taken an event for so long is gone."""
_HEADERS: Final = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),
]


def event(name: str, data: bytes) -> bytes:
    """One event; ``data`` is one line."""
    return b"event: " + name.encode() + b"\ndata: " + data + b"\n\n"


class EventStream:
    """An ASGI answer that sends ``events`` until they end or the client goes away."""

    def __init__(self, events: AsyncIterator[bytes]) -> None:
        self._events = events

    async def __call__(self, _scope: Scope, receive: Receive, send: Send) -> None:
        sending = asyncio.create_task(self._send(send), name="events")
        leaving = asyncio.create_task(_left(receive), name="events-client")
        try:
            await asyncio.wait({sending, leaving}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (sending, leaving):
                task.cancel()
            await asyncio.wait({sending, leaving})
        if not sending.cancelled() and (error := sending.exception()) is not None and not _is_slow(error):
            raise error

    async def _send(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": list(_HEADERS)})
        async for piece in self._events:
            async with asyncio.timeout(SEND_SECONDS):
                await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


def _is_slow(error: BaseException) -> bool:
    return isinstance(error, (TimeoutError, OSError))


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
