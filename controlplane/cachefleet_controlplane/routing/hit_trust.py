"""How far a worker's claims are counted on: what its engine served from cache of what the index said it holds. Pure.

Trust is in parts of WHOLE. A worker that serves at least half of what it claims is trusted wholly: some is always
evicted between a decision and its answer. Below that, trust is twice the share served, so a worker that serves nothing
goes towards 0, and is then chosen as if it held nothing. ALLOWANCE_TOKENS, counted as served, keep a few misses from
mattering. Evidence halves every HALF_LIFE_SECONDS, so an unused worker is tried again, and each hit that comes true
raises trust at once.
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct

WHOLE: Final = 1000
ALLOWANCE_TOKENS: Final = 16_384
MOST_TOKENS: Final = 1_048_576
"""Evidence kept, in tokens claimed: what a worker served long ago does not outweigh what it does now."""
HALF_LIFE_SECONDS: Final = 300.0


class HitEvidence(Struct, frozen=True):
    """Tokens claimed and, of these, tokens served, as they count at the time ``at``."""

    claimed: float = 0.0
    served: float = 0.0
    at: float = 0.0


NO_EVIDENCE: Final = HitEvidence()


def trust_in(evidence: HitEvidence) -> int:
    """Parts of WHOLE of a worker's claims to count on."""
    share = (evidence.served + ALLOWANCE_TOKENS) / (evidence.claimed + ALLOWANCE_TOKENS)
    return min(WHOLE, int(2 * WHOLE * share))


def faded(evidence: HitEvidence, now: float) -> HitEvidence:
    """The evidence as it counts at a later time."""
    kept = 0.5 ** (max(0.0, now - evidence.at) / HALF_LIFE_SECONDS)
    return HitEvidence(evidence.claimed * kept, evidence.served * kept, now)


def learnt(evidence: HitEvidence, claimed: int, served: int, now: float) -> HitEvidence:
    """The evidence with one more answer: of ``claimed`` tokens of its prompt ``served`` came from cache."""
    before = faded(evidence, now)
    total = before.claimed + claimed
    share = min(1.0, MOST_TOKENS / total) if total else 1.0
    return HitEvidence(total * share, (before.served + min(claimed, served)) * share, now)
