"""The gateway's OpenAPI document: ``GET /openapi.json``; what is served by choice is added to it.

``tests/controlplane/admin/test_schema_cases.py`` checks the gateway against it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from cachefleet_controlplane.gateway.apis.request_info import Endpoint
from cachefleet_controlplane.gateway.health import HEALTH_PATHS, VERSION_PATH, Handler
from cachefleet_controlplane.gateway.openapi_schemas import ANSWERS, ERRORS, REQUESTS, TEXT, Schema, listed, ref
from cachefleet_controlplane.wire.errors import ANTHROPIC_PATH
from cachefleet_controlplane.wire.http_exchange import JSON, Receive, Reply, Scope

OPENAPI_PATH: Final = "/openapi.json"
_ABOUT: Final = (
    "OpenAI's and Anthropic's APIs in front of a fleet of vLLM workers. Errors have the shape of the API that their "
    "path belongs to; a path that is not here is a 404, another method a 405 with `Allow`."
)
_EVENTS: Final = "text/event-stream"
_JSON: Final = "application/json"
_FORM: Final = "multipart/form-data"
_BYTES: Final = "application/octet-stream"
BYTES: Final = "bytes"
"""An answer that is the content of a file."""
_EVENT: Final = listed(data=TEXT) | {"description": "Where `stream` is true: one of the API's own events."}

UPGRADE_REQUIRED: Final = 426
_STATUSES: Final[Mapping[int, str]] = {
    400: "The body cannot be read, or asks for what is not served; or the worker's own refusal.",
    401: "An API key is needed, or this one is not known or has ended.",
    403: "The tenant is disabled.",
    404: "No such model, or nothing of that name.",
    405: "The path takes other methods: see `Allow`.",
    408: "The body did not arrive in time.",
    409: "It is in use.",
    412: "`Prefer: if-available`, and nothing of the prompt is cached.",
    413: "The body is too large.",
    415: "The body is compressed in a way that is not understood.",
    421: "Another control plane serves the model, and the request could not be passed on to it from here.",
    UPGRADE_REQUIRED: "No WebSocket handshake.",
    429: "A limit of the tenant, or no room in time: see `Retry-After`.",
    500: "The worker's own error, after all attempts.",
    502: "The worker's answer could not be relayed, or it does not take the gateway's own key.",
    503: "No worker is ready, its control plane is down, or too many requests are under way: see `Retry-After`.",
    504: "The worker was silent for too long.",
}
_UPGRADED: Final = (401, 403, 404, 405, UPGRADE_REQUIRED, 503)
"""Statuses in place of the upgrade to a WebSocket."""
LOCAL: Final = (400, 401, 403, 404, 405, 503)
"""Statuses of operations that ask no worker."""
_OPEN: Final = (405, 503)
"""Statuses of operations that need no API key."""
_HEADERS: Final[Mapping[str, str]] = {
    "x-cachefleet-decision": "Id of the decision's record.",
    "x-cachefleet-knowledge": "What was known of the prompt: exact, approximate or load.",
    "x-cachefleet-worker": "Who answered.",
    "x-cachefleet-trace": "Decision, prediction and cause, where the request has this header with 1.",
}
_LATER: Final = frozenset({429, 503})


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One method of one path."""

    path: str
    summary: str
    answer: str
    """"" where the answer is the upgrade to a WebSocket, BYTES where it is what a file holds."""
    method: str = "post"
    takes: str = ""
    form: bool = False
    """It takes a form in place of JSON."""
    streams: bool = False
    decided: bool = True
    """Its answers have the headers of a decision."""
    parameters: tuple[str, ...] = ()
    """Names in the path."""
    query: Mapping[str, Schema] = field(default_factory=dict)
    """What may be asked in the query, by name."""
    open: bool = False
    """It needs no API key."""
    statuses: tuple[int, ...] = tuple(status for status in _STATUSES if status not in {409, UPGRADE_REQUIRED})


@dataclass(frozen=True, slots=True)
class Chapter:
    """Operations that are served by choice, and the schemas of their bodies and answers."""

    operations: tuple[Operation, ...]
    schemas: Mapping[str, Schema]


