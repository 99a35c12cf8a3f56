"""Records of the store besides checkpoints: encrypted responses, certificates, and finished turns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from cachefleet_controlplane.gateway.converse.checkpoint import Checkpoint, Owner
from cachefleet_controlplane.gateway.converse.sessions import ConversationState
from cachefleet_core.tenancy import TenantId


@dataclass(frozen=True, slots=True, kw_only=True)
class SealedResponse:
    """A conversation up to one response, encrypted; times are Unix seconds."""

    tenant: TenantId
    id: str
    model: str
    sealed: bytes = field(repr=False)
    created: float
    expires: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate:
    """Whether turns can be continued under a render profile (A21); ``counts`` are those of the examination."""

    profile: str
    """Fingerprint of the render profile."""
    contract: str
    """Fingerprint of the index contract."""
    model: str
    certified: bool
    reason: str
    """Why not; "" where it is."""
    at: float
    version: int
    """Version of the examination."""
    counts: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedTurn:
    """What is kept of a finished turn: all of it or, where its head has moved, the response alone.

    ``expected`` is the head that the turn continued; None where it begins the conversation.
    """

    owner: Owner
    name: str
    expected: str | None
    state: ConversationState
    checkpoint: Checkpoint | None
    """None where only a response is kept."""
    response: SealedResponse | None = None
