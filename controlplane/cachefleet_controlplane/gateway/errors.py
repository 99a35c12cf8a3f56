"""Errors in OpenAI's shape: ``{"error": {"message", "type", "param", "code"}}``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

_TYPES: Final = {
    400: "BadRequestError",
    404: "NotFoundError",
    405: "MethodNotAllowedError",
    408: "RequestTimeoutError",
    413: "RequestTooLargeError",
    429: "RateLimitError",
    500: "InternalServerError",
    502: "BadGatewayError",
    503: "ServiceUnavailableError",
    504: "GatewayTimeoutError",
}

Headers = tuple[tuple[bytes, bytes], ...]


class ApiError(Exception):
    """What the client is told instead of an answer; ``headers`` go with it."""

    def __init__(
        self, status: int, message: str, *, param: str | None = None, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.headers: Headers = tuple((k.encode("latin-1"), v.encode("latin-1")) for k, v in (headers or {}).items())

    @property
    def body(self) -> bytes:
        return error_body(self.status, self.message, self.param)


def error_body(status: int, message: str, param: str | None = None) -> bytes:
    kind = _TYPES.get(status, "InternalServerError")
    return msgspec.json.encode({"error": {"message": message, "type": kind, "param": param, "code": status}})


def error_event(status: int, message: str) -> bytes:
    """The event that ends a stream which broke after its first byte, as vLLM itself would write it."""
    return b"data: " + error_body(status, message) + b"\n\ndata: [DONE]\n\n"


def no_ready_worker(model: str, *, retry_after: int) -> ApiError:
    """503: there is nobody to ask, or everybody who was asked failed before the first byte."""
    message = f"No worker of model `{model}` is ready. Try again in {retry_after} s."
    return ApiError(503, message, headers={"retry-after": str(retry_after)})
