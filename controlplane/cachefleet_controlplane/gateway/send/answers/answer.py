"""Workers' errors in the form of the API that was asked."""

from __future__ import annotations

import re
from typing import Final

import msgspec
from msgspec import Struct

from cachefleet_controlplane.gateway.send.answers.context_overflow import overflow_in
from cachefleet_controlplane.wire.errors import MODEL_NOT_FOUND, ApiError, error_within
from cachefleet_controlplane.wire.json_members import READ_ERRORS
from cachefleet_runtime.sse import event_data

NO_WORDS: Final = "The worker failed."
_ERROR: Final = b'"error"'
_ERRORS: Final = (b'{"error"', b'{"type":"error"')
_STATUS: Final = {
    "invalid_request_error": 400,
    "authentication_error": 401,
    "permission_error": 403,
    "not_found_error": 404,
    "request_too_large": 413,
    "rate_limit_error": 429,
    "timeout_error": 504,
    "overloaded_error": 529,
}
"""Statuses of errors that have a type in place of a code."""
_DIGITS: Final = 9
"""Of a code in a text, at most: any more are no status."""


class _ErrorMembers(Struct, frozen=True):
    code: int | str | None = 0
    type: str = ""
    message: str = ""
    param: str | None = None


class _Error(Struct, frozen=True):
    error: _ErrorMembers


class _BareError(Struct, frozen=True):
    error: str = ""
    detail: str = ""


_error = msgspec.json.Decoder(_Error)
_event_error = msgspec.json.Decoder(_ErrorMembers)
_bare_error = msgspec.json.Decoder(_BareError)


def restate_size(body: bytes, *, sent: int, asked: int) -> bytes:
    """Return a 400 body in which the count of our body's members (``sent``) is the client's (``asked``)."""
    needle = b"<dict of %d items>" % sent
    if sent == asked or needle not in body:
        return body
    # Only where the body itself is what lacks a member: a member's own size is the client's already.
    pattern = rb"('loc': 'body\.[^.']+', 'msg': 'Field required', 'input': ')" + re.escape(needle)
    return re.sub(pattern, rb"\g<1><dict of %d items>" % asked, body)


def error_code(event: bytes) -> int:
    """Return the HTTP status of an error event, in any API's shape; 0 for every other event."""
    if _ERROR not in event:
        return 0  # as nearly all
    data = event_data(event)
    if not data.startswith(_ERRORS):
        return 0
    told = _error_members(data)
    if told is None:
        return 0
    if isinstance(told.code, int) and told.code:
        return told.code
    if isinstance(told.code, str) and len(told.code) <= _DIGITS and told.code.isascii() and told.code.isdigit():
        return int(told.code)
    return _STATUS.get(told.type, 500)


def error_message(body: bytes) -> str:
    """Return the message of a worker's error, in any API's shape; "" where it has none that can be read."""
    told = _error_members(body)
    if told is not None and told.message:
        return told.message
    try:
        bare = _bare_error.decode(body)
    except READ_ERRORS:
        return ""
    return bare.error or bare.detail


def read_error(path: str, status: int, body: bytes, *, words: str = NO_WORDS) -> ApiError:
    """Return a worker's error, in any API's shape, as the ApiError of the API that ``path`` belongs to.

    ``words`` stand for a message that cannot be read. A code that is a number is the status.
    """
    told, message = _error_members(body), error_message(body) or words
    if status == 400 and (overflow := overflow_in(message)) is not None:
        return overflow.error(path, message)
    if told is None:
        return ApiError(status, message)
    if status == 404 and told.param == "model":
        return ApiError(status, message, param=told.param, code=MODEL_NOT_FOUND)
    code = told.code if isinstance(told.code, str) and not told.code.isdigit() else None
    return ApiError(status, message, param=told.param, code=code or None)


def restated_event(path: str, event: bytes, *, sequence: int = 0) -> bytes:
    """Return an error event as the API that ``path`` belongs to has it; every other event is unchanged."""
    status = error_code(event)
    return error_within(path, read_error(path, status, event_data(event)), sequence=sequence) if status else event


def _error_members(data: bytes) -> _ErrorMembers | None:
    for decoder in (_error, _event_error):
        try:
            found = decoder.decode(data)
        except READ_ERRORS:
            continue
        return found.error if isinstance(found, _Error) else found
    return None
