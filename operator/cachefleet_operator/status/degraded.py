"""The condition Degraded: the worst problem of a worker that runs or should run (pure)."""

from __future__ import annotations

from typing import Final

from cachefleet_core.engine.suspensions import Suspension, suspension_words
from cachefleet_core.fleet_status.worker_facts import WorkerFacts
from cachefleet_core.warmth import REFUSED, TOO_LONG
from cachefleet_operator import names
from cachefleet_operator.controlplane_client.pool_facts import (
    Facts,
    doubted,
    excluded,
    failed,
    key_refusing,
    suspended,
    unwarmed,
)
from cachefleet_operator.reasons import Reason
from cachefleet_operator.status.finding import Finding
from cachefleet_operator.status.pool_assessment import Observations, Workers

MAX_SHOWN: Final = 5
"""Names of pods in a message."""
_BY_DIGEST: Final = ": a tag was moved between them; name the image by its digest in spec.model"


def degraded(workers: Workers, observations: Observations) -> Finding:
    """The first problem, in this order, of a worker that runs or should run."""
    trouble, member, stranger = observations.trouble, failed(observations.facts), excluded(observations.facts)
    distrusted, refusing = doubted(observations.facts), key_refusing(observations.facts)
    differing = observations.differing_weights
    stuck = next((one for one in suspended(observations.facts) if one.suspended == Suspension.STUCK), None)
    wrong = (
        (workers.failure, Reason.PODS_REFUSED, workers.failure),
        (observations.contested, Reason.FIELD_CONFLICT, observations.contested),
        (
            observations.paused,
            Reason.ROLLOUT_PAUSED,
            trouble.message if trouble else "new workers are not ready in time",
        ),
        (trouble, trouble.reason if trouble else "", trouble.message if trouble else ""),
        (workers.stalled and not workers.settled, Reason.STALLED, workers.stalled),
        (member, Reason.WORKER_FAILED, _failed_words(member)),
        (stuck, Reason.ENGINE_STUCK, _stuck_words(stuck)),
        (refusing, Reason.KEYS_REFUSED, key_refused_words(refusing[0]) if refusing else ""),
        (stranger, Reason.CONTRACT_MISMATCH, f"worker {stranger.name} is used last" if stranger else ""),
        (observations.disagreement, Reason.POOLS_DIFFER, observations.disagreement),
        (differing, Reason.WEIGHTS_DIFFER, f"{differing}{_BY_DIGEST}"),
        (distrusted, Reason.CLAIMS_NOT_SERVED, _distrusted_words(distrusted)),
        *_unwarmed(observations.facts),
        (observations.foreign, Reason.FOREIGN_PODS, _foreign_words(observations.foreign)),
    )
    for present, reason, message in wrong:
        if present:
            return Finding("Degraded", "True", reason, message)
    return Finding("Degraded", "False", Reason.NOTHING_WRONG, "nothing is known to be wrong with a worker")


def _unwarmed(facts: Facts) -> tuple[tuple[object, str, str], ...]:
    """The warm prefix that a worker cannot cache, as a row of the problems: present, reason, message."""
    found = unwarmed(facts)
    if found is None:
        return ()
    worker, problem = found
    prefix = f"worker {worker}: warm prefix {problem.name}"
    if problem.kind == TOO_LONG:
        words = f"{prefix} takes {problem.tokens} tokens, the limit is {problem.limit} by {problem.detail}"
        return ((True, Reason.WARM_PREFIX_TOO_LONG, f"{words}: shorten it, or raise that"),)
    if problem.kind == REFUSED:
        words = f"{prefix} is refused: {problem.detail}"
        return ((True, Reason.WARM_PREFIX_REFUSED, f"{words}; correct it, or take it out"),)
    words = f"{prefix} failed {problem.attempts} times in a row, the last time with: {problem.detail}"
    return ((True, Reason.WARM_PREFIX_FAILING, f"{words}; it is tried again"),)


def _failed_words(member: WorkerFacts | None) -> str:
    if member is None:
        return ""
    return f"worker {member.name} says that it failed" + (f": {member.phase_reason}" if member.phase_reason else "")


def _stuck_words(member: WorkerFacts | None) -> str:
    if member is None:
        return ""
    return f"the engine of worker {member.name} answers health checks, but requests wait there and nothing moves"


def suspended_words(facts: Facts) -> str:
    """Which workers' engines serve nothing, and why, to be added to a message; "" where all serve."""
    found = [f"{member.name} is {suspension_words(member.suspended)}" for member in suspended(facts)]
    more = f" and {len(found) - MAX_SHOWN} more" if len(found) > MAX_SHOWN else ""
    return f"; {', '.join(found[:MAX_SHOWN])}{more}" if found else ""


def _distrusted_words(member: WorkerFacts | None) -> str:
    if member is None:
        return ""
    return f"worker {member.name} serves little of what it claims to hold: {member.trust:.0%} of that is counted on"


def _foreign_words(pods: tuple[str, ...]) -> str:
    shown = ", ".join(pods[:MAX_SHOWN]) + (" and others" if len(pods) > MAX_SHOWN else "")
    words = f"not of this pool though they have its label, so without requests: {shown}"
    return f"{words}; take the label {names.POOL_LABEL} off them, or delete them"


def key_refused_words(member: WorkerFacts) -> str:
    """What to do about a worker that does not take the gateway's key."""
    return (
        f"worker {member.name} does not take the gateway's key, so it gets no requests while others do. Its pod read "
        "other keys than the pool's, or the control plane runs with another fleet key: if no pod is being replaced, "
        "restart the control plane, then the pod"
    )
