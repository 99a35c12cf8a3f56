"""A request's answer as WebSocket messages: one JSON text for each event, as over SSE; an error is an event, too.

An error is ``{"type": "error", "status", "error": {"type", "code", "message", "param", "headers"}}``, as OpenAI has it;
``headers`` are those of the gateway's answer that a client may want.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import msgspec

from cachefleet_controlplane.gateway.answers_under_way import RESTARTING
from cachefleet_controlplane.gateway.engine_deaths.exposed_request import DOUBTED_REQUEST, FATAL_REQUEST
from cachefleet_controlplane.gateway.send.worker_call import MAX_EVENT_BYTES
from cachefleet_controlplane.wire.errors import openai_type
from cachefleet_controlplane.wire.headers import Header
from cachefleet_controlplane.wire.http_exchange import ClientGoneError, Message, Send
from cachefleet_controlplane.wire.json_members import READ_ERRORS
from cachefleet_runtime.sse import DONE, EventSplitter, event_data, event_name

_EVENTS: Final = b"text/event-stream"
_TOLD: Final = frozenset({b"retry-after", b"www-authenticate", b"x-request-id"})
_TOLD_PREFIX: Final = b"x-cachefleet-"
_UNREADABLE: Final = {"type": "server_error", "message": "The worker's answer could not be read.", "param": None}

_STATUSES: Final = {RESTARTING: 503, FATAL_REQUEST: 422, DOUBTED_REQUEST: 503}
"""Of errors within a stream that have a code."""

_any = msgspec.json.Decoder(dict[str, Any])
_encode = msgspec.json.Encoder().encode


class EventMessages:
    """The ASGI ``send`` of one request on a connection whose own is ``send``. ClientGoneError."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._splitter = EventSplitter(MAX_EVENT_BYTES)
        self._status = 0
        self._headers: list[Header] = []
        self._pieces: list[bytes] = []
        self.ended = False
        """The client was told all of the answer."""
        self.stuck = False
        """It could not be told, or was too slow."""

    async def __call__(self, message: Message) -> None:
        """Take a message of the answer; messages of the connection go out as soon as an event is whole."""
        if message["type"] == "http.response.start":
            self._status, self._headers = message["status"], list(message["headers"])
            return
        piece, more = message.get("body", b""), message.get("more_body", False)
        if self._streamed:
            for event in self._splitter.feed(piece):
                await self._event(event)
        else:
            self._pieces.append(piece)
        if not more:
            if not self._streamed:
                await self._tell(error_message(self._status, b"".join(self._pieces), self._headers))
            self.ended = True

    @property
    def _streamed(self) -> bool:
        kind = next((value for name, value in self._headers if name.lower() == b"content-type"), b"")
        return self._status == 200 and kind.startswith(_EVENTS)

    async def _event(self, event: bytes) -> None:
        data = event_data(event)
        if data and data != DONE:
            await self._tell(_stream_error(data) if event_name(event) == b"error" else data)

    async def _tell(self, data: bytes) -> None:
        self.stuck = True  # until it is out: this may be cancelled
        try:
            await self._send({"type": "websocket.send", "text": data.decode(errors="replace")})
        except (OSError, RuntimeError) as error:
            raise ClientGoneError from error
        self.stuck = False


def error_message(status: int, body: bytes, headers: Iterable[Header]) -> bytes:
    """Return the event of an error that was to be a whole answer."""
    try:
        found = _any.decode(body).get("error")
    except READ_ERRORS:
        found = None
    error = found if isinstance(found, dict) else _UNREADABLE
    if status < 400:
        status, error = 502, _UNREADABLE
    told = {
        name.decode(): value.decode("latin-1")
        for name, value in headers
        if name in _TOLD or name.startswith(_TOLD_PREFIX)
    }
    code = error.get("code")
    shown = error | {"code": str(status if code is None else code)} | ({"headers": told} if told else {})
    return _encode({"type": "error", "status": status, "error": shown})


def _stream_error(data: bytes) -> bytes:
    """Return an error within a stream, whose members SSE has side by side, in the shape of all others."""
    try:
        flat = _any.decode(data)
    except READ_ERRORS:
        return data
    if "error" in flat:
        return data
    code = str(flat.get("code") or "")
    status = int(code) if code.isdigit() else _STATUSES.get(code, 500)
    error = {"type": openai_type(status)} | {name: flat.get(name) for name in ("code", "message", "param")}
    return _encode({"type": "error", "status": status, "error": error, "sequence_number": flat.get("sequence_number")})
