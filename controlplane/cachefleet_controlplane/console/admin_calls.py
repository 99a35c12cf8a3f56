"""The admin API, asked in this process as a client would ask it: same rights, same answers, no connection."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote, urlencode

import msgspec
from starlette.types import ASGIApp, Message, Scope

PATH: Final = "/admin/v1"
ANSWER_SECONDS: Final = 30.0
"""A page waits no longer for an answer."""


@dataclass(frozen=True, slots=True)
class AdminAnswer:
    """An answer of the admin API: its status, its JSON, None where it has none, and its ETag, "" without one."""

    status: int
    data: Any = None
    etag: str = ""

    @property
    def ok(self) -> bool:
        """Whether it did what was asked; a redirection, as of a path that ends in a slash, does nothing."""
        return self.status < 300

    @property
    def items(self) -> Sequence[Any]:
        """The items of a list; none where it was refused."""
        found: Sequence[Any] = self.data["items"] if self.ok else ()
        return found

    @property
    def problem(self) -> str:
        """What is wrong, in words for people; "" where nothing is."""
        if self.ok:
            return ""
        found = self.data if isinstance(self.data, dict) else {}
        fields = [f"{one['field'].removeprefix('body.')}: {one['message']}" for one in found.get("errors", ())]
        return "; ".join(fields) or str(found.get("detail") or f"status {self.status}")


class AdminCalls:
    """Calls ``app``, the admin API as an ASGI application."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def ask(
        self,
        method: str,
        path: str,
        *,
        token: str,
        query: Mapping[str, str] | None = None,
        body: Any = None,
        if_match: str = "",
        client: tuple[str, int] | None = None,
    ) -> AdminAnswer:
        """The answer to a request for a path below the API's root, by the bearer of ``token`` at ``client``.

        ``if_match``: an ETag, where only what still has it may be changed.
        """
        content = b"" if body is None else msgspec.json.encode(body)
        scope = _scope(method, PATH + path, query or {}, client)
        scope["headers"] = [
            (b"authorization", f"Bearer {token}".encode("latin-1", "replace")),
            (b"content-type", b"application/json"),
            (b"content-length", str(len(content)).encode()),
            *([(b"if-match", if_match.encode("latin-1", "replace"))] if if_match else ()),
        ]
        exchange = _Exchange(content)
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                await self._app(scope, exchange.receive, exchange.send)
        except TimeoutError:
            return AdminAnswer(503, {"detail": "the admin API did not answer in time"})
        return exchange.answer()


class _Exchange:
    """The two sides of one ASGI call."""

    def __init__(self, content: bytes) -> None:
        self._content = content
        self._asked = False
        self._status = 500
        self._etag = ""
        self._pieces: list[bytes] = []

    async def receive(self) -> Message:
        if self._asked:
            await asyncio.Event().wait()  # nobody leaves: the call ends with its answer, or is cancelled
        self._asked = True
        return {"type": "http.request", "body": self._content, "more_body": False}

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._status = message["status"]
            self._etag = dict(message.get("headers", ())).get(b"etag", b"").decode("latin-1")
        else:
            self._pieces.append(message.get("body", b""))

    def answer(self) -> AdminAnswer:
        body = b"".join(self._pieces)
        try:
            return AdminAnswer(self._status, msgspec.json.decode(body) if body else None, self._etag)
        except msgspec.DecodeError:
            return AdminAnswer(self._status)


def _scope(method: str, path: str, query: Mapping[str, str], client: tuple[str, int] | None) -> Scope:
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": path,
        "raw_path": quote(path).encode(),
        "root_path": PATH,
        "query_string": urlencode(query).encode(),
        "headers": [],
        "client": client,
        "server": None,
    }
