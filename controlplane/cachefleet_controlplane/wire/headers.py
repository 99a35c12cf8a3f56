"""Which headers of a request a worker is sent. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

Header = tuple[bytes, bytes]

_DROPPED_HEADERS: Final = frozenset(
    {
        # Of one hop (RFC 9110, 7.6.1), and what the next hop's client sets itself.
        *(b"connection", b"keep-alive", b"proxy-connection", b"te", b"trailer", b"transfer-encoding", b"upgrade"),
        *(b"host", b"content-length", b"accept-encoding", b"expect"),
        # Credentials are for us, not for workers.
        *(b"authorization", b"proxy-authorization", b"proxy-authenticate", b"cookie", b"x-api-key"),
        # Which engine inside a worker, and vLLM's test hooks: ours to say.
        *(b"x-data-parallel-rank", b"x-cache-threshold", b"x-cache-threshold-finish-reason"),
        # A preference that we act upon.
        b"prefer",
    }
)
_DROPPED_PREFIX: Final = b"x-cachefleet-"


REQUEST_ID: Final = b"x-request-id"
THRESHOLD_HOOK: Final[Header] = (b"x-cache-threshold-finish-reason", b"true")
"""Makes llm-d's simulator refuse a request; with another value it means nothing."""


def identified(headers: Iterable[Header], name: str) -> list[Header]:
    """Headers with a request id, the client's own or ``name``: one for all attempts of a request (A16)."""
    given = list(headers)
    return given if any(header == REQUEST_ID for header, _ in given) else [*given, (REQUEST_ID, name.encode())]


def upstream_headers(headers: Iterable[Header], *, key: str, hooked: bool = False) -> list[tuple[str, str]]:
    """A client's headers as far as a worker may see them, and the worker's own key; ``hooked``: the hook too."""
    given = list(headers)
    named = {part.strip() for name, value in given if name == b"connection" for part in value.lower().split(b",")}
    kept = [
        (name.decode("latin-1"), _header_text(value))
        for name, value in given
        if name not in _DROPPED_HEADERS and name not in named and not name.startswith(_DROPPED_PREFIX)
    ]
    if hooked and THRESHOLD_HOOK in given:
        kept.append((THRESHOLD_HOOK[0].decode(), THRESHOLD_HOOK[1].decode()))
    # Compressed bytes could not be looked into.
    kept.append(("accept-encoding", "identity"))
    if key:
        kept.append(("authorization", f"Bearer {key}"))
    return kept


def _header_text(value: bytes) -> str:
    """As the client of the next hop writes it again, which is as UTF-8; Latin-1 where it is none."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value.decode("latin-1")
