"""Whether a preempted request is prefilled again, or handed back with what it has produced: pure.

A preempted request has lost its blocks to the idle cache and waits for room. As long as enough of them survive it may
go on; once others have taken too many, computing it again here costs as much as elsewhere, and its sender decides.
"""

from __future__ import annotations

from cachefleet_worker.plugin.gate.rules import Candidate, Refusal
from cachefleet_worker.plugin.policy import LivePolicy


def hand_back(candidate: Candidate, policy: LivePolicy) -> Refusal | None:
    """The hand-back of a preempted request, of a marked one only; the threshold of fresh requests does not count."""
    if not policy.hand_back or not candidate.resumable or candidate.ratio >= policy.reject_below:
        return None
    return Refusal(candidate.ratio, policy.reject_below, "preempted")
