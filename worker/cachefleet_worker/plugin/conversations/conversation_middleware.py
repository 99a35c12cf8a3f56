"""Puts a request that brings only what is new together with what is kept, before vLLM sees it; and keeps the whole.

Only requests with the header and the worker key are touched.
"""

from __future__ import annotations

from typing import Any, Final

from cachefleet_core.continuation import PromptCacheRef, RefusalCode
from cachefleet_core.report_frames import Policy
from cachefleet_worker.plugin.access_guard import routed_path, trusted_header
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
from cachefleet_worker.plugin.capabilities import OFF
from cachefleet_worker.plugin.conversations.answer_reference import ReferenceAnswer
from cachefleet_worker.plugin.conversations.conversation_body import (
    ConversationRequest,
    Joined,
    has_reference,
    joined,
    read_body,
    read_header,
    refused,
)
from cachefleet_worker.plugin.conversations.exchange import FEATURE, HEADER, Exchange, KeepingAnswer
from cachefleet_worker.plugin.conversations.turn import Api, Turn, mismatch
from cachefleet_worker.plugin.conversations.turn_store import Outcome, TurnStore
from cachefleet_worker.plugin.plugin_process import Process
from cachefleet_worker.plugin.prompts.recorded_prompt import recording

KEYS_PATH: Final = "/v1/fleet/keys"
_KEY_APIS: Final = {"": None, "responses": Api.RESPONSES, "messages": Api.MESSAGES}
_UNKNOWN: Final = "no such conversation is kept here; send the whole body"


def install(app: Any, process: Process) -> None:
    """Keep conversations before the routes of vLLM's application, where a worker key is configured.

    Where the feature is off, requests that refer to a conversation are still refused: they are not whole.
    """
    settings, key = process.settings, process.worker_key()
    off = _off(process)
    if off:
        process.faults.off(FEATURE, off)
    else:
        process.capabilities.add(FEATURE, "on")
        process.parts[FEATURE] = TurnStore(
            max_bytes=settings.conversations_bytes,
            max_turns=Policy(pool="-", generation=0).max_entries,
            seconds=settings.conversations_seconds,
        )
    if key:
        app.add_middleware(Conversations, process=process, worker_key=key)


def _off(process: Process) -> str:
    """Why conversations are not kept; "" where they are."""
    if missing := process.settings.switched_off(FEATURE) or process.keyless():
        return missing
    return "" if process.capabilities.mode("prompts") != OFF else "prompts is off, which says what was rendered"


class Conversations:
    """ASGI middleware: requests become whole, and their answers say what is kept of them."""

    def __init__(self, app: App, process: Process, worker_key: bytes) -> None:
        self._app = app
        self._faults = process.faults
        self._settings = process.settings
        self._store: TurnStore | None = process.parts.get(FEATURE)
        self._key = worker_key

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        header = self._header(scope) if scope["type"] == "http" else b""
        if not header:
            await self._app(scope, receive, send)
            return
        request = Request.of(scope, receive)
        try:
            body = await request.body(self._settings.max_body_bytes, seconds=self._settings.body_timeout_seconds)
        except HttpError as error:
            await error_response(error).send(send)
            return
        found: Joined | HttpError | None = None
        with self._faults.guard(FEATURE):
            found = self._planned(body, header, _api(routed_path(scope), request.query))
        await self._answer(found, body, scope=scope, receive=receive, send=send)

    async def _answer(
        self, found: Joined | HttpError | None, body: bytes, *, scope: Scope, receive: Receive, send: Send
    ) -> None:
        if found is None and has_reference(body):
            found = refused(RefusalCode.HANDLE_UNKNOWN, _UNKNOWN)
        if isinstance(found, HttpError):
            await error_response(found).send(send)
        elif found is None or self._store is None:
            await self._app(scope, replayed_body(body, receive), send)
        else:
            with recording() as record:
                exchange = Exchange(found, record, self._store, self._faults)
                answering: Send = KeepingAnswer(send, exchange.headers)
                if found.returns_ref and routed_path(scope) == Api.COMPLETIONS:
                    answering = ReferenceAnswer(answering, exchange.reference)
                await self._app(with_length(scope, len(found.body)), replayed_body(found.body, receive), answering)

    def _planned(self, body: bytes, header: bytes, api: Api | None) -> Joined | HttpError | None:
        """The whole request, or its refusal; None where nothing is kept of it."""
        if self._store is None or not self._faults.on(FEATURE):
            return None
        try:
            asked = read_body(body, read_header(header), api)
            return None if asked is None else self._joined(self._store, asked, body)
        except HttpError as error:
            return error

    def _joined(self, store: TurnStore, asked: ConversationRequest, body: bytes) -> Joined:
        if asked.ref is None:
            return joined(asked, None, body)
        try:
            found = joined(asked, _turn(store, asked, asked.ref), body)
        except HttpError as error:
            if error.status == 409:
                store.count(RefusalCode(error.code))
            raise
        store.count(Outcome.CONTINUED)
        return found

    def _header(self, scope: Scope) -> bytes:
        if scope["method"] != "POST" or routed_path(scope) not in {*Api, KEYS_PATH}:
            return b""
        return trusted_header(scope, HEADER, self._key)


def _turn(store: TurnStore, asked: ConversationRequest, ref: PromptCacheRef) -> Turn:
    """The turn that a request continues. HttpError 409."""
    turn = store.find(ref.handle, api=asked.api, salt=asked.salt)
    if turn is None:
        raise refused(RefusalCode.HANDLE_UNKNOWN, _UNKNOWN)
    code = mismatch(ref, turn, asked.fingerprints)
    if code is not None:
        raise refused(code, f"{code.value.replace('_', ' ')}: it is not what was kept; send the whole body")
    return turn


def _api(path: str, query: dict[str, str]) -> Api | None:
    return _KEY_APIS.get(query.get("api", "")) if path == KEYS_PATH else Api(path)
