"""``response.create``: what a client sends, as the POST to ``/v1/responses`` that it stands for. Pure."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from cachefleet_controlplane.gateway.apis.audio_form import content_type_of
from cachefleet_controlplane.gateway.apis.parse import parse, parse_form, understand
from cachefleet_controlplane.gateway.apis.request_info import SPEECH, Endpoint, RequestInfo
from cachefleet_controlplane.gateway.request.request import Request
from cachefleet_controlplane.gateway.responses_socket.response_memory import ResponseMemory
from cachefleet_controlplane.gateway.responses_socket.warm_up import checked
from cachefleet_controlplane.wire.errors import ApiError
from cachefleet_controlplane.wire.headers import REQUEST_ID, Header
from cachefleet_controlplane.wire.http_exchange import JSON, Message, Receive, Scope
from cachefleet_controlplane.wire.json_members import TRUE, is_null, parse_fields, text

CREATE: Final = "response.create"
MEMORY: Final = "cachefleet.memory"
"""Member of the ASGI scope that holds the connection's ResponseMemory."""
_LANE: Final = "stream_id"
_ENDPOINTS: Final = {endpoint.value: endpoint for endpoint in Endpoint}
_OF_HANDSHAKE: Final = frozenset(
    {
        *(b"connection", b"upgrade", b"origin", b"content-type", b"content-length", b"content-encoding"),
        *(b"transfer-encoding", b"expect", REQUEST_ID),
    }
)
"""Headers of the handshake that say nothing of a request; a request's id would be that of several."""
_OF_HANDSHAKE_PREFIX: Final = b"sec-websocket-"


def memory_of(scope: Scope) -> ResponseMemory | None:
    """Return the memory of the connection that a request came by; None for one by POST."""
    memory = scope.get(MEMORY)
    assert memory is None or isinstance(memory, ResponseMemory)  # noqa: S101 - set by ``create_scope`` alone
    return memory


def parser_of(request: Request) -> Callable[[bytes], RequestInfo]:
    """Return what parses the body of a request by POST, or a message."""
    scope = request.arrival.scope
    if scope["path"] in SPEECH:
        given = content_type_of(scope["headers"])
        endpoint, trusted = _ENDPOINTS[scope["path"]], request.tenant.trusted
        return partial(parse_form, endpoint=endpoint, content_type=given, trusted=trusted)
    parser = parse if memory_of(scope) is None else parse_create
    return partial(parser, endpoint=_ENDPOINTS[scope["path"]], trusted=request.tenant.trusted)


def parse_create(body: bytes, endpoint: Endpoint, *, trusted: bool) -> RequestInfo:
    """Return the RequestInfo of a message. ApiError 400, also where it is another event or asks for another mode."""
    fields = parse_fields(body)
    if text(fields, "type") != CREATE:
        raise ApiError(400, f"`type` must be `{CREATE}`: nothing else is taken here.", param="type")
    if not is_null(fields, _LANE):
        raise ApiError(400, f"`{_LANE}` is not supported: open a connection for each stream.", param=_LANE)
    del fields["type"]
    return understand(checked(fields) | {"stream": TRUE}, endpoint, trusted=trusted)


def create_scope(handshake: Scope, memory: ResponseMemory) -> Scope:
    """Return the scope of the POST that a message stands for, with the headers of the connection's handshake."""
    headers: list[Header] = [
        (name, value)
        for name, value in handshake["headers"]
        if name not in _OF_HANDSHAKE and not name.startswith(_OF_HANDSHAKE_PREFIX)
    ]
    kept: dict[str, Any] = {name: value for name, value in handshake.items() if name not in {"type", "subprotocols"}}
    return kept | {
        "type": "http",
        "method": "POST",
        "path": str(Endpoint.RESPONSES),
        "headers": [*headers, JSON],
        MEMORY: memory,
    }


def create_body(body: bytes, gone: asyncio.Event) -> Receive:
    """Return the ASGI ``receive`` of a request: its body, then the disconnect once the client is ``gone``."""
    given = [body]

    async def receive() -> Message:
        if given:
            return {"type": "http.request", "body": given.pop(), "more_body": False}
        await gone.wait()
        return {"type": "http.disconnect"}

    return receive
