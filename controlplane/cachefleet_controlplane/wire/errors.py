"""Errors in the shape of the API that a path belongs to, as a whole answer and as the end of a stream.

OpenAI: ``{"error": {"message", "type", "param", "code"}}``, the code always text; in a stream the same as an event and
``[DONE]``, for responses an event of type ``error``. Anthropic: ``{"type": "error", "error": {"type", "message"}}`` in
both.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Protocol

import msgspec

ANTHROPIC_PATH: Final = "/v1/messages"
RESPONSES_PATH: Final = "/v1/responses"
MODEL_NOT_FOUND: Final = "model_not_found"
"""OpenAI's code where there is no such model."""

_OPENAI_TYPES: Final = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
_ANTHROPIC_TYPES: Final = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
    529: "overloaded_error",
}

MAX_WORDS: Final = 500
"""Bytes of an error in no API's shape that are repeated."""

MAX_SHOWN: Final = 200
"""Characters of a client's own name (a model, a response, a path) that an error repeats."""

Headers = tuple[tuple[bytes, bytes], ...]

_encode = msgspec.json.encode


class ApiError(Exception):
    """An error for the client, with extra ``headers``; its path decides its shape.

    ``code`` names the error more exactly than ``status``, whose text stands in its field without one.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.code = code
        self.headers: Headers = tuple((k.encode("latin-1"), v.encode("latin-1")) for k, v in (headers or {}).items())


def shown(name: str) -> str:
    """Return as much of a client's own name as an error repeats."""
    return name if len(name) <= MAX_SHOWN else f"{name[:MAX_SHOWN]}..."


def error_body(path: str, error: ApiError) -> bytes:
    """The body of an error answer."""
    return _shape(path).body(error)


def error_of(status: int, body: bytes) -> ApiError:
    """The error that the body of an error answer tells, in any API's shape."""
    try:
        told = _bodies.decode(body).error
    except (msgspec.DecodeError, UnicodeDecodeError):
        return ApiError(status, body[:MAX_WORDS].decode(errors="replace"))
    code = None if told.code == str(status) else told.code
    return ApiError(status, told.message, param=told.param, code=code)


def error_event(path: str, error: ApiError, *, sequence: int = 0) -> bytes:
    """The bytes that end a stream that failed after its first byte; ``sequence`` is the number of events before it."""
    shape = _shape(path)
    return shape.event(error, sequence) + shape.end


def error_within(path: str, error: ApiError, *, sequence: int = 0) -> bytes:
    """The event of an error, without what ends a stream."""
    return _shape(path).event(error, sequence)


def no_ready_worker(model: str, *, retry_after: int, headers: Mapping[str, str] | None = None) -> ApiError:
    """503: no worker is ready, or all that were tried failed before their first byte."""
    message = f"No worker of model `{model}` is ready. Try again in {retry_after} s."
    return ApiError(503, message, headers=headers or {"retry-after": str(retry_after)})


class _Told(msgspec.Struct):
    message: str = ""
    param: str | None = None
    code: str | None = None


class _Body(msgspec.Struct):
    error: _Told


_bodies = msgspec.json.Decoder(_Body)


class _Shape(Protocol):
    @property
    def end(self) -> bytes: ...
    def body(self, error: ApiError) -> bytes: ...
    def event(self, error: ApiError, sequence: int) -> bytes: ...


class _OpenAI:
    end = b"data: [DONE]\n\n"

    def body(self, error: ApiError) -> bytes:
        return _encode({"error": {"message": error.message, "type": openai_type(error.status)} | _named(error)})

    def event(self, error: ApiError, sequence: int) -> bytes:  # noqa: ARG002 # events have no numbers here
        return b"data: " + self.body(error) + b"\n\n"


class _Responses(_OpenAI):
    end = b""

    def event(self, error: ApiError, sequence: int) -> bytes:
        told = {"type": "error", "message": error.message} | _named(error)
        return b"event: error\ndata: " + _encode(told | {"sequence_number": sequence}) + b"\n\n"


class _Anthropic:
    end = b""

    def body(self, error: ApiError) -> bytes:
        kind = _ANTHROPIC_TYPES.get(error.status, "api_error" if error.status >= 500 else "invalid_request_error")
        return _encode({"type": "error", "error": {"type": kind, "message": error.message}})

    def event(self, error: ApiError, sequence: int) -> bytes:  # noqa: ARG002 # events have no numbers here
        return b"event: error\ndata: " + self.body(error) + b"\n\n"


def openai_type(status: int) -> str:
    """OpenAI's type of an error with that status."""
    return _OPENAI_TYPES.get(status, "server_error" if status >= 500 else "invalid_request_error")


def _named(error: ApiError) -> dict[str, str | None]:
    """What is wrong, and the name of it: text always, as clients of typed languages read nothing else."""
    return {"param": error.param, "code": error.code or str(error.status)}


_PLAIN: Final = _OpenAI()
_SHAPES: Final[tuple[tuple[str, _Shape], ...]] = ((ANTHROPIC_PATH, _Anthropic()), (RESPONSES_PATH, _Responses()))


def _shape(path: str) -> _Shape:
    """The only place that knows which path belongs to which API."""
    return next((shape for root, shape in _SHAPES if path == root or path.startswith(root + "/")), _PLAIN)
