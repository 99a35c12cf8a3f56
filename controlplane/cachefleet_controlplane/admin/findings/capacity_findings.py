"""What a pool's hit curve says where it matters: a missed objective, load that does not fit, a worker too many.

Pure; advice that can wait is no finding, and is told by ``GET /capacity``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from cachefleet_controlplane.admin.findings.finding import Finding, Severity, operations
from cachefleet_core.fleet_status.capacity_facts import FEWER_WORKERS, WORTH, AdviceFacts, CapacityFacts
from cachefleet_core.fleet_status.pool_facts import PoolFacts

_DO: Final = "change spec.replicas, or let an autoscaler follow cachefleet_pool_desired_workers"


def capacity_findings(pools: Sequence[PoolFacts], capacities: Sequence[CapacityFacts]) -> Iterator[Finding]:
    """The findings of each pool whose curve is known."""
    missed = {pool.key: pool.hit_ratio.missed for pool in pools}
    for one in capacities:
        best = one.advice[0] if one.verdict == WORTH else None
        if best is None or one.now is None:
            continue
        less = next((each for each in one.advice if each.action == FEWER_WORKERS and each.worth), None)
        if less is not None:
            yield _fewer(one, less)
        elif _matters(one, missed):
            yield _finding(
                one, "CapacityAdvice", _confirmed(best), f"weigh it against what it costs; try it: `{best.command}`"
            )


def _confirmed(best: AdviceFacts) -> str:
    return f"{best.words}; {best.confirmed.words}" if best.confirmed else best.words


def _matters(one: CapacityFacts, missed: Mapping[str, bool]) -> bool:
    short = one.now is not None and (one.desired_workers or 0) > one.now.workers
    return short or missed.get(one.pool, False)


def _fewer(one: CapacityFacts, less: AdviceFacts) -> Finding:
    goes = f"; {one.scale_in.words}" if one.scale_in else ""
    return _finding(one, "FewerWorkersEnough", f"{less.words}{goes}", _DO)


def _finding(one: CapacityFacts, reason: str, message: str, action: str) -> Finding:
    last = f"; last change, {one.changes[0].words}" if one.changes else ""
    error = f" (the curve's error: {100 * (one.error or 0):+.1f} points{last})"
    return Finding(
        severity=Severity.INFO,
        subject=f"pool {one.pool}",
        reason=reason,
        message=message + error,
        action=action,
        docs=operations("autoscalers"),
    )
