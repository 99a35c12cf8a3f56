"""What the store keeps besides checkpoints: sealed responses, certificates, and what one turn brings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from cachefleet_controlplane.gateway.conversations.checkpoint import Checkpoint, Owner
from cachefleet_controlplane.gateway.conversations.sessions import Session
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
    """Whether a render profile keeps what continuing needs (A21); ``counts`` are those of the examination."""

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
    """Of the examination."""
    counts: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """What a finished turn leaves: kept whole or, but for the response, not at all.

    ``expected`` is the head that the turn continued; None where the conversation is to begin with it.
    """

    owner: Owner
    name: str
    expected: str | None
    state: Session
    checkpoint: Checkpoint | None
    """None where there is nothing to point at: only a response is kept."""
    response: SealedResponse | None = None
