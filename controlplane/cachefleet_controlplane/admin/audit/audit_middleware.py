"""ASGI middleware that notes each request which is not a mere reading, before its answer goes out."""

from __future__ import annotations

import secrets
import sys
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from cachefleet_controlplane.internal_auth.admin_rights import KEYS, ROUTING, TENANTS
from cachefleet_controlplane.internal_auth.authorizer import Asked
from cachefleet_controlplane.store.audit_log import AuditLog
from cachefleet_controlplane.store.audit_records import MAX_TEXT, AuditRecord
from cachefleet_controlplane.wire.http_exchange import CLIENT_GONE_STATUS

FAILED_STATUS: Final = 500
"""What whoever raises an unexpected error is answered with, further out."""
MAX_CHANGE_BYTES: Final = 4096
"""A longer body is not kept."""
_READS: Final = frozenset({"GET", "HEAD", "OPTIONS"})
_TELLING: Final = frozenset({ROUTING, TENANTS, KEYS})
"""Resources whose requests' bodies hold no secret, prompt or key."""
_BY: Final = "cachefleet_by"
_CHANGE: Final = "cachefleet_change"


def identified(scope: Scope, user: str, question: Asked) -> None:
    """Say who makes a request, once that is known, and which right it takes."""
    scope.setdefault("state", {})[_BY] = (user, question)


def note_change(request: Request, change: Mapping[str, Any]) -> None:
    """Say what a request changed, for the log; in place of its body. No prompt, key or other secret."""
    request.scope.setdefault("state", {})[_CHANGE] = change


class Audited:
    """Notes requests whose user is known, with the status that they got; 401s have no user, and are only counted."""

    def __init__(self, app: ASGIApp, audit: AuditLog, wall_clock: Callable[[], float]) -> None:
        self._app = app
        self._audit = audit
        self._wall_clock = wall_clock

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] in _READS:
            await self._app(scope, receive, send)
            return
        scope.setdefault("state", {})
        noted = _Noted(scope, receive, send, self._note)
        try:
            await self._app(scope, noted.receive, noted.send)
        finally:
            if not noted.done:
                failed = isinstance(sys.exception(), Exception)  # else it was cancelled, or nobody answered
                await self._note(noted, FAILED_STATUS if failed else CLIENT_GONE_STATUS, "")

    async def _note(self, noted: _Noted, status: int, made: str) -> None:
        noted.done = True
        user, question = noted.scope["state"].get(_BY, ("", None))
        if question is None:
            return
        path = noted.scope["path"].removeprefix(noted.scope.get("root_path", ""))
        await self._audit.record(
            AuditRecord(
                id=secrets.token_hex(8),
                at=self._wall_clock(),
                username=_text(user),
                address=_address(noted.scope),
                method=noted.scope["method"][:16],
                path=_text(path),
                verb=question.verb,
                resource=question.resource,
                status=status,
                made=_text(made),
                change=noted.change(question) if status < 400 else None,
            )
        )


@dataclass(slots=True)
class _Noted:
    """One request, its body as far as it is kept, and whether it was noted."""

    scope: MutableMapping[str, Any]
    receive_on: Receive
    send_on: Send
    note: Callable[[_Noted, int, str], Any]
    body: bytearray = field(default_factory=bytearray)
    done: bool = False

    async def receive(self) -> Message:
        message = await self.receive_on()
        if len(self.body) <= MAX_CHANGE_BYTES:
            self.body += message.get("body", b"")
        return message

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            await self.note(self, message["status"], Headers(raw=message["headers"]).get("location", ""))
        await self.send_on(message)

    def change(self, question: Asked) -> Mapping[str, Any] | None:
        """What the request asked for, where that may be told."""
        if told := self.scope["state"].get(_CHANGE):
            return dict(told)
        if question.resource not in _TELLING or not 0 < len(self.body) <= MAX_CHANGE_BYTES:
            return None
        try:
            return msgspec.json.decode(bytes(self.body), type=dict[str, Any])
        except msgspec.DecodeError:
            return None


def _address(scope: Scope) -> str:
    client = scope.get("client")
    return str(client[0])[:64] if client else ""


def _text(given: str) -> str:
    """A text that every database takes: of printable characters, and not too long."""
    return "".join(one if one.isprintable() else "\ufffd" for one in given[:MAX_TEXT])
