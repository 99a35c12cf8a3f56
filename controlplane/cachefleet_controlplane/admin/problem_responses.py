"""Errors of the admin API as problem JSON (RFC 9457), with the fields that are wrong."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any, Final

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.routing import Route

from cachefleet_controlplane.admin.schemas import FieldProblem, Problem
from cachefleet_controlplane.store.store_errors import StoreError
from cachefleet_controlplane.wire.errors import ApiError, shown

MEDIA_TYPE = "application/problem+json"
RETRY_SECONDS = 2
_NO_TEXT: Final = "the body is no JSON in UTF-8"


def problem(
    status: int, detail: str, *, errors: Sequence[FieldProblem] = (), headers: Mapping[str, str] | None = None
) -> JSONResponse:
    """A problem answer; its title is the status's phrase."""
    body = Problem(title=HTTPStatus(status).phrase, status=status, detail=detail, errors=tuple(errors))
    content = body.model_dump(mode="json", by_alias=True)
    return JSONResponse(content, status_code=status, headers=dict(headers or {}), media_type=MEDIA_TYPE)


def unavailable(detail: str) -> JSONResponse:
    """503 with Retry-After."""
    return problem(503, detail, headers={"Retry-After": str(RETRY_SECONDS)})


async def http_problem(request: Request, error: Exception) -> JSONResponse:
    """Handler of HTTPException: unknown paths, wrong methods, and refusals by routes."""
    assert isinstance(error, HTTPException)  # noqa: S101 - registered for nothing else
    if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED and (allowed := _allowed(request)):
        return problem(405, f"only {allowed} is done there", headers={"Allow": allowed})
    return problem(error.status_code, _detail(request.scope["path"], error.detail), headers=error.headers)


def _detail(path: str, detail: str) -> str:
    """What an error says, in words of ours where they are Starlette's or FastAPI's."""
    if detail == HTTPStatus.NOT_FOUND.phrase:
        other = "; it is the gateway's: ask on its port (8080)" if path.startswith("/v1/") else ""
        return f"there is no {shown(path)} here{other}"
    return _NO_TEXT if detail == "There was an error parsing the body" else detail


def _allowed(request: Request) -> str:
    """The methods of all routes of the path; Starlette names those of the first."""
    path = request.scope["path"].removeprefix(request.scope.get("root_path", ""))
    routes = [route for route in request.app.routes if isinstance(route, Route) and route.path_regex.match(path)]
    return ", ".join(sorted({method for route in routes for method in route.methods or ()}))


async def invalid_problem(request: Request, error: Exception) -> JSONResponse:
    """Handler of invalid requests: tells where the fault is and what is allowed, never the value sent."""
    assert isinstance(error, RequestValidationError)  # noqa: S101 - registered for nothing else
    untyped = not request.headers.get("content-type", "").partition(";")[0].strip().endswith("json")
    errors = [_field_problem(each, untyped=untyped) for each in error.errors()]
    malformed = any(e["type"] == "json_invalid" for e in error.errors())
    return problem(400 if malformed else 422, "the request is not valid", errors=errors)


def _field_problem(found: Mapping[str, Any], *, untyped: bool) -> FieldProblem:
    """One fault of a request; ``untyped`` tells that its body was not said to be JSON, and so was not read."""
    place, said = found["loc"], found["msg"].replace("valid tuple", "valid list")
    if found["type"] == "json_invalid":
        return FieldProblem(field="body", message=f"no JSON: {found['ctx']['error']} at character {place[-1]}")
    if place == ("body",) and untyped and found["type"] != "missing":
        said = "must be a JSON object, sent with the header Content-Type: application/json"
    return FieldProblem(field=".".join(map(str, place)), message=said)


async def api_problem(_request: Request, error: Exception) -> JSONResponse:
    """Handler of ApiError, which ``/explain`` raises: status and message that a client of the gateway would get."""
    assert isinstance(error, ApiError)  # noqa: S101 - registered for nothing else
    errors = [FieldProblem(field=f"body.{error.param}", message=error.message)] if error.param else []
    headers = {name.decode(): value.decode() for name, value in error.headers}
    return problem(error.status, error.message, errors=errors, headers=headers)


async def store_problem(_request: Request, error: Exception) -> JSONResponse:
    """Handler of StoreError: 503."""
    return unavailable(str(error) if isinstance(error, StoreError) else "the store does not answer")


async def not_found_problem(_request: Request, error: Exception) -> JSONResponse:
    """Handler of TenantNotFoundError: 404."""
    return problem(404, str(error))


async def conflict_problem(_request: Request, error: Exception) -> JSONResponse:
    """Handler of TenantConflictError: 409."""
    return problem(409, str(error))


async def unexpected_problem(_request: Request, _error: Exception) -> JSONResponse:
    """Handler of all other errors: 500; Starlette logs the error with its traceback."""
    return problem(500, "an unexpected error, which was logged")
