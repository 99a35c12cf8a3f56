"""Errors of the admin API as problem JSON (RFC 9457), each with the fields it is about."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from http import HTTPStatus

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from cachefleet_controlplane.admin.schemas import FieldProblem, Problem
from cachefleet_controlplane.store.store_errors import StoreError
from cachefleet_controlplane.wire.errors import ApiError

MEDIA_TYPE = "application/problem+json"
RETRY_SECONDS = 2


def problem(
    status: int, detail: str, *, errors: Sequence[FieldProblem] = (), headers: Mapping[str, str] | None = None
) -> JSONResponse:
    body = Problem(title=HTTPStatus(status).phrase, status=status, detail=detail, errors=tuple(errors))
    content = body.model_dump(mode="json", by_alias=True)
    return JSONResponse(content, status_code=status, headers=dict(headers or {}), media_type=MEDIA_TYPE)


def unavailable(detail: str) -> JSONResponse:
    return problem(503, detail, headers={"Retry-After": str(RETRY_SECONDS)})


async def http_problem(_request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)  # noqa: S101 - registered for nothing else
    return problem(error.status_code, error.detail, headers=error.headers)


async def invalid_problem(_request: Request, error: Exception) -> JSONResponse:
    """What was sent is not repeated: only where the fault is, and what is allowed."""
    assert isinstance(error, RequestValidationError)  # noqa: S101 - registered for nothing else
    errors = [FieldProblem(field=".".join(map(str, e["loc"])), message=e["msg"]) for e in error.errors()]
    malformed = any(e["type"] == "json_invalid" for e in error.errors())
    return problem(400 if malformed else 422, "the request is not valid", errors=errors)


async def api_problem(_request: Request, error: Exception) -> JSONResponse:
    """What a client of the gateway would be told."""
    assert isinstance(error, ApiError)  # noqa: S101 - registered for nothing else
    errors = [FieldProblem(field=f"body.{error.param}", message=error.message)] if error.param else []
    headers = {name.decode(): value.decode() for name, value in error.headers}
    return problem(error.status, error.message, errors=errors, headers=headers)


async def store_problem(_request: Request, error: Exception) -> JSONResponse:
    return unavailable(str(error) if isinstance(error, StoreError) else "the store does not answer")


async def not_found_problem(_request: Request, error: Exception) -> JSONResponse:
    return problem(404, str(error))


async def conflict_problem(_request: Request, error: Exception) -> JSONResponse:
    return problem(409, str(error))


async def unexpected_problem(_request: Request, _error: Exception) -> JSONResponse:
    """Starlette logs the error itself, with its traceback."""
    return problem(500, "an unexpected error, which was logged")
