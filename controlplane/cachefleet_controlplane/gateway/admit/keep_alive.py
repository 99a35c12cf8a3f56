"""The layer that keeps a stream alive until its first token: comments, so that proxies do not cut what is silent.

Nothing changes for the request: what its attempts do, and how often, depends on what workers send, not on comments.
But the head of a stream goes with the first comment, so its status is 200 from then on, without the headers of a
decision, and whatever fails later is an event of the stream.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any, Final

from cachefleet_controlplane.gateway.apis.request_info import GENERATING, Endpoint
from cachefleet_controlplane.gateway.request.decision_trace import decision_headers
from cachefleet_controlplane.gateway.request.request import Layer, Request
from cachefleet_controlplane.wire.errors import ApiError
from cachefleet_controlplane.wire.headers import Header, has_any
from cachefleet_controlplane.wire.http_exchange import ClientGoneError, Reply, Scope
from cachefleet_core.pool.policy import MAX_KEEP_ALIVE_SECONDS

HEADER: Final = b"x-cachefleet-keep-alive"
COMMENT: Final = b": ping\n\n"
ANTHROPIC_PING: Final = b'event: ping\ndata: {"type": "ping"}\n\n'
STREAM: Final[tuple[Header, ...]] = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
)
_DIGITS: Final = 4
_ASKING: Final = frozenset({HEADER})


class KeepAlive:
    """Comments of one reply, from ``arm`` on each so many seconds until its answer begins."""

    def __init__(self, reply: Reply, *, seconds: float, headers: Sequence[Header], comment: bytes) -> None:
        self._reply = reply
        self._seconds = seconds
        self._headers = headers
        self._comment = comment
        self._timer: asyncio.TimerHandle | None = None
        self._sending: asyncio.Task[None] | None = None
        self._begun = False

    def arm(self) -> None:
        """Send a comment after so many seconds."""
        self._timer = asyncio.get_running_loop().call_later(self._seconds, self._fire)

    def stop(self) -> None:
        """Send no more."""
        if self._timer is not None:
            self._timer.cancel()

    async def over(self) -> bool:
        """Send no more, once what is being sent is; whether the head was sent."""
        self.stop()
        if self._sending is not None and not self._sending.done():
            await asyncio.wait([self._sending])
            self.stop()
        return self._begun

    def _fire(self) -> None:
        self._sending = asyncio.get_running_loop().create_task(self._send())

    async def _send(self) -> None:
        """Send a comment, with the head before the first. A client that is gone is told of by its disconnect."""
        try:
            if self._begun:
                await self._reply.write(self._comment)
            else:
                self._begun = True
                await self._reply.open_early(self._headers, self._comment)
        except ClientGoneError:
            return
        self.arm()


class KeepAliveLayer:
    """Has requests answered, those for a stream with comments while they wait where pool or header says so.

    ``by_message`` tells whether a request came as a message of a WebSocket, which has pings of its own.
    """

    def __init__(self, answer: Layer, by_message: Callable[[Scope], object]) -> None:
        self._answer = answer
        self._by_message = by_message

    def __call__(self, request: Request) -> Coroutine[Any, Any, None]:
        """Answer a request whose model is found. ApiError 400, at once, for a header out of its range."""
        seconds = keep_alive_seconds(request)
        alive = self._alive(request, seconds) if seconds else None
        answer = self._answer(request)
        return answer if alive is None else self._kept_alive(alive, answer)

    async def _kept_alive(self, alive: KeepAlive, answer: Coroutine[Any, Any, None]) -> None:
        alive.arm()
        try:
            await answer
        finally:
            alive.stop()

    def _alive(self, request: Request, seconds: int) -> KeepAlive | None:
        arrival, client = request.arrival, request.client
        if self._by_message(arrival.scope) is not None or (client is not None and client.pick is not None):
            return None
        comment = ANTHROPIC_PING if request.info.endpoint is Endpoint.MESSAGES else COMMENT
        headers = [*STREAM, *decision_headers(arrival.trace.id, None)]
        alive = KeepAlive(arrival.reply, seconds=seconds, headers=headers, comment=comment)
        arrival.reply.early = alive
        return alive


def keep_alive_seconds(request: Request) -> int:
    """Seconds between comments to a request, by its header, else the most of its pools; 0 for none. ApiError 400."""
    asked = _asked(request.headers) if has_any(request.headers, _ASKING) else None
    if not request.info.stream or request.info.endpoint not in GENERATING:
        return 0
    return request.model.keep_alive_seconds if asked is None else asked


def _asked(headers: Iterable[Header]) -> int:
    return _seconds(next(value for name, value in headers if name == HEADER))


def _seconds(given: bytes) -> int:
    if not given.isdigit() or len(given) > _DIGITS or int(given) > MAX_KEEP_ALIVE_SECONDS:
        name = HEADER.decode()
        raise ApiError(400, f"`{name}` must be whole seconds from 0 to {MAX_KEEP_ALIVE_SECONDS}.", param=name)
    return int(given)
