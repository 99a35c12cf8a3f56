"""Takes the two parts of a held request, and frames its answer (cachefleet_core/held_requests.py).

Inside, vLLM sees an ordinary request whose renderer takes a while. Whoever goes away, or says nothing in time, is gone
for vLLM too, which cancels its own work.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Final

from cachefleet_core.engine.held_requests import (
    HOLD_HEADER,
    KEYS,
    LATE_MEMBERS,
    MEDIA_TYPE,
    NOT_HELD,
    Head,
    Hold,
    HoldError,
    LateMembers,
    frame,
    head_frame,
    read_go,
    read_hold,
)
from cachefleet_worker.plugin.access_guard import trusted_header
from cachefleet_worker.plugin.asgi import App, HttpError, Receive, Scope, Send, error_response, with_length
from cachefleet_worker.plugin.capabilities import OFF
from cachefleet_worker.plugin.keys.key_service import KeyService
from cachefleet_worker.plugin.keys.render import is_short
from cachefleet_worker.plugin.plugin_process import Process
from cachefleet_worker.plugin.prompts import late_members
from cachefleet_worker.plugin.prompts.held_prompt import FEATURE, HeldPrompt, held
from cachefleet_worker.plugin.tokens.short_renders import staying

WORD_SECONDS: Final = 30.0
"""How long a rendered prompt waits for word."""
_HEADER: Final = HOLD_HEADER.encode()
_START: Final = {
    "type": "http.response.start",
    "status": 200,
    "headers": [(b"content-type", MEDIA_TYPE.encode()), (b"cache-control", b"no-store")],
}
_DISCONNECT: Final = {"type": "http.disconnect"}

Service = Callable[[], KeyService | None]


def install(app: Any, process: Process, service: Service) -> None:
    """Hold requests before the routes of vLLM's application; ``service`` gives their keys once there is one."""
    if missing := process.settings.switched_off(FEATURE) or process.keyless():
        process.faults.off(FEATURE, missing)
    elif process.capabilities.mode("prompts") == OFF:
        process.faults.off(FEATURE, "prompts is off, whose hook in the renderer it needs")
    else:
        app.add_middleware(HeldRequests, process=process, worker_key=process.worker_key(), service=service)
        process.capabilities.add(FEATURE, LATE_MEMBERS if late_members.install(process) else "on")


class HeldRequests:
    """ASGI middleware: requests with the header and the worker key wait between rendering and answer."""

    def __init__(self, app: App, process: Process, worker_key: bytes, service: Service) -> None:
        self._app = app
        self._settings = process.settings
        self._faults = process.faults
        self._key = worker_key
        self._service = service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        value = trusted_header(scope, _HEADER, self._key) if scope["type"] == "http" else b""
        if not value:
            await self._app(scope, receive, send)
            return
        try:
            self._check_on()
            hold = read_hold(value)
            body, second = await self._body(hold, receive)
        except HoldError as error:
            await error_response(HttpError(400, "bad_hold", str(error))).send(send)
            return
        except HttpError as error:
            await error_response(error).send(send)
            return
        exchange = _HeldExchange(hold, second, receive, send, self._service())
        await exchange.run(self._app, scope, body)
        if exchange.answered_unasked:
            self._faults.off(FEATURE, "prompts of this model do not come by the renderer's hook")

    def _check_on(self) -> None:
        """HttpError 501 where it or keys are off by now: vLLM would wait for the rest of the body, in vain."""
        service = self._service()
        if not self._faults.on(FEATURE) or service is None or not service.on:
            raise HttpError(501, NOT_HELD, "requests are not held any more")

    async def _body(self, hold: Hold, receive: Receive) -> tuple[bytes, _SecondPart]:
        """The body, and what came after it. HttpError 413, 408, 400."""
        if hold.length > self._settings.max_body_bytes:
            raise HttpError(413, "too_large", f"the body is over {self._settings.max_body_bytes} bytes")
        data, ended = bytearray(), False
        try:
            async with asyncio.timeout(self._settings.body_timeout_seconds):
                while len(data) < hold.length:
                    message = await receive()
                    data += message.get("body", b"")
                    ended = not message.get("more_body", False)
                    if message["type"] != "http.request" or (ended and len(data) < hold.length):
                        raise HttpError(400, "short_body", "the body is shorter than its length says")
        except TimeoutError:
            raise HttpError(408, "slow_body", "the body did not come in time") from None
        second = _SecondPart(self._settings.max_body_bytes)
        second.add(bytes(data[hold.length :]), ended=ended)
        return bytes(data[: hold.length]), second


