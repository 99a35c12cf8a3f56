"""Sessions of signed-in visitors, in memory: from a cookie's random id to a token. They end at a restart."""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from cachefleet_runtime.lru import LruMap

IDLE_SECONDS: Final = 12 * 3600.0
"""A session that is not used for so long has ended."""
MAX_SESSIONS: Final = 1024
MAX_OF_TOKEN: Final = 32
"""Sessions of one token; one more ends that of them which was used longest ago, and nobody else's."""
PATH: Final = "/console"
_ID_BYTES: Final = 32


@dataclass(slots=True)
class VisitorSession:
    """One signed-in browser."""

    token: str = field(repr=False)
    """Of the admin API."""
    csrf: str = field(repr=False)
    """What its forms carry."""
    used: float
    """When it was used last, on the sessions' clock."""

    def is_of(self, token: str) -> bool:
        """Whether it was begun with that token."""
        return hmac.compare_digest(self.token.encode(), token.encode())


class Sessions:
    """At most MAX_SESSIONS; of more the least recently used ends. Ids are kept as digests; ``clock`` in seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, *, limit: int = MAX_SESSIONS) -> None:
        self._clock = clock
        self._sessions: LruMap[bytes, VisitorSession] = LruMap(limit)

    def begin(self, token: str) -> str:
        """Begin a session for a token that was checked; the id for its cookie."""
        made = secrets.token_urlsafe(_ID_BYTES)
        own = [digest for digest, session in self._sessions.items() if session.is_of(token)]
        if len(own) >= MAX_OF_TOKEN:
            self._sessions.pop(own[0], None)  # they are in the order of their use
        self._sessions.put(_digest(made), VisitorSession(token, secrets.token_urlsafe(_ID_BYTES), self._clock()))
        return made

    def find(self, session_id: str, *, use: bool = True) -> VisitorSession | None:
        """The session of a cookie; None where there is none or it was idle for too long. ``use``: it counts as used."""
        session = self._sessions.get(_digest(session_id))
        if session is None:
            return None
        if self._clock() - session.used > IDLE_SECONDS:
            self.end(session_id)
            return None
        if use:
            session.used = self._clock()
            self._sessions.move_to_end(_digest(session_id))
        return session

    def end(self, session_id: str) -> None:
        """End a session, where there is one."""
        self._sessions.pop(_digest(session_id), None)


def cookie_name(request: Request) -> str:
    """The cookie's name. It has the port in it, because browsers keep one set of cookies for all ports of a host."""
    port = request.headers.get("host", "").rpartition(":")[2]
    return f"cachefleet-console-{port if port.isdecimal() and len(port) < 6 else 0}"


def session_id(request: Request) -> str:
    """The id in a request's cookie, "" without one."""
    return request.cookies.get(cookie_name(request), "")


def set_cookie(request: Request, response: Response, made: str) -> None:
    """Give a browser its session."""
    response.set_cookie(
        cookie_name(request), made, path=PATH, httponly=True, samesite="strict", secure=_is_private(request)
    )


def drop_cookie(request: Request, response: Response) -> None:
    """Take a browser's session away."""
    response.delete_cookie(
        cookie_name(request), path=PATH, httponly=True, samesite="strict", secure=_is_private(request)
    )


def _is_private(request: Request) -> bool:
    """Whether its browser uses TLS: to this port, or, as the Origin of its form says, to a proxy before it."""
    return request.url.scheme == "https" or request.headers.get("origin", "").lower().startswith("https://")


def _digest(session_id: str) -> bytes:
    return hashlib.sha256(session_id.encode()).digest()
