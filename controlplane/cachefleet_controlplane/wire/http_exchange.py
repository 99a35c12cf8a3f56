"""One HTTP exchange over plain ASGI: reads the bounded body, writes the answer, watches for the client's disconnect.

No framework stands between uvicorn and the hot routes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterable, MutableMapping
from typing import Any, Final, Generic, Protocol, TypeVar

from cachefleet_controlplane.wire.errors import ApiError, error_body, error_event, error_of
from cachefleet_controlplane.wire.headers import Header

T = TypeVar("T")

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

JSON: Final[Header] = (b"content-type", b"application/json")
CLIENT_GONE_STATUS: Final = 499
"""Noted where the client disconnected before it got a status."""
STALL_SECONDS: Final = 10.0
"""How long a client may send nothing of a body that has begun."""
_CLOSE: Final = {"connection": "close"}
_EVENTS: Final = (b"data:", b"event:", b":")
"""How a stream begins."""
NO_ROOM: Final = "Too many bytes of request bodies are under way."
NO_ROOM_SECONDS: Final = 2
"""When there may be room again."""
_TRAILERS: Final = "A request's body may not end with trailers."
_STALLED: Final = "Nothing of the body arrived for {:g} s."


class ClientGoneError(Exception):
    """The client disconnected before its answer ended."""


class BodyRefusedError(Exception):
    """The server does not take the body: it is too long (``status`` 413), there is no room for it (503), or it has
    trailers (400).
    """

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


class Numbered(Protocol):
    """Events of a stream; ``sequence`` is the number of the next one, where the API numbers them."""

    @property
    def sequence(self) -> int: ...


class EarlyHead(Protocol):
    """What may send the head of a stream before there is an answer."""

    async def over(self) -> bool:
        """Send nothing more; whether the head was sent."""
        ...


class Reply:
    """The answer to one request; ``started`` and ``ended`` tell how far it is: not of a head that was sent before there
    was an answer (``early``), after which what is no stream goes as its events.

    A client that takes nothing for ``seconds`` counts as gone, or it would hold a worker for ever. Errors have the
    shape of the API that ``path`` belongs to. Methods raise ClientGoneError.
    """

    native: Any = None
    """The native transport's request, where that answers."""
    names: tuple[Header, ...] = ()
    """Headers that every answer to the request has, an error, too: its name."""

    def __init__(self, send: Send, *, seconds: float, path: str = "") -> None:
        self._asgi_send = send
        self._seconds = seconds
        self.path = path
        """Whose API an error has the shape of."""
        self.started = False
        self.ended = False
        self.status = 0
        self.early: EarlyHead | None = None
        self._events: Numbered | None = None

    def numbered(self, events: Numbered) -> None:
        """Number the event of an error by those before it."""
        self._events = events

    @property
    def seconds(self) -> float:
        """How long a client may take nothing."""
        return self._seconds

    async def start(self, status: int, headers: Iterable[Header]) -> None:
        """Send status and headers; once, before the body."""
        self.started, self.status = True, status
        if self.early is None or not await self.early.over():
            await self._begin(status, headers)

    async def open_early(self, headers: Iterable[Header], data: bytes) -> None:
        """Send the head of a stream before there is an answer, with the first bytes; ``early`` does."""
        await self._begin(200, headers)
        await self.write(data)

    async def _begin(self, status: int, headers: Iterable[Header]) -> None:
        await self._send({"type": "http.response.start", "status": status, "headers": [*headers, *self.names]})

    async def write(self, data: bytes) -> None:
        """Send a piece of the body; returns once the client has taken enough, so a slow client slows the worker."""
        await self._send({"type": "http.response.body", "body": data, "more_body": True})

    async def end(self, data: bytes = b"") -> None:
        """Send the last piece of the body."""
        self.ended = True
        await self._send({"type": "http.response.body", "body": data})

    async def whole(self, status: int, headers: Iterable[Header], body: bytes) -> None:
        """Send a whole answer with its content-length; in a stream that is open its event, an error's or its own."""
        self.started, self.status = True, status
        if self.early is None or not await self.early.over():
            await self._answer(status, headers, body)
        elif status >= 400:
            await self.broken(error_of(status, body))
        else:
            await self.end(body if body.startswith(_EVENTS) else b"data: " + body + b"\n\n")

    async def _answer(self, status: int, headers: Iterable[Header], body: bytes) -> None:
        await self._begin(status, [*headers, (b"content-length", b"%d" % len(body))])
        await self.end(body)

    async def error(self, error: ApiError, headers: Iterable[Header] = ()) -> None:
        """Send a whole answer that is an error, with its own headers and ``headers``."""
        await self.whole(error.status, [JSON, *error.headers, *headers], error_body(self.path, error))

    async def broken(self, error: ApiError) -> None:
        """End a stream with an error event."""
        sequence = 0 if self._events is None else self._events.sequence
        await self.end(error_event(self.path, error, sequence=sequence))

    async def cut_short(self, error: ApiError) -> None:
        """End an answer with an error, however far it is."""
        if not self.started:
            await self.error(error)
        elif not self.ended:
            await self.broken(error)

    async def _send(self, message: Message) -> None:
        try:
            await _within(self._seconds, self._asgi_send(message))
        except TimeoutError as error:
            raise ClientGoneError from error