class _SecondPart:
    """What follows the body of a held request, of at most so many bytes."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._data = bytearray()
        self._ended = asyncio.Event()

    def add(self, piece: bytes, *, ended: bool) -> None:
        """Take a piece; what is too long ends it."""
        self._data += piece
        if ended or len(self._data) > self._max_bytes:
            self._ended.set()

    async def members(self) -> LateMembers:
        """Wait for its end; return the members that it sets. HttpError 400, 413."""
        await self._ended.wait()
        if len(self._data) > self._max_bytes:
            raise HttpError(413, "too_large", f"the second part is over {self._max_bytes} bytes")
        try:
            return read_go(bytes(self._data))
        except HoldError as error:
            raise HttpError(400, "bad_go", str(error)) from None


class _HeldExchange:
    """One held request on its way through vLLM's application."""

    def __init__(
        self, hold: Hold, second: _SecondPart, receive: Receive, send: Send, service: KeyService | None
    ) -> None:
        self._hold = hold
        self._second = second
        self._receive = receive
        self._send = send
        self._service = service
        self._prompt = HeldPrompt(self._told)
        self._gone = asyncio.Event()
        self._pending: list[dict[str, Any]] = []
        self._head: bytes = b""
        self._begun = False
        self.answered_unasked = False
        """It was answered without its prompt's having waited for word."""

    async def run(self, app: App, scope: Scope, body: bytes) -> None:
        self._pending = [{"type": "http.request", "body": body, "more_body": False}]
        passed = with_length(scope, len(body), without={_HEADER})
        listening = asyncio.create_task(self._listen())
        token = held.set(self._prompt)
        try:
            with staying(short=is_short(body)):
                await app(passed, self._given, self._answer)
        finally:
            held.reset(token)
            listening.cancel()

    async def _listen(self) -> None:
        """Take the second part, then the end of the connection."""
        while True:
            message = await self._receive()
            if message["type"] != "http.request":
                self._gone.set()
                return
            self._second.add(message.get("body", b""), ended=not message.get("more_body", False))

    async def _given(self) -> Any:
        if self._pending:
            return self._pending.pop()
        await self._gone.wait()
        return _DISCONNECT

    async def _told(self, prompt: Mapping[str, Any] | None) -> None:
        """Say a prompt's keys, and wait for word; without it, or where it is wrong, the request is gone."""
        await self._begin()
        document = b"" if self._service is None else await self._service.of_prompt(self._hold, prompt)
        await self._send({"type": "http.response.body", "body": frame(KEYS, document), "more_body": True})
        try:
            async with asyncio.timeout(WORD_SECONDS):
                self._prompt.members = await self._second.members()
        except TimeoutError:
            await self._end()
        except HttpError as error:
            await error_response(error).send(self._answer)
            await self._end()

    async def _end(self) -> None:
        """Have vLLM take the client for gone."""
        self._gone.set()
        await asyncio.Event().wait()  # vLLM cancels it

    async def _begin(self) -> None:
        if not self._begun:
            self._begun = True
            await self._send(_START)

    async def _answer(self, message: Any) -> None:
        if self._gone.is_set():  # vLLM still answers 200 and "null" to whom it takes for gone
            return
        if message["type"] == "http.response.start":
            self.answered_unasked = message["status"] == 200 and not self._begun
            headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in message.get("headers", ())]
            self._head = head_frame(Head(message["status"], tuple(headers)))
            return
        await self._begin()
        head, self._head = self._head, b""
        await self._send({**message, "body": head + message.get("body", b"")})
