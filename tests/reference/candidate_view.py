"""One rank of one worker as decisions see it, whatever the prompt: native code reads it by attribute."""

from __future__ import annotations

from msgspec import Struct

from cachefleet_controlplane.routing.hit_trust import WHOLE
from cachefleet_controlplane.routing.worth import UNLEARNT, Worth


class CandidateLoad(Struct, frozen=True):
    """The load of a candidate; None where it was not reported. Never changed."""

    queued_tokens: int = 0
    inflight_tokens: int = 0
    tokens_per_second: float | None = None
    inter_token_seconds: float | None = None
    loaded_per_second: float | None = None
    batched_tokens: int = 0
    blocks_total: int | None = None
    """Blocks that requests can have."""
    blocks_free: int | None = None
    """Blocks a new request may take, idle cached ones included, net of requests in flight and reserve: ``capacity``."""
    blocks_reserved: int = 0
    """Blocks that are to stay free."""
    blocks_idle: int = 0
    """Held blocks that may be idle; those beyond are in use."""
    blocks_used: int = 0
    """Blocks in use at its last report."""
    blocks_blank: int | None = None
    """Of the free ones, blocks that hold nothing."""
    requests: int = 0
    """Running, waiting and in flight."""
    last_used: int = 0
    """Number of the last decision for it, 0 where there was none."""
    trust: int = WHOLE
    """Parts of WHOLE of its blocks that are counted on: ``hit_trust``."""
    worth: Worth = UNLEARNT
    """What work and evictions cost others there."""
    adapter_seconds: float = 0.0
    """How long the adapter that is asked for would be loaded onto its device."""


class CandidateView(CandidateLoad, frozen=True):
    """A candidate's load, and when it was reported."""

    reported_at: float | None = None
    """When the report came by which its blocks are known; None where they are not."""
