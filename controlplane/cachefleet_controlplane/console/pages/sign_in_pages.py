"""Signing in with a pasted token or by a link that is good once, making such a link, and signing out."""

from __future__ import annotations

from typing import Final

from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response

from cachefleet_controlplane.console.sign_in.form_checks import form_of
from cachefleet_controlplane.console.sign_in.one_time_codes import LIFE_SECONDS
from cachefleet_controlplane.console.sign_in.visitor_sessions import PATH, drop_cookie, session_id, set_cookie
from cachefleet_controlplane.console.visit import ConsoleParts, Visit
from cachefleet_controlplane.internal_auth.admin_rights import asked
from cachefleet_controlplane.internal_auth.authorizer import AccessUnavailableError, Authorization, bearer

_ENTER: Final = f"{PATH}/enter"
_WRONG: Final = "This token is not the admin API's, or it is not valid any more. Nothing was kept of it."
_FORBIDDEN: Final = "This token is valid, but its user may not list PrefixCachePools, which the console needs."
_USED: Final = "This link was used, or is older than ten minutes. Paste the token, or make a new link."


class SignInPages:
    """The routes that need no session."""

    def __init__(self, parts: ConsoleParts) -> None:
        self._parts = parts

    async def ask(self, request: Request) -> Response:
        """GET /sign-in: the form for a token."""
        told = request.query_params.get("told", "")
        return self._page(next_path=request.query_params.get("next", ""), told=_TOLD.get(told, ""))

    async def sign_in(self, request: Request) -> Response:
        """POST /sign-in: check the token and begin a session."""
        form = await form_of(request, None)
        token = bearer(f"Bearer {form.get('token', '').strip()}")
        wanted = form.get("next", "")
        status, problem = await self._check(request, token)
        if problem:
            return self._page(next_path=wanted, problem=problem, status=status)
        return self._begin(request, token, wanted)

    async def enter(self, request: Request) -> Response:
        """GET /enter: the page of a link; its script sends the code, which is no part of the address asked for."""
        del request
        return self._parts.templates.page("enter.html", path=_ENTER, signed_in=False, csrf="")

    async def take(self, request: Request) -> Response:
        """POST /enter: a session for the code of a link. One that there is of the same token stays.

        One of another token is replaced only by who says so: whoever sends somebody a link would have them act as its
        maker, unawares.
        """
        form = await form_of(request, None)
        code, present = form.get("code", ""), self._parts.sessions.find(session_id(request), use=False)
        token = self._parts.codes.peek(code)
        if token is None:
            return self._page(problem=_USED, status=403)
        if present and not present.is_of(token) and form.get("instead") != "yes":
            return self._parts.templates.page("enter_instead.html", path=_ENTER, signed_in=False, csrf="", code=code)
        self._parts.codes.take(code)
        status, problem = await self._check(request, token)
        if problem:
            return self._page(problem=problem, status=status)
        return _to("") if present and present.is_of(token) else self._begin(request, token, "")

    async def link(self, request: Request) -> Response:
        """POST /sign-in-links by the bearer of a token: a link that signs in once as that bearer."""
        token = bearer(request.headers.get("authorization", ""))
        status, problem = await self._check(request, token)
        if problem:
            return JSONResponse({"detail": problem}, status_code=status)
        path = f"{PATH}/enter#{self._parts.codes.make(token)}"
        return JSONResponse({"path": path, "seconds": LIFE_SECONDS}, status_code=201)

    def _begin(self, request: Request, token: str, wanted: str) -> Response:
        answer = _to(wanted)
        self._parts.sessions.end(session_id(request))
        set_cookie(request, answer, self._parts.sessions.begin(token))
        return answer

    async def _check(self, request: Request, token: str) -> tuple[int, str]:
        """The status and the words of a refusal; 200 and "" where the token is good."""
        failed, address = self._parts.failed_sign_ins, request.client.host if request.client else ""
        if seconds := failed.wait_seconds(address):
            return 429, f"Too many sign-ins from this address have failed. Try again in {seconds} s."
        status, problem = await self._judge(token)
        if status in {401, 403}:
            failed.add(address)
        return status, problem

    async def _judge(self, token: str) -> tuple[int, str]:
        try:
            access = await self._parts.authorize(token, asked("GET", "/pools"))
        except AccessUnavailableError as error:
            return 503, f"The token cannot be checked now: {error}. Try again in a moment."
        return _ANSWERS[access]

    def _page(self, *, next_path: str = "", problem: str = "", told: str = "", status: int = 200) -> Response:
        values = {"next_path": next_path, "problem": problem, "told": told}
        page = self._parts.templates.page(
            "sign_in.html", status=status, path=f"{PATH}/sign-in", signed_in=False, csrf="", **values
        )
        if status in {429, 503}:
            page.headers["retry-after"] = "10" if status == 429 else "2"
        return page


async def sign_out(visit: Visit) -> Response:
    """POST /sign-out: end the session."""
    await visit.form()
    answer = RedirectResponse(f"{PATH}/sign-in?told=out", status_code=303)
    visit.parts.sessions.end(session_id(visit.request))
    drop_cookie(visit.request, answer)
    return answer


_ANSWERS: Final = {
    Authorization.ALLOWED: (200, ""),
    Authorization.UNAUTHENTICATED: (401, _WRONG),
    Authorization.FORBIDDEN: (403, _FORBIDDEN),
}
_TOLD: Final = {
    "out": "You have signed out.",
    "ended": "Your session has ended: it was idle for twelve hours, or the control plane was started anew.",
    "refused": "Your token is not accepted any more. Sign in with one that is.",
}


def _to(wanted: str) -> RedirectResponse:
    """Go to a page of the console, never elsewhere."""
    own = wanted.startswith(f"{PATH}/") and "\\" not in wanted and wanted.isprintable()
    return RedirectResponse(wanted if own else f"{PATH}/", status_code=303)
