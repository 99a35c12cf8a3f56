"""Responses: workers get the whole conversation and store nothing; ``conversations`` does where pools allow it."""

from __future__ import annotations

from typing import Any, Final

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from cachefleet_controlplane.gateway.apis.api import PassingApi, PassingTransformer, StreamTransformer
from cachefleet_controlplane.gateway.apis.request_info import RequestInfo
from cachefleet_controlplane.gateway.send.answers.usage import Usage, usage_in
from cachefleet_controlplane.gateway.send.worker_answer import Answer
from cachefleet_controlplane.wire.errors import ApiError
from cachefleet_controlplane.wire.json_members import NULL, READ_ERRORS
from cachefleet_runtime.sse import event_data, event_name

PREVIOUS: Final = "previous_response_id"
_WHOLE: Final = "responses are not stored here. Send the whole conversation as `input`."
_DELTA: Final = b".delta"
_ENDS: Final = frozenset({b"response.completed", b"response.incomplete", b"response.failed"})


class _Response(Struct, frozen=True):
    usage: Any = None


class _Event(Struct, frozen=True):
    response: _Response


_response = msgspec.json.Decoder(_Response)
_event = msgspec.json.Decoder(_Event)


def not_stored() -> ApiError:
    """Return the ApiError 400 for a use of stored responses other than to continue, show or delete one."""
    return ApiError(400, "Responses are not stored here: send the whole conversation as `input`.")


def without_history(info: RequestInfo) -> RequestInfo:
    """Return the request. ApiError 400 where it continues a stored response."""
    if info.ask.gives(PREVIOUS):
        raise ApiError(400, f"`{PREVIOUS}` is not supported: {_WHOLE}", param=PREVIOUS)
    return info


class ResponsesApi(PassingApi):
    """``/v1/responses``."""

    def usage(self, body: bytes) -> Usage | None:
        """Return the response's usage in the chats' terms; None where it has none."""
        try:
            return _common(_response.decode(body).usage)
        except READ_ERRORS:
            return None

    def whole(self, info: RequestInfo, answer: Answer, *, sent: int) -> Answer:
        """As the base; the engine adds ``tool_choice`` to a body without tools, and counts it as a member."""
        added = int("tool_choice" not in info.fields and bytes(info.fields.get("tools", NULL)) in {b"null", b"[]"})
        return super().whole(replace(info, size=info.size + added), answer, sent=sent + added)

    def transformer(self, info: RequestInfo, fingerprint: bytes | None) -> StreamTransformer:  # noqa: ARG002 # as Api
        """Return the transformer that reads usage from the last event."""
        return _ResponsesSieve(info.endpoint)


class _ResponsesSieve(PassingTransformer):
    def feed(self, event: bytes) -> bytes:
        name = event_name(event)
        if name.endswith(_DELTA):
            self.produced += 1
        elif name in _ENDS:
            self.usage = _usage_of(event_data(event)) or self.usage
        return super().feed(event)


def _usage_of(data: bytes) -> Usage | None:
    try:
        return _common(_event.decode(data).response.usage)
    except READ_ERRORS:
        return None


def _common(told: object) -> Usage | None:
    return usage_in(told, prompt="input", completion="output")
