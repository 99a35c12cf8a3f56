"""Which headers of a client's request are sent to a worker, and which of its answer to the client. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from cachefleet_core.engine.left_answers import NAME_HEADER

Header = tuple[bytes, bytes]

AGENT_HEADERS: Final = (
    (b"x-claude-code-session-id", b"x-claude-code-agent-id"),
    (b"x-opencode-session", b""),
    (b"x-session-affinity", b""),
    (b"session-id", b"thread-id"),
    (b"session_id", b""),
)
"""By which coding agents (Claude Code, OpenCode twice, Codex, Codex before 2026) name a session, and within it one of
several threads, whose turns run at once; the first that is there counts."""

ACCOUNT: Final = b":account"
"""In place of a header's name: by what the gateway names a request to its worker. No client can send it."""
_DROPPED_HEADERS: Final = frozenset(
    {
        ACCOUNT,
        # Hop-by-hop (RFC 9110, 7.6.1), and headers that the client of the next hop sets itself.
        *(b"connection", b"keep-alive", b"proxy-connection", b"te", b"trailer", b"transfer-encoding", b"upgrade"),
        *(b"host", b"content-length", b"content-type", b"content-encoding", b"accept-encoding", b"expect"),
        # Credentials are for us, not for workers.
        *(b"authorization", b"proxy-authorization", b"proxy-authenticate", b"cookie", b"x-api-key"),
        # Which rank of a worker, and vLLM's test hooks: set by this gateway only.
        *(b"x-data-parallel-rank", b"x-cache-threshold", b"x-cache-threshold-finish-reason"),
        # Acted upon by this gateway.
        b"prefer",
        *(name for names in AGENT_HEADERS for name in names),
    }
)
_DROPPED_PREFIXES: Final = (
    b"x-cachefleet-",
    # Where blocks come from, and which rank computes: of gateways of other fleets, and acted upon by connectors.
    *(b"x-prefiller-", b"x-encoder-", b"x-kv-", b"x-data-parallel-"),
    # Which resource is meant, to servers behind a rewriting proxy.
    *(b"x-original-", b"x-rewrite-"),
)
_OF_TRUSTED: Final = frozenset({b"x-vllm-priority", b"x-request-id", b"x-session-id", b"forwarded", b"x-real-ip"})
"""An engine orders requests, names them and finds their sessions by these: only a trusted tenant may say them."""
_OF_TRUSTED_PREFIX: Final = b"x-forwarded-"

_NOT_OF_WORKERS: Final = frozenset(
    {
        # Hop-by-hop, and what this server writes itself.
        *(b"connection", b"keep-alive", b"transfer-encoding", b"upgrade", b"trailer", b"te", b"content-length"),
        *(b"proxy-authenticate", b"proxy-connection", b"date", b"server"),
        # This gateway's own name for the request.
        *(b"x-request-id", b"request-id"),
        # What a client's browser would do at the address of this gateway.
        *(b"set-cookie", b"set-cookie2", b"location", b"content-location", b"refresh"),
        *(b"clear-site-data", b"alt-svc", b"strict-transport-security"),
    }
)
_NOT_OF_WORKERS_PREFIXES: Final = (b"access-control-", b"x-cachefleet-")

REQUEST_ID: Final = b"x-request-id"
MAX_REQUEST_ID: Final = 128
"""Bytes of a request id that are remembered; a longer one is not."""
THRESHOLD_HOOK: Final[Header] = (b"x-cache-threshold-finish-reason", b"true")
"""Makes llm-d's simulator refuse a request; no effect with another value."""


NAMES: Final = "cachefleet.names"
"""Member of an ASGI scope: headers with the request's name, which every answer has."""
ANTHROPIC_REQUEST_ID: Final = b"request-id"
"""As Anthropic's clients read it."""


def answer_names(name: str, *, anthropic: bool) -> tuple[Header, ...]:
    """Return the headers by which a client can name its request to us: the same text under each API's header."""
    text = name.encode()
    return ((REQUEST_ID, text), (ANTHROPIC_REQUEST_ID, text)) if anthropic else ((REQUEST_ID, text),)


def identified(headers: Iterable[Header], name: str) -> list[Header]:
    """Headers with a request id, the client's own or ``name``: the same for all attempts of a request (A16)."""
    given = list(headers)
    return given if any(header == REQUEST_ID for header, _ in given) else [*given, (REQUEST_ID, name.encode())]


def request_id(headers: Iterable[Header]) -> str | None:
    """A client's request id, to be remembered; None without one, or where it is too long or not printable ASCII."""
    for header, value in headers:
        if header == REQUEST_ID:
            text = value.decode("latin-1")
            return text if 0 < len(text) <= MAX_REQUEST_ID and text.isascii() and text.isprintable() else None
    return None


def permitted_headers(headers: Iterable[Header], *, trusted: bool) -> list[Header]:
    """A client's headers without those that only a ``trusted`` tenant may send to an engine."""
    if trusted:
        return list(headers)
    return [
        header for header in headers if header[0] not in _OF_TRUSTED and not header[0].startswith(_OF_TRUSTED_PREFIX)
    ]


def answer_headers(headers: Iterable[Header]) -> tuple[Header, ...]:
    """A worker's headers that a client may see: none of one hop, none that acts for this gateway's address."""
    given = [(name.lower(), value) for name, value in headers]
    named = {part.strip() for name, value in given if name == b"connection" for part in value.lower().split(b",")}
    hidden = _NOT_OF_WORKERS | named
    return tuple(
        (name, value) for name, value in given if name not in hidden and not name.startswith(_NOT_OF_WORKERS_PREFIXES)
    )


def upstream_headers(headers: Iterable[Header], *, key: str, hooked: bool = False) -> list[tuple[str, str]]:
    """A client's headers that a worker may see, and the worker's key; ``hooked`` keeps THRESHOLD_HOOK."""
    given = list(headers)
    named = {part.strip() for name, value in given if name == b"connection" for part in value.lower().split(b",")}
    kept = [
        (name.decode("latin-1"), _header_text(value))
        for name, value in given
        if name not in _DROPPED_HEADERS
        and name not in named
        and not name.startswith(_DROPPED_PREFIXES)
        # Some servers read x_one as x-one, so it could be any of those above.
        and b"_" not in name
    ]
    if hooked and THRESHOLD_HOOK in given:
        kept.append((THRESHOLD_HOOK[0].decode(), THRESHOLD_HOOK[1].decode()))
    # The body was parsed as JSON and is written anew, whatever its client has called it: vLLM takes nothing else.
    kept.append(("content-type", "application/json"))
    kept += [(NAME_HEADER, value.decode()) for name, value in given if name == ACCOUNT]
    # Compressed answers would only have to be inflated here.
    kept.append(("accept-encoding", "identity"))
    if key:
        kept.append(("authorization", f"Bearer {key}"))
    return kept


def _header_text(value: bytes) -> str:
    """Decoded as UTF-8, as the HTTP client encodes it again; Latin-1 where it is not UTF-8."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value.decode("latin-1")
