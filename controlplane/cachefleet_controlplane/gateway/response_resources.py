"""What there is below ``/v1/responses``: stored responses, their input items, counts of tokens; and why no more."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final
from urllib.parse import parse_qs

import msgspec
from msgspec import Raw

from cachefleet_controlplane.gateway.admit.tenant_admission import admitted_request
from cachefleet_controlplane.gateway.apis.parse import parse
from cachefleet_controlplane.gateway.apis.request_info import Endpoint, RequestInfo
from cachefleet_controlplane.gateway.apis.responses import not_stored
from cachefleet_controlplane.gateway.converse.response_histories import Histories
from cachefleet_controlplane.gateway.health import Handler
from cachefleet_controlplane.gateway.know.prompt_lookup import PromptLookup
from cachefleet_controlplane.gateway.request.rendered_prompt import RenderFailure, Rendering, Rung
from cachefleet_controlplane.gateway.request.request import Request
from cachefleet_controlplane.wire.errors import ApiError
from cachefleet_controlplane.wire.http_exchange import JSON, Receive, Reply, Scope

INPUT_TOKENS_PATH: Final = f"{Endpoint.RESPONSES}/input_tokens"
COMPACT_PATH: Final = f"{Endpoint.RESPONSES}/compact"
UNSUPPORTED: Final = "unsupported_operation"
INPUT_ITEMS: Final = "input_items"
CANCEL: Final = "cancel"
MAX_QUERY: Final = 1024
"""Bytes of a query that are read."""
MAX_PAGE, PAGE = 100, 20
_NO_COMPACTION: Final = (
    "Conversations are not compacted here: OpenAI's models alone read the encrypted item that it makes of one. Have "
    "the model summarise the conversation, and go on from that."
)
_NO_CANCEL: Final = (
    "Only a response that was made with `background: true` can be cancelled, and none is here. To stop one, close the "
    "connection that it comes by.{}"
)
_NOT_STORED: Final = " Responses are not stored here."
_UNCOUNTED: Final = "No worker could count the tokens of this request now. Try again in {} s."
_INVALID: Final = "The workers' renderer refuses this request: send it to {} to read why."
_RETRY_SECONDS: Final = 5
_COUNTED: Final = frozenset({Rung.KEYS, Rung.RENDER, Rung.TOKENIZE, Rung.CLIENT, Rung.CACHE})
"""How a count of tokens is exact."""
_ROLES: Final = frozenset({"user", "system", "developer"})

_items = msgspec.json.Decoder(list[dict[str, Any]])
_encode = msgspec.json.encode


async def refuse_compaction(_: Scope, __: Receive, ___: Reply) -> None:
    """Answer ``compact``; a handler. ApiError 400."""
    raise ApiError(400, _NO_COMPACTION, code=UNSUPPORTED)


def counted(rendering: Rendering) -> bytes:
    """Return OpenAI's answer with a prompt's count of tokens. ApiError 400, 503 where it is not known exactly."""
    if rendering.reason is RenderFailure.REFUSED:
        raise ApiError(400, _INVALID.format(Endpoint.RESPONSES))
    if rendering.rung not in _COUNTED or not rendering.prompt.tokens:
        headers = {"retry-after": str(_RETRY_SECONDS)}
        raise ApiError(503, _UNCOUNTED.format(_RETRY_SECONDS), headers=headers)
    return _encode({"object": "response.input_tokens", "input_tokens": rendering.prompt.tokens})


def parse_count(body: bytes) -> RequestInfo:
    """Return what the body of a response says whose input is to be counted. ApiError 400."""
    return parse(body, Endpoint.RESPONSES)


async def count(lookup: PromptLookup, whole: Callable[[Request], Awaitable[Request]], request: Request) -> None:
    """Answer with the count of a response's input; ``whole`` adds the stored conversation. ApiError 400, 503."""
    request = await lookup.complete(await whole(request))
    await request.arrival.reply.whole(200, [JSON], counted(request.rendering))


