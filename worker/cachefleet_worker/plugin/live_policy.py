"""The policy in force in an engine, and whether a new one replaces it: pure."""

from __future__ import annotations

from dataclasses import dataclass, replace

from cachefleet_core.report_frames import Policy


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
    )
