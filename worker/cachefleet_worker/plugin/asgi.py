"""The little of HTTP that the plugin's routes need, straight on ASGI: bounded bodies, JSON, bytes, streams."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl

import msgspec

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


class HttpError(Exception):
    """An answer other than 200, with a stable code and a message for people."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code


@dataclass(frozen=True, slots=True)
class Request:
    """One request; ``path`` is below the mount."""

    method: str
    path: str
    query: dict[str, str]
    headers: dict[bytes, bytes]
    receive: Receive

    @classmethod
    def of(cls, scope: Scope, receive: Receive) -> Request:
        path = scope["path"].removeprefix(scope.get("root_path", ""))
        query = dict(parse_qsl(scope.get("query_string", b"").decode("latin-1"), keep_blank_values=True))
        return cls(scope["method"], path, query, dict(scope["headers"]), receive)

    async def body(self, limit: int) -> bytes:
        """The whole body. HttpError 413 above ``limit`` bytes, 400 where the client goes away."""
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
                raise HttpError(413, "too_large", f"the body is over {limit} bytes")
            more = message.get("more_body", False)
        return b"".join(parts)


@dataclass(frozen=True, slots=True)
class Response:
    """What is answered: ``content`` whole, or in parts as they come."""

    content: bytes | AsyncIterator[bytes]
    status: int = 200
    media_type: str = "application/json"
    headers: tuple[tuple[bytes, bytes], ...] = ()

    async def send(self, send: Send) -> None:
        headers = [(b"content-type", self.media_type.encode()), (b"cache-control", b"no-store"), *self.headers]
        if isinstance(self.content, bytes):
            headers.append((b"content-length", str(len(self.content)).encode()))
        await send({"type": "http.response.start", "status": self.status, "headers": headers})
        if isinstance(self.content, bytes):
            await send({"type": "http.response.body", "body": self.content})
            return
        async for part in self.content:
            await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body", "body": b""})


def json_response(value: object, status: int = 200) -> Response:
    return Response(msgspec.json.encode(value), status)


def error_response(error: HttpError) -> Response:
    return json_response({"error": {"code": error.code, "message": str(error)}}, error.status)
