"""Workers' answers: their usage and errors, and taking out what only the gateway asked for, byte for byte.

vLLM 0.32 writes the same members whether or not token ids are asked for, with null in place of ids. So ids are replaced
by null, and no other byte changes. Usage at the end of a stream is an event of its own (``"choices":[]``), and it has
the system fingerprint, which otherwise is in the last event of each choice: where usage is taken out, the fingerprint
is put back there. The JSON of events is compact, which the quick tests for members rely on; a quote inside text is
always escaped, so they match no text.
"""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec
from msgspec import Raw, Struct

from cachefleet_controlplane.gateway.upstream.answers.context_overflow import overflow_in
from cachefleet_controlplane.gateway.upstream.answers.stream_count import StreamCount
from cachefleet_controlplane.gateway.upstream.answers.token_id_cutting import IDS, can_be_cut, cut_ids
from cachefleet_controlplane.gateway.upstream.answers.usage import Usage, usage_in
from cachefleet_controlplane.gateway.upstream.answers.zero_cached_tokens import event_without_zero
from cachefleet_controlplane.wire.errors import MODEL_NOT_FOUND, ApiError, error_within
from cachefleet_controlplane.wire.json_members import READ_ERRORS, Fields
from cachefleet_runtime.sse import DONE, event_data

HELD_BYTES: Final = 4 * 1024 * 1024
"""Bound on events held back until the fingerprint is known."""

NO_WORDS: Final = "The worker failed."
_NULL: Final = Raw(b"null")
_ABSENT: Final = Raw(b"")  # msgspec reads no union with Raw
_EMPTY: Final = b"{}"
_HOLLOW: Final = b'"delta":{}'
_NO_CHOICES: Final = b'"choices":[]'
_FINISHED: Final = b'"finish_reason":"'
_USAGE: Final = b'"usage":{'
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

_encode = msgspec.json.Encoder().encode
_fields = msgspec.json.Decoder(Fields)
_choices = msgspec.json.Decoder(list[Fields])


class _Answer(Struct, frozen=True):
    usage: Any = None


class _Tail(Struct, frozen=True):
    choices: list[Raw]
    usage: Any = None
    system_fingerprint: Raw = _ABSENT


class _Told(Struct, frozen=True):
    code: int | str | None = 0
    type: str = ""
    message: str = ""
    param: str | None = None


class _Error(Struct, frozen=True):
    error: _Told


class _BareError(Struct, frozen=True):
    error: str = ""
    detail: str = ""


_answer = msgspec.json.Decoder(_Answer)
_tail = msgspec.json.Decoder(_Tail)
_error = msgspec.json.Decoder(_Error)
_event_error = msgspec.json.Decoder(_Told)
_bare_error = msgspec.json.Decoder(_BareError)


def read_usage(body: bytes) -> Usage | None:
    """Return the usage of a whole answer; None where it has none."""
    try:
        return usage_in(_answer.decode(body).usage)
    except READ_ERRORS:
        return None


def without_ids(body: bytes) -> bytes:
    """Return an answer, or an event's JSON, with null for token ids; unchanged where it is not vLLM's."""
    if IDS not in body:
        return body
    if can_be_cut(body):
        return cut_ids(body)
    try:
        top = _fields.decode(body)
        choices = _choices.decode(top["choices"])
    except (*READ_ERRORS, KeyError):
        return body
    _clear_ids(top, choices)
    return _encode(top)


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
    told = _told(data)
    if told is None:
        return 0
    if isinstance(told.code, int) and told.code:
        return told.code
    if isinstance(told.code, str) and len(told.code) <= _DIGITS and told.code.isascii() and told.code.isdigit():
        return int(told.code)
    return _STATUS.get(told.type, 500)


def error_message(body: bytes) -> str:
    """Return the message of a worker's error, in any API's shape; "" where it has none that can be read."""
    told = _told(body)
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
    told, message = _told(body), error_message(body) or words
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


def _told(data: bytes) -> _Told | None:
    for decoder in (_error, _event_error):
        try:
            found = decoder.decode(data)
        except READ_ERRORS:
            continue
        return found.error if isinstance(found, _Error) else found
    return None


