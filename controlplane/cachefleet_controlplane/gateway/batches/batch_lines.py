"""Lines of a batch's files, in OpenAI's form: requests of an input file, answers and errors of the others. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, Final

import msgspec
from msgspec import Raw, Struct

from cachefleet_controlplane.gateway.batches.batch_object import ErrorLine
from cachefleet_controlplane.wire.errors import ApiError
from cachefleet_controlplane.wire.json_bounds import JsonBounds

MAX_CUSTOM_ID: Final = 512
"""Characters."""
MAX_MODEL: Final = 512
"""Characters, as the database has room for."""
_LEVELS: Final = (64, 256, 1024, 4096, 16_384, 65_536)
"""Bytes of prompts by which lines are ordered: alike to the first, then to the second, and so on."""
_DIGEST_BYTES: Final = 8
_BOUNDS: Final = JsonBounds()
_PARAMETERS: Final = ("custom_id", "method", "url", "body")


class BatchLine(Struct, frozen=True):
    """One request of an input file."""

    custom_id: str
    method: str
    url: str
    body: Raw


class _Prompt(Struct):
    """The members of a body that say what is computed first; and what a batch has to know."""

    model: str = ""
    stream: bool | None = None
    background: bool | None = None
    tools: Raw = Raw(b"")
    instructions: Raw = Raw(b"")
    messages: Raw = Raw(b"")
    prompt: Raw = Raw(b"")
    input: Raw = Raw(b"")

    def begin(self) -> bytes:
        """What stands first in the prompt, in the order of common templates."""
        return b"".join(map(bytes, (self.tools, self.instructions, self.messages, self.prompt, self.input)))


class CheckedLine(Struct, frozen=True):
    """A line without errors."""

    custom_id: str
    model: str
    order: bytes
    """Lines whose prompts begin alike have orders that begin alike."""


class LineError(Exception):
    """What is wrong with a line."""

    def __init__(self, code: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.code, self.message, self.param = code, message, param

    def at(self, line: int) -> ErrorLine:
        """Return it with the line's number."""
        return ErrorLine(self.code, self.message, line, self.param)


_lines = msgspec.json.Decoder(BatchLine)
_objects = msgspec.json.Decoder(dict[str, Raw])
_prompts = msgspec.json.Decoder(_Prompt)
_encode = msgspec.json.encode


def read_line(raw: bytes) -> BatchLine:
    """Return a line that is known to be sound."""
    return _lines.decode(raw)


def check_line(raw: bytes, endpoint: str, secret: bytes) -> CheckedLine:
    """Check a line of a batch that asks ``endpoint``; ``secret`` keys the digests of its order. LineError."""
    line = _parsed(raw)
    if not 0 < len(line.custom_id) <= MAX_CUSTOM_ID:
        raise LineError("invalid_custom_id", f"`custom_id` must have 1 to {MAX_CUSTOM_ID} characters.", "custom_id")
    if line.method != "POST":
        raise LineError("invalid_method", "`method` must be `POST`.", "method")
    if line.url != endpoint:
        raise LineError("invalid_url", f"`url` must be the batch's endpoint, `{endpoint}`.", "url")
    try:
        body = _prompts.decode(line.body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise LineError("invalid_request", f"The body cannot be read: {error}", "body") from error
    if body.stream or body.background:
        wrong = "stream" if body.stream else "background"
        raise LineError("invalid_request", f"`{wrong}` must not be true in a batch.", f"body.{wrong}")
    if len(body.model) > MAX_MODEL or "\0" in body.model:
        raise LineError("invalid_request", f"`model` has {MAX_MODEL} characters at most, and no NUL.", "body.model")
    return CheckedLine(line.custom_id, body.model, prompt_order(body.begin(), secret))


def _parsed(raw: bytes) -> BatchLine:
    try:
        _BOUNDS.check(raw)
        given = _objects.decode(raw)
    except (ApiError, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise LineError("invalid_json_line", "This line is not parseable as a JSON object.") from error
    missing = next((name for name in _PARAMETERS if name not in given), None)
    if missing is not None:
        raise LineError("missing_required_parameter", f"Missing required parameter: '{missing}'.", missing)
    try:
        return _lines.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise LineError("invalid_request", f"The line cannot be read: {error}") from error


def prompt_order(prompt: bytes, secret: bytes) -> bytes:
    """Return keyed digests of longer and longer beginnings of a prompt: sorted by them, lines that begin alike are
    neighbours, those that are alike for longest the nearest. They tell nothing of the text without the secret.
    """
    running = hashlib.blake2b(key=secret, digest_size=_DIGEST_BYTES)
    digests, read = list[bytes](), 0
    for level in _LEVELS:
        running.update(prompt[read:level])
        digests.append(running.digest())
        read = level
    return b"".join(digests)


def places_of(orders: Sequence[bytes]) -> list[int]:
    """Return for each line its place when they run sorted by prompt."""
    places = [0] * len(orders)
    for place, number in enumerate(sorted(range(len(orders)), key=lambda one: (orders[one], one))):
        places[number] = place
    return places


def answer_line(batch: str, number: int, custom_id: str, *, status: int, request_id: str, body: bytes) -> bytes:
    """Return the line of an answer, or of an error that a request was answered with."""
    response = {"status_code": status, "request_id": request_id, "body": Raw(body)}
    return _line(batch, number, custom_id, response=response, error=None)


def unanswered_line(batch: str, number: int, custom_id: str, *, code: str, message: str) -> bytes:
    """Return the line of a request that was not answered."""
    return _line(batch, number, custom_id, response=None, error={"code": code, "message": message})


def _line(batch: str, number: int, custom_id: str, **told: Any) -> bytes:
    name = f"batch_req_{batch.removeprefix('batch_')}_{number}"
    return _encode({"id": name, "custom_id": custom_id, **told}) + b"\n"
