"""The server's side of one HTTP exchange: the body in, bounded; the answer out; and whether the client is still there.

Types are ASGI's own; nothing of a framework stands between uvicorn and the hot routes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, MutableMapping
from typing import Any, Final

from cachefleet_controlplane.gateway.errors import ApiError
from cachefleet_controlplane.gateway.headers import Header

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

JSON: Final[Header] = (b"content-type", b"application/json")
_CLOSE: Final = {"connection": "close"}


class ClientGoneError(Exception):
    """The client went away before its answer ended."""


class Reply:
    """The answer to one request; ``started`` and ``ended`` tell how far it is.

    A client that takes nothing for ``seconds`` counts as gone: it would hold a worker for ever.
    """

    def __init__(self, send: Send, *, seconds: float) -> None:
        self._asgi_send = send
        self._seconds = seconds
        self.started = False
        self.ended = False
        self.status = 0

    async def start(self, status: int, headers: Iterable[Header]) -> None:
        self.started = True
        self.status = status
        await self._send({"type": "http.response.start", "status": status, "headers": list(headers)})

    async def write(self, data: bytes) -> None:
        """Returns once the client has taken enough: a slow client slows the worker, not our memory."""
        await self._send({"type": "http.response.body", "body": data, "more_body": True})

    async def end(self, data: bytes = b"") -> None:
        self.ended = True
        await self._send({"type": "http.response.body", "body": data})

    async def whole(self, status: int, headers: Iterable[Header], body: bytes) -> None:
        await self.start(status, [*headers, (b"content-length", b"%d" % len(body))])
        await self.end(body)

    async def error(self, error: ApiError, headers: Iterable[Header] = ()) -> None:
        await self.whole(error.status, [JSON, *error.headers, *headers], error.body)

    async def _send(self, message: Message) -> None:
        try:
            async with asyncio.timeout(self._seconds):
                await self._asgi_send(message)
        except TimeoutError as error:
            raise ClientGoneError from error


async def read_body(scope: Scope, receive: Receive, *, limit: int, seconds: float) -> bytes:
    """The whole body. ApiError 413 over ``limit`` bytes, 408 where it takes over ``seconds``; ClientGoneError."""
    _check_length(scope, limit)
    try:
        async with asyncio.timeout(seconds):
            return await _read(receive, limit)
    except TimeoutError as error:
        raise ApiError(408, f"The body did not arrive within {seconds:g} s.", headers=_CLOSE) from error


async def while_present(work: Coroutine[Any, Any, None], receive: Receive, reply: Reply) -> bool:
    """Run ``work``; cancel it as soon as the client goes. False where that was so. ``work``'s own errors pass."""
    task = asyncio.ensure_future(work)
    watch = asyncio.ensure_future(_disconnected(receive))
    try:
        await asyncio.wait({task, watch}, return_when=asyncio.FIRST_COMPLETED)
        gone = not task.done() and not reply.ended
        if task.done() or not gone:
            await task
        return not gone
    finally:
        watch.cancel()
        if not task.done():
            task.cancel()
            await asyncio.wait({task})


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _read(receive: Receive, limit: int) -> bytes:
    pieces: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGoneError
        pieces.append(message.get("body", b""))
        size += len(pieces[-1])
        if size > limit:
            raise _too_large(limit)
        if not message.get("more_body"):
            return b"".join(pieces)


def _check_length(scope: Scope, limit: int) -> None:
    length = next((value for name, value in scope["headers"] if name == b"content-length"), b"")
    if length.isdigit() and int(length) > limit:
        raise _too_large(limit)


def _too_large(limit: int) -> ApiError:
    return ApiError(413, f"The body is larger than {limit} bytes.", headers=_CLOSE)
