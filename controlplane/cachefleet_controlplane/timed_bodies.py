"""Middleware of the internal port that ends requests whose body is slow; the gateway bounds its bodies itself."""

from __future__ import annotations

import asyncio

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send


class TimedBodies:
    """Answers 408 where a body takes longer than ``seconds``, or nothing of it comes for ``stall_seconds``."""

    def __init__(self, app: ASGIApp, *, seconds: float, stall_seconds: float) -> None:
        self._app = app
        self._seconds = seconds
        self._stall_seconds = stall_seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI's."""
        if scope["type"] == "http":
            receive = _TimedBody(receive, self._seconds, self._stall_seconds).receive
        await self._app(scope, receive, send)


class _TimedBody:
    def __init__(self, receive: Receive, seconds: float, stall_seconds: float) -> None:
        self._receive = receive
        self._stall_seconds = stall_seconds
        self._end = asyncio.get_running_loop().time() + seconds
        self._whole = False

    async def receive(self) -> Message:
        """ASGI's; HTTPException, which the application answers."""
        if self._whole:
            return await self._receive()
        stalls = asyncio.get_running_loop().time() + self._stall_seconds
        try:
            async with asyncio.timeout_at(min(self._end, stalls)):
                message = await self._receive()
        except TimeoutError as error:
            raise HTTPException(408, "The request's body did not arrive in time.") from error
        self._whole = not message.get("more_body", False)
        return message
