"""Conversations kept by the fake engine's plugin: the real plugin's bodies and store, around the fake's rendering."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec
from aiohttp import web

from cachefleet_core.continuation import CONVERSATION_HEADER, REF_MEMBER, RefusalCode, prefix_hash
from cachefleet_worker.plugin.asgi import HttpError
from cachefleet_worker.plugin.conversations.conversation_body import (
    ConversationRequest,
    followed,
    joined,
    kept,
    read_body,
    read_header,
)
from cachefleet_worker.plugin.conversations.turn import Api, Turn, mismatch
from cachefleet_worker.plugin.conversations.turn_store import Outcome, TurnStore

_KEYS: Final = "/v1/fleet/keys"
_BY_QUERY: Final = {"": None, "responses": Api.RESPONSES, "messages": Api.MESSAGES}
_NAMES: Final = {Api.RESPONSES: "responses", Api.MESSAGES: "messages"}
_PROMPT: Final = web.RequestKey("cachefleet_prompt", Turn)
_TOLD: Final = web.RequestKey("cachefleet_kept", str)
_raw = msgspec.json.Decoder()

Ids = Callable[[str, dict[str, Any]], list[int]]


class KeptConversations:
    """Of one life of an engine; ``ids`` renders a body of an API."""

    def __init__(self, ids: Ids) -> None:
        self._ids = ids
        self.store = TurnStore(max_bytes=1 << 26, max_turns=1024, seconds=3600)

    def whole(self, request: web.Request, body: bytes) -> bytes:
        """The whole body of a request; what is kept of it is told when it is answered. HttpError."""
        header = request.headers.get(CONVERSATION_HEADER, "")
        if not header or request.path not in {*Api, _KEYS}:
            return body
        api = _BY_QUERY[request.query.get("api", "")] if request.path == _KEYS else Api(request.path)
        asked = read_body(body, read_header(header.encode()), api)
        if asked is None:
            return body
        found = joined(asked, self._turn(asked), body)
        if asked.ref is not None:
            self.store.count(Outcome.CONTINUED)
        ids = array("I", self._ids(_NAMES.get(asked.api, ""), _raw.decode(found.body)))
        turn = kept(found, ids, prefix_hash(ids))
        if turn is not None and not turn.handle:
            turn = self.store.keep(turn)
        if turn is not None and found.returns_ref and request.path == Api.COMPLETIONS:
            request[_PROMPT] = turn
        if turn is not None:
            request[_TOLD] = msgspec.json.encode(turn.kept).decode()
        return found.body

    def referred(self, request: web.Request, response: web.StreamResponse) -> web.StreamResponse:
        """A whole answer with the reference that its request asked for; streams have none here."""
        body = response.body if isinstance(response, web.Response) else None
        if _PROMPT not in request or not isinstance(body, bytes) or response.status != 200:
            return response
        answer = _raw.decode(body)
        (choice,) = answer["choices"]
        turn = self.store.keep(followed(request[_PROMPT], array("I", choice["token_ids"])))
        ref = None if turn is None else turn.kept.ref(turn.common.fingerprints)
        answer[REF_MEMBER] = None if ref is None else msgspec.to_builtins(ref)
        return web.Response(body=msgspec.json.encode(answer), content_type="application/json")

    def _turn(self, asked: ConversationRequest) -> Turn | None:
        if asked.ref is None:
            return None
        turn = self.store.find(asked.ref.handle, api=asked.api, salt=asked.salt)
        code = RefusalCode.HANDLE_UNKNOWN if turn is None else mismatch(asked.ref, turn, asked.fingerprints)
        if code is not None:
            self.store.count(code)
            raise HttpError(409, code, code)
        return turn


async def tell(request: web.Request, response: web.StreamResponse) -> None:
    """Add the header that says what is kept, as an answer begins."""
    if _TOLD in request and response.status == 200:
        response.headers[CONVERSATION_HEADER] = request[_TOLD]


def refused(error: HttpError) -> tuple[Mapping[str, Any], int]:
    """The answer of an error."""
    return {"error": {"code": error.code, "message": str(error)}}, error.status
