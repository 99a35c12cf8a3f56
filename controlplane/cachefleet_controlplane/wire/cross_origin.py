"""Which pages of other origins a browser lets read the gateway's answers (CORS), and the headers that say so. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final

from cachefleet_controlplane.wire.headers import RATE_LIMIT_HEADERS, Header

ANY: Final = "*"
MAX_ORIGINS: Final = 64
MAX_ORIGIN: Final = 256
METHODS: Final = b"GET, HEAD, POST, DELETE"
MAX_AGE_SECONDS: Final = 600
EXPOSED: Final = b", ".join(
    (
        *(b"x-request-id", b"request-id", b"retry-after", b"x-should-retry", b"preference-applied"),
        *(b"x-cachefleet-decision", b"x-cachefleet-knowledge", b"x-cachefleet-worker", b"x-cachefleet-control-plane"),
        b"x-cachefleet-trace",
        *RATE_LIMIT_HEADERS,
    )
)
"""Headers of answers that a page may read."""
_ORIGIN: Final = re.compile(r"[a-z][a-z0-9+.-]*://(?:\[[0-9a-f:.]+\]|[^\s/,*\[\]:@?#A-Z]+)(?::[0-9]{1,5})?")
_ASKED: Final = re.compile(rb"[-!#$%&'*+.^_`|~0-9A-Za-z, \t]{0,4096}")
_VARY: Final[Header] = (b"vary", b"origin")


class AllowedOrigins:
    """The origins whose pages may ask, as browsers write them (``https://app.example``), or ``*`` for all."""

    def __init__(self, origins: Iterable[str] = ()) -> None:
        named = tuple(origins)
        self._any = ANY in named
        self._origins = frozenset(origin.encode() for origin in named)

    def __bool__(self) -> bool:
        return bool(self._origins)

    def told(self, headers: Sequence[Header]) -> tuple[Header, ...]:
        """The headers of an answer to a request, an error's, too."""
        if self._any:
            return (b"access-control-allow-origin", ANY.encode()), (b"access-control-expose-headers", EXPOSED)
        origin = _value(headers, b"origin")
        if origin not in self._origins:
            return (_VARY,)
        return (b"access-control-allow-origin", origin), (b"access-control-expose-headers", EXPOSED), _VARY

    def preflight(self, method: str, headers: Sequence[Header]) -> tuple[Header, ...]:
        """The further headers of the answer to a browser that asks before it sends a request; () for any other."""
        if method != "OPTIONS" or not _value(headers, b"access-control-request-method"):
            return ()
        if not self._any and _value(headers, b"origin") not in self._origins:
            return ()
        asked = _value(headers, b"access-control-request-headers")
        allowed = ((b"access-control-allow-headers", asked),) if asked and _ASKED.fullmatch(asked) else ()
        age = (b"access-control-max-age", b"%d" % MAX_AGE_SECONDS)
        return (b"access-control-allow-methods", METHODS), age, *allowed


def is_origin(text: str) -> bool:
    """Whether it is an origin as a browser writes it: a scheme and a host in lower case, a port, and nothing else."""
    return text == ANY or (len(text) <= MAX_ORIGIN and _ORIGIN.fullmatch(text) is not None)


def _value(headers: Iterable[Header], name: bytes) -> bytes:
    return next((value for header, value in headers if header == name), b"")
