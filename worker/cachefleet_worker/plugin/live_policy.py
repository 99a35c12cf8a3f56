"""The policy in force in an engine, and whether a new one replaces it: pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from cachefleet_core.report_frames import Policy

_ROUNDING: Final = 1e-9


@dataclass(frozen=True, slots=True)
class Shares:
    """Shares of the budget, 0 to 1: by owner (a salt's digest), and that of every other one.

    They count while the budget is exceeded; what nobody else needs, anybody may have.
    """

    default: float = 1.0
    own: Mapping[str, float] = field(default_factory=dict)
    kept: float = 0.0
    """Share of the budget whose blocks may be evicted last because their requests ask for it."""
    held: Mapping[str, int] = field(default_factory=dict)
    """Owners whose blocks within their own share are evicted last of all, by a contract, and for how many seconds since
    the blocks' last use; 0 is without end."""

    @property
    def even(self) -> bool:
        """Whether everybody may have all of it, so that nobody is ever over a share or before others."""
        return self.default >= 1.0 and not self.held and all(share >= 1.0 for share in self.own.values())

    def cap(self, owner: str, limit: int) -> int:
        """An owner's share of ``limit`` blocks, rounded down."""
        return int(self.own.get(owner, self.default) * limit + _ROUNDING)

    def keepable(self, limit: int | None) -> int:
        """Blocks that may be evicted last; 0 without a bound, since nothing is evicted for one then."""
        return 0 if limit is None else int(self.kept * limit + _ROUNDING)


EVEN: Final = Shares()


@dataclass(frozen=True, slots=True, kw_only=True)
class LivePolicy:
    """The settings a policy changes; the defaults are stock vLLM's behaviour."""

    uid: str = ""
    generation: int = -1
    """-1 before any policy was applied."""
    threshold: float = 0.0
    """Default of the gate's hit threshold, 0 to 1; 0 is off."""
    hand_back: bool = False
    """Whether a preempted request may be handed back."""
    reject_below: float = 0.0
    """Surviving hit ratio, 0 to 1, under which a marked preempted request is handed back."""
    budget_mib: int | None = None
    """Bound on idle cached blocks per device; None is no bound."""
    shares: Shares = EVEN
    """Tenants' shares of that bound."""


STOCK = LivePolicy()


def succeed(current: LivePolicy, new: Policy) -> LivePolicy:
    """The policy in force after ``new`` came; an older generation of the same pool changes nothing."""
    if current.generation >= 0 and new.uid == current.uid and new.generation < current.generation:
        return current
    return replace(
        current,
        uid=new.uid,
        generation=new.generation,
        threshold=new.threshold,
        hand_back=new.preemption == "HandBack",
        reject_below=new.reject_below,
        budget_mib=new.budget_mib,
        shares=_shares(new),
    )


def _shares(policy: Policy) -> Shares:
    told = policy.tenant_shares or ()
    own = {one.salt: one.share for one in told}
    held = {one.salt: one.retention_seconds for one in told if one.guaranteed}
    return Shares(policy.cache_share, own, policy.keep_share, held)
