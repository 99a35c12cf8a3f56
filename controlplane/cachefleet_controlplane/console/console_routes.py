"""The console's routes, and what wraps each: a session where one is needed, errors as pages."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import urlencode

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from cachefleet_controlplane.admin.auth_middleware import BodyBound
from cachefleet_controlplane.console.admin_calls import AdminCalls
from cachefleet_controlplane.console.doc_pages import DocPages
from cachefleet_controlplane.console.live.live_fleet import LiveFleet, Row, ViewedFleet
from cachefleet_controlplane.console.page_headers import PageHeaders
from cachefleet_controlplane.console.pages import tenant_pages
from cachefleet_controlplane.console.pages.alert_page import alert_page
from cachefleet_controlplane.console.pages.capacity_page import capacity_page, confirm_advice
from cachefleet_controlplane.console.pages.doc_page import doc_page
from cachefleet_controlplane.console.pages.fleet_page import FleetEvents, fleet_page
from cachefleet_controlplane.console.pages.flush_page import flush_form, flush_page
from cachefleet_controlplane.console.pages.history_data import history_data
from cachefleet_controlplane.console.pages.lost_hit_page import lost_hit_page
from cachefleet_controlplane.console.pages.prefix_page import prefix_page
from cachefleet_controlplane.console.pages.request_pages import request_page, requests_page
from cachefleet_controlplane.console.pages.sign_in_pages import SignInPages, sign_out
from cachefleet_controlplane.console.pages.usage_page import usage_page
from cachefleet_controlplane.console.sign_in.failed_sign_ins import FailedSignIns
from cachefleet_controlplane.console.sign_in.one_time_codes import OneTimeCodes
from cachefleet_controlplane.console.sign_in.visitor_sessions import PATH, Sessions, drop_cookie
from cachefleet_controlplane.console.static_files import StaticFiles
from cachefleet_controlplane.console.templating import Templates
from cachefleet_controlplane.console.visit import ConsoleParts, SignedOutError, Visit, find_visit
from cachefleet_controlplane.internal_auth.authorizer import AdminAuthorizer

MAX_FORM: Final = 64 * 1024
Show = Callable[[Visit], Awaitable[ASGIApp]]


def console_parts(fleet: ViewedFleet, *, admin: ASGIApp, authorize: AdminAuthorizer) -> ConsoleParts:
    """What the console's requests share."""
    static = StaticFiles()
    templates = Templates({"static": static.url})
    render: Callable[[Row], str] = templates.macro("fleet_rows.html", "row")
    return ConsoleParts(
        admin=AdminCalls(admin),
        authorize=authorize,
        live=LiveFleet(fleet, render),
        sessions=Sessions(),
        failed_sign_ins=FailedSignIns(),
        codes=OneTimeCodes(),
        static=static,
        templates=templates,
        docs=DocPages(),
    )


def console_routes(parts: ConsoleParts) -> ASGIApp:
    """The application, to be mounted at ``/console``."""
    signing = SignInPages(parts)
    routes = [
        Route("/static/{name}", parts.static.serve),
        Route("/sign-in", signing.ask),
        Route("/sign-in", signing.sign_in, methods=["POST"]),
        Route("/enter", signing.enter),
        Route("/enter", signing.take, methods=["POST"]),
        Route("/sign-in-links", signing.link, methods=["POST"]),
        *(_route(parts, *one) for one in _ROUTES),
        _route(parts, "GET", "/events", FleetEvents()),
    ]
    errors = _Errors(parts)
    handlers: dict[Any, Any] = {SignedOutError: errors.signed_out, HTTPException: errors.refused}
    app = Starlette(routes=routes, exception_handlers=handlers)
    return PageHeaders(BodyBound(app, MAX_FORM))


_ROUTES: Final[tuple[tuple[str, str, Show], ...]] = (
    ("GET", "/", fleet_page),
    ("GET", "/data/history", history_data),
    ("GET", "/requests", requests_page),
    ("GET", "/requests/{id}", request_page),
    ("GET", "/prefixes", prefix_page),
    ("GET", "/lost-hits", lost_hit_page),
    ("GET", "/capacity", capacity_page),
    ("POST", "/capacity", confirm_advice),
    ("GET", "/alerts", alert_page),
    ("GET", "/docs/{name}", doc_page),
    ("GET", "/usage", usage_page),
    ("GET", "/tenants", tenant_pages.tenants_page),
    ("POST", "/tenants", tenant_pages.make_tenant),
    ("GET", "/tenants/{tenant}", tenant_pages.tenant_page),
    ("POST", "/tenants/{tenant}/limits", tenant_pages.change_limits),
    ("POST", "/tenants/{tenant}/keys", tenant_pages.new_key),
    ("POST", "/tenants/{tenant}/keys/rotate", tenant_pages.rotate_keys),
    ("POST", "/tenants/{tenant}/keys/revoke", tenant_pages.revoke_key),
    ("GET", "/flush", flush_page),
    ("POST", "/flush", flush_form),
    ("POST", "/sign-out", sign_out),
)


def _route(parts: ConsoleParts, method: str, path: str, show: Show) -> Route:
    async def shown(request: Request) -> Any:
        return await show(find_visit(request, parts))

    return Route(path, shown, methods=[method])


class _Errors:
    """Errors as pages; a part of a page that a script asked for is told to go to one."""

    def __init__(self, parts: ConsoleParts) -> None:
        self._parts = parts

    async def signed_out(self, request: Request, error: Exception) -> Response:
        """Go and sign in, and come back where a page was asked for."""
        query = {"told": str(error)} if str(error) else {}
        if request.method == "GET" and "hx-request" not in request.headers and request.url.path != f"{PATH}/events":
            query["next"] = request.url.path + (f"?{request.url.query}" if request.url.query else "")
        where = f"{PATH}/sign-in?{urlencode(query)}" if query else f"{PATH}/sign-in"
        answer: Response = RedirectResponse(where, status_code=303)
        if request.headers.get("accept", "").startswith("text/event-stream") or "hx-request" in request.headers:
            answer = Response(status_code=401, headers={"hx-redirect": where})
        drop_cookie(request, answer)
        return answer

    async def refused(self, request: Request, error: Exception) -> Response:
        """A page that says what is wrong."""
        assert isinstance(error, HTTPException)  # noqa: S101 - registered for nothing else
        words = error.detail if error.detail != HTTPStatus(error.status_code).phrase else _WORDS.get(error.status_code)
        return self._parts.templates.page(
            "error.html",
            status=error.status_code,
            title=HTTPStatus(error.status_code).phrase,
            words=words or error.detail,
            path=request.url.path,
            signed_in=False,
            csrf="",
        )


_WORDS: Final = {404: "There is no such page.", 405: "This page cannot be asked for in that way."}