_OPERATIONS: Final = (
    Operation(path=Endpoint.CHAT, summary="Answer a chat", takes="ChatRequest", answer="Chat", streams=True),
    Operation(
        path=Endpoint.COMPLETIONS,
        summary="Continue a prompt",
        takes="CompletionRequest",
        answer="Completion",
        streams=True,
    ),
    Operation(
        path=Endpoint.RESPONSES, summary="Make a response", takes="ResponseRequest", answer="Response", streams=True
    ),
    Operation(
        path=Endpoint.RESPONSES,
        method="get",
        summary="Connect by WebSocket, and make responses with `response.create`",
        answer="",
        decided=False,
        statuses=_UPGRADED,
    ),
    Operation(
        path=Endpoint.MESSAGES, summary="Answer a message", takes="MessageRequest", answer="Message", streams=True
    ),
    Operation(
        path=Endpoint.COUNT_TOKENS, summary="Count a message's tokens", takes="CountRequest", answer="TokenCount"
    ),
    Operation(path=Endpoint.EMBEDDINGS, summary="Embed texts", takes="EmbeddingRequest", answer="Embeddings"),
    Operation(path=Endpoint.RERANK, summary="Order documents for a query", takes="RerankRequest", answer="Ranks"),
    Operation(path=Endpoint.SCORE, summary="Score pairs of texts", takes="ScoreRequest", answer="Embeddings"),
    Operation(path=Endpoint.CLASSIFY, summary="Classify texts", takes="PoolingRequest", answer="Embeddings"),
    Operation(path=Endpoint.POOLING, summary="States of texts", takes="PoolingRequest", answer="Embeddings"),
    Operation(path=Endpoint.TOKENIZE, summary="Token ids of a text", takes="TokenizeRequest", answer="Tokens"),
    Operation(path=Endpoint.DETOKENIZE, summary="The text of token ids", takes="DetokenizeRequest", answer="Text"),
    *(
        Operation(path=path, summary=summary, takes="SpeechRequest", form=True, answer="Heard", streams=True)
        for path, summary in (
            (Endpoint.TRANSCRIPTIONS, "Write down what is said"),
            (Endpoint.TRANSLATIONS, "Write down in English what is said"),
        )
    ),
    Operation(path="/v1/route", summary="Decide, and send nothing", takes="RouteRequest", answer="Decision"),
    Operation(path="/v1/models", method="get", summary="All models", answer="Models", decided=False, statuses=LOCAL),
    Operation(
        path="/v1/models/{model}",
        method="get",
        summary="One model",
        answer="Model",
        decided=False,
        parameters=("model",),
        statuses=LOCAL,
    ),
    *(
        Operation(
            path=f"/v1/responses/{{response_id}}{below}",
            method=method,
            summary=summary,
            answer=answer,
            decided=False,
            parameters=("response_id",),
            statuses=LOCAL,
        )
        for below, method, summary, answer in (
            ("", "get", "A stored response", "Response"),
            ("", "delete", "Forget a stored response", "DeletedResponse"),
            ("/input_items", "get", "The items that a stored response answers", "InputItems"),
            ("/cancel", "post", "Refused: there are no background responses to cancel", "Response"),
        )
    ),
    Operation(
        path="/v1/responses/input_tokens",
        summary="Count the tokens of a response's input",
        takes="ResponseRequest",
        answer="InputTokens",
        decided=False,
    ),
    Operation(
        path="/v1/responses/compact",
        summary="Refused: conversations are not compacted",
        answer="Response",
        decided=False,
        statuses=LOCAL,
    ),
    *(
        Operation(path=path, method="get", summary=summary, answer=answer, decided=False, statuses=_OPEN, open=True)
        for path, summary, answer in (
            *((path, "Whether to send requests here", "Health") for path in HEALTH_PATHS),
            (VERSION_PATH, "Cachefleet's version", "Version"),
        )
    ),
)


def document(*chapters: Chapter) -> bytes:
    """Return the whole document as JSON, with what is served by choice."""
    paths: dict[str, dict[str, Any]] = {}
    schemas: dict[str, Schema] = {**REQUESTS, **ANSWERS, **ERRORS}
    for chapter in chapters:
        schemas |= chapter.schemas
    for operation in (*_OPERATIONS, *(one for chapter in chapters for one in chapter.operations)):
        paths.setdefault(str(operation.path), {})[operation.method] = _told(operation)
    return msgspec.json.encode(
        {
            "openapi": "3.1.0",
            "info": {"title": "Cachefleet gateway", "version": "v1", "description": _ABOUT},
            "paths": paths,
            "components": {"schemas": schemas, "securitySchemes": _SCHEMES},
            # With no keys configured nobody needs one.
            "security": [{}, *({name: []} for name in _SCHEMES)],
        }
    )


def serves_document(*chapters: Chapter) -> Handler:
    """Return the ASGI handler that answers with the document; it is built for the first who asks."""
    built = list[bytes]()

    async def serve(_: Scope, __: Receive, reply: Reply) -> None:
        if not built:
            built.append(document(*chapters))
        await reply.whole(200, [JSON], built[0])

    return serve


_SCHEMES: Final[Mapping[str, Schema]] = {
    "bearer": {"type": "http", "scheme": "bearer"},
    "apiKey": {"type": "apiKey", "in": "header", "name": "x-api-key"},
}


def _told(operation: Operation) -> dict[str, Any]:
    told: dict[str, Any] = {"summary": operation.summary, "responses": _responses(operation)}
    if operation.open:
        told["security"] = []
    if operation.takes:
        kind = _FORM if operation.form else _JSON
        told["requestBody"] = {"required": True, "content": {kind: {"schema": ref(operation.takes)}}}
    named = [
        {"name": name, "in": "path", "required": True, "schema": TEXT | {"minLength": 1}}
        for name in operation.parameters
    ]
    asked = [{"name": name, "in": "query", "schema": schema} for name, schema in operation.query.items()]
    if named or asked:
        told["parameters"] = [*named, *asked]
    return told


def _responses(operation: Operation) -> dict[str, Any]:
    errors = {str(status): _error(operation, status) for status in operation.statuses}
    return _answers(operation) | errors


def _answers(operation: Operation) -> dict[str, Any]:
    if not operation.answer:
        return {"101": {"description": "A WebSocket: a JSON text for each event."}}
    content = {_BYTES: {"schema": {}}} if operation.answer == BYTES else _json(ref(operation.answer))
    if operation.streams:
        content[_EVENTS] = {"schema": _EVENT}
    headers = _headers(_HEADERS) if operation.decided else {}
    return {"200": {"description": "The answer.", "content": content, "headers": headers}}


def _error(operation: Operation, status: int) -> dict[str, Any]:
    anthropic = operation.path.startswith(ANTHROPIC_PATH)
    headers = _headers(["retry-after"]) if status in _LATER else {}
    shape = ref("AnthropicError" if anthropic else "Error")
    return {"description": _STATUSES[status], "content": _json(shape), "headers": headers}


def _json(schema: Schema) -> dict[str, Any]:
    return {_JSON: {"schema": schema}}


def _headers(names: Iterable[str]) -> dict[str, Any]:
    return {name: {"schema": TEXT, "description": _HEADERS.get(name, "Seconds to wait.")} for name in names}
