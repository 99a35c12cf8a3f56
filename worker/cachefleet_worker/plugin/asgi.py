"""The HTTP that the plugin's routes need, on plain ASGI: bounded bodies, JSON, bytes, streams."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, MutableMapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import parse_qsl

import msgspec

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]
Headers = tuple[tuple[bytes, bytes], ...]

CLOSE: Headers = ((b"connection", b"close"),)
"""Header of a response sent before the rest of the body was read."""
_LENGTHS: Final = frozenset({b"content-length", b"transfer-encoding"})


class HttpError(Exception):
    """An error response, with a stable code and a message for people."""

    def __init__(self, status: int, code: str, message: str, headers: Headers = ()) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.headers = headers


@dataclass(frozen=True, slots=True)
class Request:
    """One request; ``path`` is below the mount prefix."""

    method: str
    path: str
    query: dict[str, str]
    headers: dict[bytes, bytes]
    receive: Receive

    @classmethod
    def of(cls, scope: Scope, receive: Receive, *, prefix: str = "") -> Request:
        """The request of an ASGI scope; its path is cut after ``prefix``, so a proxy's own prefix does not matter."""
        path = scope["path"]
        query = dict(parse_qsl(scope.get("query_string", b"").decode("latin-1"), keep_blank_values=True))
        below = path.partition(prefix)[2] if prefix else path
        return cls(scope["method"], below, query, dict(scope["headers"]), receive)

    async def body(self, limit: int, *, seconds: float) -> bytes:
        """The whole body. HttpError: 413 above ``limit`` bytes, 408 after ``seconds``, 400 where the client leaves."""
        length = self.headers.get(b"content-length", b"")
        if length.isdigit() and int(length[:20]) > limit:
            raise _too_large(limit)
        try:
            async with asyncio.timeout(seconds):
                return await self._read(limit)
        except TimeoutError:
            raise HttpError(408, "slow_body", f"the body did not come within {seconds:g} s", CLOSE) from None

    async def _read(self, limit: int) -> bytes:
        parts: list[bytes] = []
        size = 0
        more = True
        while more:
            message = await self.receive()
            if message["type"] != "http.request":
                raise HttpError(400, "disconnected", "the client went away")
            parts.append(message.get("body", b""))
            size += len(parts[-1])
            if size > limit:
                raise _too_large(limit)
            more = message.get("more_body", False)
        return b"".join(parts)


def _too_large(limit: int) -> HttpError:
    return HttpError(413, "too_large", f"the body is over {limit} bytes", CLOSE)


@dataclass(frozen=True, slots=True)
class Response:
    """A response; ``content`` whole, or streamed in parts."""

    content: bytes | AsyncIterator[bytes]
    status: int = 200
    media_type: str = "application/json"
    headers: Headers = ()

    async def send(self, send: Send) -> None:
        """Send the response. A stream that fails is left unfinished, so that the client sees that it is not whole."""
        headers = [(b"content-type", self.media_type.encode()), (b"cache-control", b"no-store"), *self.headers]
        if isinstance(self.content, bytes):
            headers.append((b"content-length", str(len(self.content)).encode()))
        await send({"type": "http.response.start", "status": self.status, "headers": headers})
        if isinstance(self.content, bytes):
            await send({"type": "http.response.body", "body": self.content})
            return
        try:
            async for part in self.content:
                await send({"type": "http.response.body", "body": part, "more_body": True})
        finally:
            if (close := getattr(self.content, "aclose", None)) is not None:
                await close()
        await send({"type": "http.response.body", "body": b""})


def json_response(value: object, status: int = 200, headers: Headers = ()) -> Response:
    """A response with ``value`` as JSON."""
    return Response(msgspec.json.encode(value), status, headers=headers)


def error_response(error: HttpError) -> Response:
    """The JSON response of an error: its code and message."""
    return json_response({"error": {"code": error.code, "message": str(error)}}, error.status, error.headers)


def with_length(message: MutableMapping[str, Any], length: int, *, without: Collection[bytes] = ()) -> dict[str, Any]:
    """A request's scope, or a response's start, for a body of this length; it loses headers ``without``."""
    headers = [(name, value) for name, value in message["headers"] if name not in _LENGTHS and name not in without]
    return {**message, "headers": [*headers, (b"content-length", str(length).encode())]}


def replayed_body(body: bytes, receive: Receive) -> Receive:
    """Gives the body as one message; then what else is received."""
    pending = [{"type": "http.request", "body": body, "more_body": False}]

    async def replay() -> Any:
        return pending.pop() if pending else await receive()

    return replay