async def _within(seconds: float, awaited: Awaitable[T]) -> T:
    """Await with a timeout. TimeoutError. A result that is there at once, as most are, sets no timer."""
    steps = awaited.__await__()
    try:
        waited_for = next(steps)
    except StopIteration as done:
        there: T = done.value
        return there
    async with asyncio.timeout(seconds):
        return await _Begun(steps, waited_for)


class _Begun(Generic[T]):
    """The rest of an awaitable whose first step was taken, and the future it waits for since."""

    def __init__(self, steps: Generator[Any, Any, T], waited_for: Any) -> None:
        self._steps = steps
        self._waited_for = waited_for

    def __await__(self) -> Generator[Any, Any, T]:
        steps, waited_for = self._steps, self._waited_for
        try:
            while True:
                try:
                    given = yield waited_for
                except BaseException as error:  # noqa: BLE001 - the awaitable's: a cancellation, as a rule
                    waited_for = steps.throw(error)
                else:
                    waited_for = steps.send(given)
        except StopIteration as done:
            value: T = done.value
            return value


async def read_body(
    scope: Scope,
    receive: Receive,
    *,
    limit: int,
    seconds: float,
    stall_seconds: float = STALL_SECONDS,
    take: Callable[[int], None] = lambda _: None,
) -> bytes:
    """The whole body; ``take`` is told of each piece's size and may refuse it with an ApiError.

    ApiError 413 over ``limit`` bytes, 408 where it takes over ``seconds`` or nothing arrives for ``stall_seconds``,
    503 where the server has no room for it, 400 where it has trailers; ClientGoneError.
    """
    whole: WholeBody | None = scope.get(WHOLE_BODY)
    if whole is not None and (body := whole.take()) is not None:
        return _taken(body, limit, take)
    _check_length(scope, limit)
    clock = asyncio.get_running_loop().time
    end = clock() + seconds
    try:
        return await _read(receive, limit, lambda: min(end - clock(), stall_seconds), take)
    except TimeoutError as error:
        late = clock() >= end
        message = f"The body did not arrive within {seconds:g} s." if late else _STALLED.format(stall_seconds)
        raise ApiError(408, message, headers=_CLOSE) from error
    except BodyRefusedError as error:
        refused = {413: _too_large(limit), 503: no_room(), 400: ApiError(400, _TRAILERS)}
        raise refused[error.status] from error


