"""Who may be chosen, in plain Python: each question looks at every worker anew."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from cachefleet_controlplane.workers.pool import Pool
from cachefleet_controlplane.workers.worker import Worker
from cachefleet_core.report_frames import Phase

_Rule = Callable[[Worker, float], bool]

# Dropped from the last to the first until some worker satisfies the others.
_PREFERENCES: Final[tuple[_Rule, ...]] = (
    lambda worker, now: not (worker.row.key_refused and now < worker.row.key_retry_at),
    lambda worker, _now: not worker.differences,
    lambda worker, _now: worker.load is None or worker.load.state.phase not in (Phase.DRAINING, Phase.FAILED),
    lambda worker, now: worker.row.backoff_until <= now,
)


def eligible(pools: Sequence[Pool], exclude: frozenset[str], now: float, adapter: str = "") -> list[Worker]:
    """Workers that are ready, whose engines serve, no rank of which reports that it lacks ``adapter``, and that are not
    excluded by full name or id; only preferred ones (see _PREFERENCES) where there are any.
    """
    ready = [one for pool in pools for one in pool.workers.values() if one.serves(now)]
    if adapter:
        exclude |= {
            one.full_name for one in ready if one.adapters.served is not None and adapter not in one.adapters.served
        }
    if exclude:
        ready = [worker for worker in ready if worker.full_name not in exclude and worker.id not in exclude]
    for kept in range(len(_PREFERENCES), 0, -1):
        preferred = ready
        for rule in _PREFERENCES[:kept]:
            preferred = [worker for worker in preferred if rule(worker, now)]
        if preferred:
            return preferred
    return ready


def percents(pools: Sequence[Pool]) -> dict[str, int]:
    """Percent of a worker's blocks to keep free, by pool key."""
    return {pool.key: pool.declared.spec.admission.min_free_block_percent for pool in pools}
