"""Conversations: their names, their states, and the worker preferred for them (A18). Pure.

A session is active while it gets turns, paused or completed where its client says so with
``x-cachefleet-session-state``, expired where it got no turn for its pool's time to live. An expired one is not
continued: its next turn is the first of a new one under the same name.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from cachefleet_controlplane.gateway.converse.checkpoint import Checkpoint, Owner
from cachefleet_controlplane.wire.errors import ApiError
from cachefleet_controlplane.wire.headers import AGENT_HEADERS, Header, has_any

SESSION_HEADER: Final = b"x-cachefleet-session"
STATE_HEADER: Final = b"x-cachefleet-session-state"
MAX_NAME: Final = 256
_NAMING: Final = frozenset({SESSION_HEADER, *(header for header, _ in AGENT_HEADERS)})
_NAME: Final = re.compile(rb"[\x21-\x7e]{1,%d}" % MAX_NAME)


class ConversationState(StrEnum):
    """State of a conversation; the first three are values of the client's header."""

    ACTIVE = "active"
    PAUSED = "paused"
    COMPLETED = "completed"
    EXPIRED = "expired"


class Event(StrEnum):
    """What changes the state of a conversation."""

    TURN = "turn"
    PAUSE = "pause"
    COMPLETE = "complete"
    EXPIRE = "expire"


_LIVING: Final = {
    Event.TURN: ConversationState.ACTIVE,
    Event.PAUSE: ConversationState.PAUSED,
    Event.COMPLETE: ConversationState.COMPLETED,
    Event.EXPIRE: ConversationState.EXPIRED,
}
TABLE: Final[Mapping[ConversationState, Mapping[Event, ConversationState]]] = MappingProxyType(
    {
        ConversationState.ACTIVE: _LIVING,
        ConversationState.PAUSED: _LIVING,
        ConversationState.COMPLETED: _LIVING,
        ConversationState.EXPIRED: {Event.EXPIRE: ConversationState.EXPIRED},
    }
)
"""An expired conversation gets no further turn: another one begins."""
EVENTS: Final = {
    ConversationState.ACTIVE: Event.TURN,
    ConversationState.PAUSED: Event.PAUSE,
    ConversationState.COMPLETED: Event.COMPLETE,
}
"""The event of a turn that asks for this state."""
_PREFERRED: Final = frozenset({ConversationState.ACTIVE, ConversationState.PAUSED})


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """A conversation's present state; ``checkpoint`` is its last one, ``expires`` in Unix seconds."""

    id: str
    owner: Owner
    name: str
    """Keyed digest of the client's name for it."""
    seq: int
    state: ConversationState
    expires: float
    checkpoint: Checkpoint | None

    def at(self, now: float) -> ConversationState:
        """Return its state at ``now``, in Unix seconds."""
        return self.state if now < self.expires else TABLE[self.state][Event.EXPIRE]

    def preferred(self, now: float) -> str:
        """Return the worker to prefer among equals; "" where there is none, or the conversation is over."""
        return self.checkpoint.worker if self.checkpoint is not None and self.at(now) in _PREFERRED else ""


def after(state: ConversationState, event: Event) -> ConversationState:
    """Return the state after an event. ValueError for what cannot happen."""
    try:
        return TABLE[state][event]
    except KeyError as error:
        raise ValueError(f"{event} while {state}") from error


def session_name(headers: Sequence[Header]) -> bytes:
    """Return the client's name for its conversation, ours or an agent's; b"" where it has none. ApiError 400."""
    if not has_any(headers, _NAMING):
        return b""
    given = [value for name, value in headers if name == SESSION_HEADER]
    if not given:
        return _agent_session(headers)
    if len(given) > 1 or _NAME.fullmatch(given[0]) is None:
        message = f"`{SESSION_HEADER.decode()}` must be 1 to {MAX_NAME} visible ASCII characters, given once."
        raise ApiError(400, message, param=SESSION_HEADER.decode())
    return given[0]


def _agent_session(headers: Sequence[Header]) -> bytes:
    """A name that no ``x-cachefleet-session`` can be; b"" without a usable header: agents do not know of us."""
    sent = dict(headers)
    for header, thread in AGENT_HEADERS:
        session = sent.get(header, b"")
        if session and _NAME.fullmatch(session):
            return b" ".join((header, session, sent.get(thread, b"")[:MAX_NAME]))
    return b""


def session_event(headers: Iterable[Header]) -> Event:
    """Return the event of a turn by its state header; TURN without one. ApiError 400."""
    given = next((value.decode("latin-1") for name, value in headers if name == STATE_HEADER), ConversationState.ACTIVE)
    try:
        return EVENTS[ConversationState(given)]
    except (KeyError, ValueError) as error:
        allowed = ", ".join(EVENTS)
        message = f"`{STATE_HEADER.decode()}` must be one of {allowed}."
        raise ApiError(400, message, param=STATE_HEADER.decode()) from error


def name_digest(key: bytes, kind: str, name: bytes) -> str:
    """Return the digest that a conversation is stored under: its name may hold anything of the client's."""
    return hmac.new(key, kind.encode() + b"\0" + name, hashlib.sha256).hexdigest()
