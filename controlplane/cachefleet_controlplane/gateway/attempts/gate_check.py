"""Which threshold each attempt of a request carries, and whether its prompt is computed elsewhere first. Pure.

A refusal by a worker's gate is between worker and gateway. The client hears of it only where it asked for the gate
itself, in a fleet that is not split into Prefill and Decode pools. ``attempt_mode`` is this table; the first row that
holds counts:

==============  =====================================================  =================================================
the attempt         where                                                  is sent
==============  =====================================================  =================================================
as asked        an API without a word for a refusal; or the caller's   as it came; a refusal is the caller's
                own threshold, in a fleet that is not split
open            its prompt was computed by a Prefill worker just now   with 0, and where the blocks are
prefill first   for a Decode worker, which has no threshold            (to a Prefill worker)
(split_roles)
(gate_refused)  for a Decode worker, and one has refused it
(below_...)     for a Decode worker that holds less than the
                threshold, by an exact index
gated           for a Decode worker                                    with the threshold
gated           another worker is promised to hold enough, and it is   with the threshold
                not the last attempt there may be
open            otherwise, in a fleet with a threshold, or after a     with 0
                refusal
as asked        otherwise                                              as it came; a refusal is not the caller's
==============  =====================================================  =================================================
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from cachefleet_controlplane.gateway.attempts.state_machine import Progress
from cachefleet_controlplane.gateway.placement.gate import Gate
from cachefleet_controlplane.routing.decision import Decision, Knowledge, Reason, Verdict


@dataclass(frozen=True, slots=True)
class AttemptMode:
    """How one attempt goes."""

    threshold: float | None = None
    """What it is held to; None: nothing of ours."""
    watched: bool = False
    """A refusal is ours to act upon."""
    prefill: Reason | None = None
    """Why a Prefill worker has to compute the prompt first."""
    transferred: bool = False
    """One has."""


AS_ASKED = AttemptMode()


def attempt_mode(
    gate: Gate, decision: Decision, progress: Progress, *, resumed: bool, max_attempts: int
) -> AttemptMode:
    """For the worker that was decided on; ``resumed``: another one has produced some of the answer."""
    if not gate.speaks or gate.callers:
        return AS_ASKED
    if progress.transferred:
        return AttemptMode(threshold=0.0, transferred=True)
    if gate.decodes(decision.pool):
        return _decoding(gate, decision, progress, resumed=resumed)
    if resumed:
        return AS_ASKED  # what is left of an answer is asked for with 0
    threshold, last = gate.threshold(decision.pool), progress.refusals + 1 >= max_attempts
    if threshold > 0 and gate.one_prompt and not last and _promised(decision) >= threshold:
        return AttemptMode(threshold=threshold, watched=True)
    return AttemptMode(threshold=0.0) if gate.ours or progress.refusals else AttemptMode(watched=True)


def foreseen(gate: Gate, decision: Decision) -> Decision:
    """A decision with the verdict that a first attempt's course gives it; nothing is sent."""
    if decision.verdict is not Verdict.ROUTE:
        return decision
    reason = attempt_mode(gate, decision, Progress(), resumed=False, max_attempts=1).prefill
    return decision if reason is None else replace(decision, verdict=Verdict.PREFILL_FIRST, reason=reason)


def _decoding(gate: Gate, decision: Decision, progress: Progress, *, resumed: bool) -> AttemptMode:
    threshold = gate.threshold(decision.pool)
    reason = _prefill(gate, decision, progress, threshold)
    if reason is not None:
        return AttemptMode(prefill=reason)
    return AttemptMode(threshold=0.0) if resumed else AttemptMode(threshold=threshold, watched=True)


def _prefill(gate: Gate, decision: Decision, progress: Progress, threshold: float) -> Reason | None:
    if not gate.decode_first(decision.pool):
        return Reason.SPLIT_ROLES
    if progress.refusals:
        return Reason.GATE_REFUSED
    return Reason.BELOW_THRESHOLD if 0 <= _promised(decision) < threshold else None


def _promised(decision: Decision) -> float:
    """The hit ratio that an exact index promises there; -1 where it promises nothing."""
    if decision.knowledge is not Knowledge.EXACT or not decision.prompt_tokens:
        return -1.0
    return decision.predicted_tokens / decision.prompt_tokens
