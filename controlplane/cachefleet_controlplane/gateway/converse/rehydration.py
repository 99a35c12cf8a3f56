"""``previous_response_id``: the whole input of a request from stored and new items. Pure.

Items are concatenated as they were sent and answered; what of them a prompt shows is up to the engine (A14, A15).
``instructions`` are not carried over, as the API has it.
"""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import Raw, Struct

from cachefleet_controlplane.gateway.apis.request_info import RequestInfo
from cachefleet_controlplane.wire.errors import ApiError
from cachefleet_controlplane.wire.json_members import NULL, READ_ERRORS, Fields, encode, is_null, lax_bool
from cachefleet_runtime.sse import event_data, event_name

PREVIOUS: Final = "previous_response_id"
MAX_ID: Final = 128
_KEPT: Final = frozenset({"completed", "incomplete"})
_TELLING: Final = frozenset(
    {
        *(b"response.created", b"response.queued", b"response.in_progress"),
        *(b"response.completed", b"response.incomplete", b"response.failed"),
    }
)
"""Events that hold the response."""


class _Item(Struct, frozen=True):
    type: str = "message"


class _Told(Struct, frozen=True):
    id: str = ""
    status: str = ""
    output: list[Raw] = []  # msgspec copies it


class _Message(Struct, frozen=True):
    role: str
    content: Raw
    type: str = "message"


_items = msgspec.json.Decoder(list[Raw])
_item = msgspec.json.Decoder(_Item)
_told = msgspec.json.Decoder(_Told)
_fields = msgspec.json.Decoder(Fields)
_text = msgspec.json.Decoder(str)


class Finished(Struct, frozen=True):
    """A response that can be continued."""

    id: str
    output: tuple[Raw, ...]

    @property
    def calls_tool(self) -> bool:
        """The conversation continues with a tool's result."""
        return any(_kind(item) == "function_call" for item in self.output)


def previous_id(info: RequestInfo) -> str:
    """Return the id of the response that a request continues; "" for none. ApiError 400."""
    if not info.ask.gives(PREVIOUS):
        return ""
    try:
        given = _text.decode(info.fields[PREVIOUS])
    except READ_ERRORS:
        given = ""
    if not is_id(given):
        raise ApiError(400, f"`{PREVIOUS}` must be text of 1 to {MAX_ID} printable characters.", param=PREVIOUS)
    return given


def is_id(name: str) -> bool:
    """Whether text can be a response's id; what a database may not take for text never gets there."""
    return 0 < len(name) <= MAX_ID and name.isprintable()


def wants_storing(info: RequestInfo) -> bool:
    """Whether the response is to be stored: unless ``store`` is false, however that is written."""
    return is_null(info.fields, "store") or lax_bool(info.fields["store"])


def input_items(info: RequestInfo) -> tuple[Raw, ...]:
    """Return a request's input items, text as a user's message. ApiError 400 for neither text nor a list."""
    given = info.fields.get("input", NULL)
    try:
        return tuple(_items.decode(given))
    except msgspec.ValidationError:
        pass
    except READ_ERRORS as error:
        raise ApiError(400, "`input` must be text or a list.", param="input") from error
    try:
        _text.decode(given)
    except READ_ERRORS as error:
        raise ApiError(400, "`input` must be text or a list.", param="input") from error
    return (Raw(encode(_Message("user", given))),)


def joined(items: tuple[Raw, ...]) -> bytes:
    """Return items as one JSON array; ``split`` is its inverse."""
    return encode(items)


def split(items: bytes) -> tuple[Raw, ...]:
    """Return the items of an array that ``joined`` made. DecodeError."""
    return tuple(_items.decode(items))


def continued(info: RequestInfo, before: tuple[Raw, ...]) -> RequestInfo:
    """Return the request with the items ``before`` in front of its own input."""
    fields = {name: raw for name, raw in info.fields.items() if name != PREVIOUS}
    fields["input"] = Raw(joined((*before, *input_items(info))))
    return info.with_fields(fields)


def finished(body: bytes) -> Finished | None:
    """Return id and output of a whole response; None where it failed, was cancelled or cannot be read."""
    try:
        told = _told.decode(body)
    except READ_ERRORS:
        return None
    kept = told.status in _KEPT and is_id(told.id)
    return Finished(told.id, tuple(told.output)) if kept else None


def restated(body: bytes, previous: str) -> bytes:
    """Return a response whose ``previous_response_id`` is ``previous``; unchanged where it has no such member."""
    try:
        fields = _fields.decode(body)
    except READ_ERRORS:
        return body
    return encode(fields | {PREVIOUS: Raw(encode(previous))}) if PREVIOUS in fields else body


def restated_event(event: bytes, previous: str) -> bytes:
    """As ``restated``, for an event that holds the response; others are unchanged."""
    name = event_name(event)
    if name not in _TELLING:
        return event
    try:
        fields = _fields.decode(event_data(event))
    except READ_ERRORS:
        return event
    if "response" not in fields:
        return event
    fields["response"] = Raw(restated(bytes(fields["response"]), previous))
    return b"event: %b\ndata: %b\n\n" % (name, encode(fields))


def told_response(event: bytes) -> bytes:
    """Return the response in the last event of a stream; b"" where that has none."""
    try:
        return bytes(_fields.decode(event_data(event)).get("response", Raw(b"")))
    except READ_ERRORS:
        return b""


def _kind(item: Raw) -> str:
    try:
        return _item.decode(item).type
    except READ_ERRORS:
        return ""