class StreamFilter:
    """Takes out of one stream what only the gateway asked for; fed whole events, in order.

    ``fingerprint`` is the worker's last system fingerprint, as JSON (b"" where it uses none); while it is None, not
    known, the last event of a choice waits for it. With a single choice it always waits: usage follows at once.
    ``echoes``: so many choices begin with their prompt, which may be among the ids.
    """

    def __init__(
        self, *, strip_usage: bool, strip_ids: bool, single: bool, fingerprint: bytes | None = None, echoes: int = 0
    ) -> None:
        self.count = StreamCount()
        self.usage: Usage | None = None
        self.fingerprint = fingerprint
        self.sequence = 0
        self.strips_usage = strip_usage
        """It takes usage out."""
        self.strips_ids = strip_ids
        """It takes token ids out."""
        self.single = single
        """It has one choice."""
        self.omits_zero = False
        """Counts of cached tokens that are 0 are left out."""
        self._echoes, self._echoed = echoes, 0
        self._wait = single or fingerprint is None
        self._begun = False
        self._held: list[bytes] = []
        self._held_bytes = 0

    @property
    def passes(self) -> bool:
        """It passes on at once what ends no choice, with nothing but token ids taken out."""
        return self._begun and not self._held and self.counts_ids

    @property
    def counts_ids(self) -> bool:
        """What is produced shows by its ids alone: no prompt is among them."""
        return not self._echoes

    @property
    def ends_unread(self) -> bool:
        """Others may pass on its end, where that is an ordinary one."""
        return self.single and (self.strips_usage or not self.omits_zero)

    def begin(self) -> None:
        """Others pass on the first events, which tell no usage."""
        self._begun = True

    def feed(self, event: bytes) -> bytes:
        """Return the bytes to send to the client now."""
        data = event_data(event)
        if not data or data == DONE:
            return self.end() + event if data else self._pass(event)
        if data.startswith(_ERRORS):
            return self._pass(restated_event("", event))
        if not self._begun:
            self._begun = True
            if _USAGE in data and _NO_CHOICES not in data:
                self.strips_usage = False  # the worker is set to send running usage to everybody
        if _NO_CHOICES in data and (tail := self._read_tail(data)) is not None:
            return self._last(event, tail)
        return self._delta(event, data)

    def end(self) -> bytes:
        """Return what is still held back, unchanged; for a stream that ends without usage."""
        return self._release(b"")

    def _delta(self, event: bytes, data: bytes) -> bytes:
        finished = self.strips_usage and _FINISHED in data
        self._note(data)
        if self.strips_ids and IDS in data:
            stripped = _delta_without_ids(data)
            if stripped is None:
                return b""
            event = _event(stripped)
        if not finished:
            return self._pass(event)
        if not self._wait:
            return _signed(event, self.fingerprint or b"")
        return self._hold(event)

    def _note(self, data: bytes) -> None:
        if self.counts_ids:
            self.count.note_ids(data)
            return
        before = self.count.produced
        self.count.note_text(data)
        if self._echoed < self._echoes and self.count.produced > before:
            self._echoed, self.count.produced = self._echoed + 1, before

    def _pass(self, event: bytes) -> bytes:
        return self._hold(event) if self._held else event

    def _hold(self, event: bytes) -> bytes:
        self._held.append(event)
        self._held_bytes += len(event)
        return self._release(b"") if self._held_bytes > HELD_BYTES else b""

    def _release(self, fingerprint: bytes) -> bytes:
        held, self._held, self._held_bytes = self._held, [], 0
        return b"".join(_signed(event, fingerprint) if _FINISHED in event else event for event in held)

    def _last(self, event: bytes, tail: _Tail) -> bytes:
        self.usage = usage_in(tail.usage)
        if not self.strips_usage:
            return self._pass(event_without_zero(event) if self.omits_zero else event)
        self.fingerprint = bytes(tail.system_fingerprint)
        return self._release(self.fingerprint)

    @staticmethod
    def _read_tail(data: bytes) -> _Tail | None:
        try:
            tail = _tail.decode(data)
        except READ_ERRORS:
            return None
        return tail if not tail.choices and tail.usage is not None else None


def _event(data: bytes) -> bytes:
    return b"data: " + data + b"\n\n"


def _signed(event: bytes, fingerprint: bytes) -> bytes:
    """Return the last event of a choice with the fingerprint as its last member."""
    data = event_data(event)
    if not fingerprint or fingerprint == b"null" or not data.endswith(b"}"):
        return event
    return _event(data[:-1] + b',"system_fingerprint":' + fingerprint + b"}")


def _delta_without_ids(data: bytes) -> bytes | None:
    """Return an event's JSON with null for ids; None for an event that exists only because ids were asked for."""
    if _HOLLOW not in data and can_be_cut(data):
        return cut_ids(data)
    try:
        top = _fields.decode(data)
        choices = _choices.decode(top["choices"])
    except (*READ_ERRORS, KeyError):
        return data
    if len(choices) == 1 and _is_hollow(choices[0]):
        return None
    _clear_ids(top, choices)
    return _encode(top)


def _is_hollow(choice: Fields) -> bool:
    """Whether a parser held the text back: without ids vLLM sends no event for it."""
    return (
        bytes(choice.get("delta", b"")) == _EMPTY
        and bytes(choice.get("finish_reason", _NULL)) == b"null"
        and bytes(choice.get("logprobs", _NULL)) == b"null"
    )


def _clear_ids(top: Fields, choices: list[Fields]) -> None:
    for part in (top, *choices):
        for name in ("prompt_token_ids", "token_ids"):
            if name in part:
                part[name] = _NULL
    top["choices"] = Raw(_encode(choices))
