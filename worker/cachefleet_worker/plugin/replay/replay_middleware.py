"""Takes a record out of a request's body, and puts one into its stream."""

from __future__ import annotations

from typing import Any, Final

from cachefleet_core.engine.answer_replay import FEATURE, HEADER, ReplayAsk, ReplayError, read_ask, read_record
from cachefleet_worker.plugin.access_guard import trusted_header
from cachefleet_worker.plugin.asgi import (
    App,
    HttpError,
    Receive,
    Request,
    Scope,
    Send,
    error_response,
    replayed_body,
    with_length,
)
from cachefleet_worker.plugin.plugin_process import Process
from cachefleet_worker.plugin.replay.recorded_answer import RecordedAnswer, current

_HEADER: Final = HEADER.encode()
_EVENTS: Final = b"text/event-stream"


def attach(app: Any, process: Process) -> None:
    """Record answers of vLLM's application, once the feature is installed; none where nobody may ask for that."""
    key = process.worker_key()
    if FEATURE not in process.settings.plugin_off and key:
        app.add_middleware(Replays, process=process, worker_key=key)


class Replays:
    """ASGI middleware: streams of requests with the header and the worker key have their record in them."""

    def __init__(self, app: App, process: Process, worker_key: bytes) -> None:
        self._app = app
        self._process = process
        self._key = worker_key

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        value = trusted_header(scope, _HEADER, self._key) if scope["type"] == "http" else b""
        if not value:
            await self._app(scope, receive, send)
            return
        try:
            ask = read_ask(value)
            answer, scope, receive = await self._answer(ask, scope, receive)
        except ReplayError as error:
            await error_response(HttpError(400, "bad_replay", str(error))).send(send)
            return
        except HttpError as error:
            await error_response(error).send(send)
            return
        token = current.set(answer)
        try:
            await self._app(scope, receive, send if answer is None else _Recording(answer, send))
        finally:
            current.reset(token)

    async def _answer(
        self, ask: ReplayAsk, scope: Scope, receive: Receive
    ) -> tuple[RecordedAnswer | None, Scope, Receive]:
        """The answer to record (None: that is off) and the request that vLLM is to see. ReplayError, HttpError."""
        on = self._process.capabilities.mode(FEATURE) == "on"
        if not ask.record_bytes:
            return (RecordedAnswer(ask) if on else None), scope, receive
        if not on:
            raise HttpError(501, "not_replayed", "answers are not replayed here")
        settings = self._process.settings
        limit = settings.max_body_bytes + ask.record_bytes
        body = await Request.of(scope, receive).body(limit, seconds=settings.body_timeout_seconds)
        if len(body) < ask.record_bytes:
            raise HttpError(400, "short_body", "the body is shorter than its record")
        split = len(body) - ask.record_bytes
        answer = RecordedAnswer(ask, read_record(body[split:]))
        return answer, with_length(scope, split), replayed_body(body[:split], receive)


class _Recording:
    """Sends an answer; before each piece of a stream what was recorded since the last one."""

    def __init__(self, answer: RecordedAnswer, send: Send) -> None:
        self._answer = answer
        self._send = send
        self._streams = False

    async def __call__(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            kinds = (value for name, value in message.get("headers", ()) if name.lower() == b"content-type")
            self._streams = message["status"] == 200 and next(kinds, b"").startswith(_EVENTS)
        elif self._streams and message.get("body"):
            message = {**message, "body": self._answer.take() + message["body"]}
        await self._send(message)
