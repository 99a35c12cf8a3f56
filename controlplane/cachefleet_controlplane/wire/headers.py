"""Headers that mean something to this gateway: a request's name, sessions of agents. Pure.

Which headers go to workers and come back from them is native code's (``headers.rs``).
"""

from __future__ import annotations

from collections.abc import Iterable
from operator import itemgetter
from typing import Final

Header = tuple[bytes, bytes]
_name_of = itemgetter(0)

AGENT_HEADERS: Final = (
    (b"x-claude-code-session-id", b"x-claude-code-agent-id"),
    (b"x-opencode-session", b""),
    (b"x-session-affinity", b""),
    (b"session-id", b"thread-id"),
    (b"session_id", b""),
)
"""By which coding agents (Claude Code, OpenCode twice, Codex, Codex before 2026) name a session, and within it one of
several threads, whose turns run at once; the first that is there counts."""

MODEL_REWRITES: Final = frozenset({b"x-llm-d-model-name-rewrite", b"x-gateway-model-name-rewrite"})
"""By which clients of llm-d name another model than their body does; the second is its former name."""
DROPPED_REASON: Final = "x-llm-d-request-dropped-reason"
"""By which llm-d's clients are told why a request was sent to no worker."""

ACCOUNT: Final = b":account"
"""In place of a header's name: by what the gateway names a request to its worker. No client can send it."""
REQUEST_ID: Final = b"x-request-id"
MAX_REQUEST_ID: Final = 128
"""Bytes of a request id that are remembered; a longer one is not."""

NAMES: Final = "cachefleet.names"
"""Member of an ASGI scope: headers with the request's name, which every answer has."""
ANTHROPIC_REQUEST_ID: Final = b"request-id"
"""As Anthropic's clients read it."""


def has_any(headers: Iterable[Header], names: frozenset[bytes]) -> bool:
    """Whether any header has one of these names; for the ones that few requests have, before they are read."""
    return not names.isdisjoint(map(_name_of, headers))


def rate_limit_header(unit: bytes, value: bytes, *, anthropic: bool) -> bytes:
    """The name under which an API tells a ``value`` (limit, remaining, reset) of a limit of requests or of tokens."""
    form = (b"anthropic-ratelimit", unit, value) if anthropic else (b"x-ratelimit", value, unit)
    return b"-".join(form)


RATE_LIMIT_HEADERS: Final = tuple(
    rate_limit_header(unit, value, anthropic=anthropic)
    for anthropic in (False, True)
    for unit in (b"requests", b"tokens", *((b"input-tokens", b"output-tokens") if anthropic else ()))
    for value in (b"limit", b"remaining", b"reset")
)
"""All headers that tell what limits leave."""


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
