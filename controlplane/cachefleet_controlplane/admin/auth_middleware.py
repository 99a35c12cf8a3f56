"""ASGI middleware of the admin API: authorizes requests before routing and before their body is read; bounds bodies."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

from starlette.datastructures import Headers
from starlette.middleware.body_limit import RequestBodyLimitMiddleware
from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from cachefleet_controlplane.admin.audit.audit_middleware import identified
from cachefleet_controlplane.admin.problem_responses import problem, unavailable
from cachefleet_controlplane.internal_auth.admin_rights import asked
from cachefleet_controlplane.internal_auth.authorizer import (
    AccessUnavailableError,
    AdminAuthorizer,
    Asked,
    Authorization,
    bearer,
)
from cachefleet_core.pool.spec import GROUP

_STILL: Final = "cachefleet_still"
Still = Callable[[], Awaitable[bool]]
"""Whether what was allowed is so still; it is where that cannot be checked now."""


def still_allowed(request: Request) -> Still:
    """The question for whoever answers a request for long. The request has passed ``Guard``."""
    still: Still = request.scope["state"][_STILL]
    return still


class Guard:
    """Answers 401, 403 or 503 unless ``authorize`` allows the request, judged by method and path alone.

    ``user_of`` gives the user of a token that was just judged, for the audit log; ``question`` the right that a method
    and path take.
    """

    def __init__(
        self,
        app: ASGIApp,
        authorize: AdminAuthorizer,
        user_of: Callable[[str], str],
        question: Callable[[str, str], Asked] = asked,
    ) -> None:
        self._app = app
        self._question = question
        self._authorize = authorize
        self._user_of = user_of

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            raise RuntimeError(f"the admin API speaks HTTP only, not {scope['type']}")
        refusal = await self._refusal(scope)
        await (refusal or self._app)(scope, receive, send)

    async def _refusal(self, scope: Scope) -> ASGIApp | None:
        path = scope["path"].removeprefix(scope.get("root_path", ""))
        question = self._question(scope["method"], path)
        token = bearer(Headers(scope=scope).get("authorization", ""))
        try:
            access = await self._authorize(token, question)
        except AccessUnavailableError as error:
            return unavailable(str(error))
        if access is not Authorization.UNAUTHENTICATED:
            identified(scope, self._user_of(token), question)
            scope["state"][_STILL] = partial(self._still, token, question)
        return _REFUSALS[access](question)

    async def _still(self, token: str, question: Asked) -> bool:
        try:
            return await self._authorize(token, question) is Authorization.ALLOWED
        except AccessUnavailableError:
            return True


class BodyBound:
    """Answers 413 to an announced body over ``max_bytes``; any other body is cut off at that bound."""

    def __init__(self, app: ASGIApp, max_bytes: int) -> None:
        self._app = RequestBodyLimitMiddleware(app, max_body_size=max_bytes)
        self._max_bytes = max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        length = Headers(scope=scope).get("content-length", "0") if scope["type"] == "http" else "0"
        if length.isdecimal() and int(length) > self._max_bytes:
            refusal = problem(413, f"a body may have {self._max_bytes} bytes", headers={"Connection": "close"})
            await refusal(scope, receive, send)
        else:
            await self._app(scope, receive, send)


def _unauthenticated(_asked: Asked) -> ASGIApp:
    return problem(401, "a valid bearer token is needed", headers={"WWW-Authenticate": "Bearer"})


def _forbidden(asked: Asked) -> ASGIApp:
    return problem(403, f"the token's user may not {asked}; such rights are of the API group {GROUP}")


_REFUSALS = {
    Authorization.ALLOWED: lambda _: None,
    Authorization.UNAUTHENTICATED: _unauthenticated,
    Authorization.FORBIDDEN: _forbidden,
}
