"""One request of a signed-in visitor: what it may ask, and what it is answered with."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse

from cachefleet_controlplane.console.admin_calls import AdminAnswer, AdminCalls
from cachefleet_controlplane.console.doc_pages import DocPages
from cachefleet_controlplane.console.live.live_fleet import LiveFleet
from cachefleet_controlplane.console.sign_in.failed_sign_ins import FailedSignIns
from cachefleet_controlplane.console.sign_in.form_checks import form_of
from cachefleet_controlplane.console.sign_in.one_time_codes import OneTimeCodes
from cachefleet_controlplane.console.sign_in.visitor_sessions import Sessions, VisitorSession, session_id
from cachefleet_controlplane.console.static_files import StaticFiles
from cachefleet_controlplane.console.templating import Templates
from cachefleet_controlplane.internal_auth.admin_rights import asked
from cachefleet_controlplane.internal_auth.authorizer import AccessUnavailableError, AdminAuthorizer, Authorization


class SignedOutError(Exception):
    """The visitor has to sign in (again); the message is one of ``sign_in_pages``' words for why, or ""."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsoleParts:
    """What all requests share."""

    admin: AdminCalls
    authorize: AdminAuthorizer
    live: LiveFleet
    sessions: Sessions
    failed_sign_ins: FailedSignIns
    codes: OneTimeCodes
    static: StaticFiles
    templates: Templates
    docs: DocPages
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    """Set where this replica withdraws: streams end."""


@dataclass(frozen=True, slots=True)
class Visit:
    """A request with its session."""

    request: Request
    session: VisitorSession
    parts: ConsoleParts

    async def ask(
        self, method: str, path: str, query: Mapping[str, str] | None = None, body: Any = None, *, if_match: str = ""
    ) -> AdminAnswer:
        """The admin API's answer, as the visitor. SignedOutError where the token is not good any more."""
        client = self.request.client
        answer = await self.parts.admin.ask(
            method,
            path,
            token=self.session.token,
            query=query,
            body=body,
            if_match=if_match,
            client=(client.host, client.port) if client else None,
        )
        if answer.status == 401:
            raise SignedOutError("refused")
        return answer

    async def may(self, method: str, path: str) -> bool:
        """Whether the visitor may ask that of the admin API; False where that cannot be checked."""
        try:
            return await self.access(method, path) is Authorization.ALLOWED
        except AccessUnavailableError:
            return False

    async def access(self, method: str, path: str) -> Authorization:
        """The answer of the admin API's authorizer. AccessUnavailableError."""
        return await self.parts.authorize(self.session.token, asked(method, path))

    async def check(self, method: str, path: str) -> None:
        """Refuse where the visitor may not: SignedOutError, or HTTPException 403 or 503."""
        try:
            access = await self.access(method, path)
        except AccessUnavailableError as error:
            raise HTTPException(503, f"Your rights cannot be checked now: {error}.") from error
        if access is Authorization.UNAUTHENTICATED:
            raise SignedOutError("refused")
        if access is Authorization.FORBIDDEN:
            raise HTTPException(403, "Your token's user may not see this.")

    async def form(self) -> dict[str, str]:
        """The fields of a form of this session. HTTPException where it is not one."""
        return await form_of(self.request, self.session.csrf)

    def page(self, template: str, *, status: int = 200, **values: Any) -> HTMLResponse:
        """A page with the navigation of signed-in visitors."""
        shared = {"csrf": self.session.csrf, "path": self.request.url.path, "signed_in": True}
        return self.parts.templates.page(template, status=status, **shared, **values)


def find_visit(request: Request, parts: ConsoleParts) -> Visit:
    """The visit of a request with a session's cookie. SignedOutError without one."""
    made = session_id(request)
    session = parts.sessions.find(made) if made else None
    if session is None:
        raise SignedOutError("ended" if made else "")
    return Visit(request, session, parts)
