"""Refusals in vLLM's words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import msgspec

_PYDANTIC: Final = "Bad Request"


class Refusal(Exception):  # noqa: N818 # an answer, not an error of the program
    """A request that the engine answers with an error body."""

    def __init__(self, status: int, message: str, kind: str, param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind
        self.body = msgspec.json.encode(
            {"error": {"message": message, "type": kind, "param": param, "code": status}},
        )


@contextmanager
def as_anthropic() -> Iterator[None]:
    """What the handler of messages refuses has Anthropic's shape; what pydantic refuses before it has not."""
    try:
        yield
    except Refusal as refusal:
        if refusal.kind != _PYDANTIC:
            error = {"type": refusal.kind, "message": str(refusal)}
            refusal.body = msgspec.json.encode({"type": "error", "error": error})
        raise


def bad_request(message: str, param: str | None = None) -> Refusal:
    return Refusal(400, message, "BadRequestError", param)


def bad_parameter(message: str, param: str, value: Any = None) -> Refusal:
    tail = f"(parameter={param}" + ("" if value is None else f", value={value}") + ")"
    return bad_request(f"{message} {tail}", param)


def invalid(kind: str, location: str, message: str, shown: str, context: str = "") -> Refusal:
    """One of pydantic's findings, the way vLLM prints them."""
    return _validation([_finding(kind, location, message, shown, context)], location)


def missing(names: Sequence[str], size: int) -> Refusal:
    """Fields of a body of ``size`` items that are not there, any of which would do or all of which are wanted."""
    shown = f"<dict of {size} items>"
    findings = [_finding("missing", f"body.{name}", "Field required", shown, "") for name in names]
    return _validation(findings, f"body.{names[0]}")


def _finding(kind: str, location: str, message: str, shown: str, context: str) -> str:
    tail = f", 'ctx': {context}" if context else ""
    return f"  {{'type': '{kind}', 'loc': '{location}', 'msg': '{message}', 'input': {shown!r}{tail}}}"


def _validation(findings: Sequence[str], param: str | None) -> Refusal:
    plural = "" if len(findings) == 1 else "s"
    text = f"{len(findings)} validation error{plural}:\n" + "\n".join(findings)
    return Refusal(400, text, _PYDANTIC, param)


def not_json() -> Refusal:
    """Whatever the body is, its content type is not JSON's."""
    return _validation(["  Unsupported Media Type: Only 'application/json' is allowed"], None)


def unknown_response(identity: str) -> Refusal:
    return Refusal(404, f"Response with id '{identity}' not found.", "invalid_request_error", "response_id")


def unknown_model(asked: str, served: str) -> Refusal:
    message = f"The model `{asked}` does not exist. Valid aliases: {served}."
    return Refusal(404, message, "NotFoundError", "model")


def too_long(length: int, limit: int, *, text: bool) -> Refusal:
    """A text is not encoded past the limit, so its length is not known."""
    count = f"at least {limit + 1}" if text else str(length)
    message = (
        f"This model's maximum context length is {limit} tokens. However, your prompt contains {count} input tokens, "
        "which exceeds this limit even without any output tokens. Please reduce the length of the input prompt."
    )
    return bad_parameter(message, "input_tokens", limit + 1 if text else length)


def decoder_prompt_too_long(length: int, limit: int) -> Refusal:
    return bad_request(
        f"The decoder prompt (length {length}) is longer than the maximum model length of {limit}. Make sure that "
        "`max_model_len` is no smaller than the number of text tokens."
    )


def internal(status: int) -> Refusal:
    return Refusal(status, "Injected failure", "InternalServerError" if status >= 500 else "BadRequestError")