class Departure:
    """A client's disconnect, as its server notices it; calls back whoever waits for it."""

    __slots__ = ("_callback", "happened")

    def __init__(self) -> None:
        self.happened = False
        self._callback: Callable[[], None] | None = None

    def happen(self) -> None:
        """The client is gone; told once, however often it is noticed."""
        if self.happened:
            return
        self.happened = True
        if self._callback is not None:
            self._callback()

    def await_by(self, callback: Callable[[], None] | None) -> None:
        """Call ``callback`` when the client leaves, also if it has left; None for nobody."""
        self._callback = callback
        if callback is not None and self.happened:
            asyncio.get_running_loop().call_soon(self._tell)

    def _tell(self) -> None:
        if self._callback is not None:
            self._callback()


DEPARTURE: Final = "cachefleet.departure"
"""Member of an ASGI scope: the Departure of its client, where its server knows of these."""


WHOLE_BODY: Final = "cachefleet.body"
"""Member of an ASGI scope: the WholeBody, where it was all there with the head."""


class WholeBody:
    """A request's body that was all there with the head: given once, and kept no longer, as its answer may be long."""

    __slots__ = ("_body",)

    def __init__(self, body: bytes) -> None:
        self._body: bytes | None = body

    def take(self) -> bytes | None:
        """The body; None where it was taken before."""
        body, self._body = self._body, None
        return body


async def while_present(
    work: Coroutine[Any, Any, object], receive: Receive, reply: Reply, departure: Departure | None = None
) -> bool:
    """Run ``work``, cancelled when the client disconnects; False where it was. Errors of ``work`` are raised.

    Without a ``departure`` a task of its own waits for the server to say so.
    """
    leaving, watch = _Leaving(reply), None
    if departure is None:
        departure = Departure()
        watch = asyncio.ensure_future(_disconnected(receive, departure))
    departure.await_by(leaving)
    try:
        await work
    except (asyncio.CancelledError, Exception):  # raised again, unless the client's disconnect caused it
        if not leaving.settled():
            raise
    else:
        leaving.settled()
    finally:
        departure.await_by(None)
        if watch is not None:
            watch.cancel()
    return not leaving.gone


class _Leaving:
    """Callback for a disconnect: cancels the task it was made in, unless the answer has ended."""

    def __init__(self, reply: Reply) -> None:
        self._reply = reply
        self._task = asyncio.current_task()
        self.gone = False

    def __call__(self) -> None:
        if self._task is not None and not self._reply.ended:
            self.gone = True
            self._task.cancel()

    def settled(self) -> bool:
        """Whether this object alone cancelled the task; call it once, since it takes the cancellation back."""
        return self.gone and self._task is not None and self._task.uncancel() == 0


async def _disconnected(receive: Receive, departure: Departure) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    departure.happen()


async def _read(receive: Receive, limit: int, patience: Callable[[], float], take: Callable[[int], None]) -> bytes:
    """``patience`` gives the seconds to wait for the next piece. TimeoutError."""
    pieces: list[bytes] = []
    size = 0
    while True:
        message = await _within(patience(), receive())
        if message["type"] == "http.disconnect":
            raise ClientGoneError
        piece = message.get("body", b"")
        size += len(piece)
        if size > limit:
            raise _too_large(limit)
        take(len(piece))
        pieces.append(piece)
        if not message.get("more_body"):
            return b"".join(pieces)


def _taken(body: bytes, limit: int, take: Callable[[int], None]) -> bytes:
    if len(body) > limit:
        raise _too_large(limit)
    take(len(body))
    return body


def _check_length(scope: Scope, limit: int) -> None:
    length = next((value for name, value in scope["headers"] if name == b"content-length"), b"")
    if length.isdigit() and int(length) > limit:
        raise _too_large(limit)


def no_room(message: str = NO_ROOM) -> ApiError:
    """The error of a body for which there is no room now."""
    return ApiError(503, message, headers={"retry-after": str(NO_ROOM_SECONDS)} | _CLOSE)


def _too_large(limit: int) -> ApiError:
    return ApiError(413, f"The body is larger than {limit} bytes.", headers=_CLOSE)