class StoredResponses:
    """Handlers of ``/v1/responses/{id}`` and what is below it; ``stored`` tells whether any are kept at present."""

    def __init__(self, histories: Histories | None, stored: Callable[[], bool]) -> None:
        self._histories = histories
        self._stored = stored
        self._methods: Mapping[str, Handler] = {"GET": self._show, "DELETE": self._delete}

    def handler(self, path: str) -> Mapping[str, Handler] | None:
        """Return the handlers of a path by method; None for a path that is none of these."""
        response, _, below = path.removeprefix(f"{Endpoint.RESPONSES}/").partition("/")
        if not response or not path.startswith(f"{Endpoint.RESPONSES}/"):
            return None
        return {"": self._methods, INPUT_ITEMS: {"GET": self._show_items}, CANCEL: {"POST": self._cancel}}.get(below)

    async def _show(self, scope: Scope, _: Receive, reply: Reply) -> None:
        histories = self._kept()
        shown = await histories.shown(admitted_request(scope).tenant.name, _response(scope))
        await reply.whole(200, [JSON], shown)

    async def _delete(self, scope: Scope, _: Receive, reply: Reply) -> None:
        response = _response(scope)
        await self._kept().deleted(admitted_request(scope).tenant.name, response)
        await reply.whole(200, [JSON], _encode({"id": response, "object": "response", "deleted": True}))

    async def _show_items(self, scope: Scope, _: Receive, reply: Reply) -> None:
        items = await self._kept().input_items(admitted_request(scope).tenant.name, _response(scope))
        query = parse_qs(scope.get("query_string", b"")[:MAX_QUERY].decode("latin-1"))
        told = item_page(items, {name: values[-1] for name, values in query.items()})
        await reply.whole(200, [JSON], _encode(told))

    async def _cancel(self, _: Scope, __: Receive, ___: Reply) -> None:
        raise ApiError(400, _NO_CANCEL.format("" if self._stored() else _NOT_STORED), code=UNSUPPORTED)

    def _kept(self) -> Histories:
        """Return the stored responses. ApiError 400 where none are stored."""
        if self._histories is None or not self._stored():
            raise not_stored()
        return self._histories


def item_page(items: Sequence[Raw], query: Mapping[str, str]) -> dict[str, Any]:
    """Return a page of OpenAI's list of input items: ``order`` asc or desc, ``after`` an item, ``limit``. ApiError 400.

    An item has an id and its text is a list of parts, also where its client sent it without.
    """
    listed = [_shown(number, item) for number, item in enumerate(_items.decode(_encode(items)))]
    if query.get("order", "desc") == "desc":
        listed.reverse()
    names = [item["id"] for item in listed]
    if (after := query.get("after", "")) and after not in names:
        raise ApiError(400, "`after` must be the id of an item of this response.", param="after")
    rest = listed[names.index(after) + 1 :] if after else listed
    page = rest[: _limit(query.get("limit", str(PAGE)))]
    ends = {"first_id": page[0]["id"], "last_id": page[-1]["id"]} if page else {"first_id": None, "last_id": None}
    return {"object": "list", "data": page, "has_more": len(page) < len(rest)} | ends


def _shown(number: int, item: dict[str, Any]) -> dict[str, Any]:
    named = {"id": f"item_{number}", "type": "message"} | {
        name: value for name, value in item.items() if value is not None
    }
    if named.get("role") in _ROLES and isinstance(named.get("content"), str):
        named["content"] = [{"type": "input_text", "text": named["content"]}]
    return named


def _limit(given: str) -> int:
    limit = int(given) if given.isascii() and given.isdigit() and len(given) <= len(str(MAX_PAGE)) else 0
    if not 1 <= limit <= MAX_PAGE:
        raise ApiError(400, f"`limit` must be a number from 1 to {MAX_PAGE}.", param="limit")
    return limit


def _response(scope: Scope) -> str:
    """The id in the path."""
    path: str = scope["path"]
    return path.removeprefix(f"{Endpoint.RESPONSES}/").partition("/")[0]
