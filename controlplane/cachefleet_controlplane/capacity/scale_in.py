"""Which worker goes first where a pool is scaled in by one, and what is lost with it. Pure.

By the order in which the operator writes pod deletion costs.
"""

from __future__ import annotations

from collections.abc import Iterable

from cachefleet_controlplane.capacity.hit_curve import CurvePoint, HitCurve
from cachefleet_core.fleet_status.cache_worth import cache_values, removal_order, removal_values
from cachefleet_core.fleet_status.capacity_facts import ScaleInFacts
from cachefleet_core.fleet_status.worker_facts import WorkerFacts


def scale_in(members: Iterable[WorkerFacts], block_size: int, curve: HitCurve | None) -> ScaleInFacts | None:
    """The worker that is worth least; one that is not ready goes before all others. None where there is no other."""
    listed = [member for member in members if member.listed]
    ready = {member.name for member in listed if member.ready}
    waiting = {member.name for member in listed} - ready
    if len(listed) < 2:
        return None
    values = cache_values(listed)
    name = removal_order(waiting or ready, removal_values(listed))[0]
    if waiting:
        return ScaleInFacts(worker=name, ready=False, words=f"{name} goes first: it is not ready")
    held = sum(member.held_blocks for member in listed if member.name == name)
    lost = min(held, round(values[name]))
    left = curve.at(len(ready) - 1) if curve else None
    return ScaleInFacts(
        worker=name,
        words=_words(name, lost, lost * block_size, left),
        held_blocks=held,
        lost_blocks=lost,
        lost_tokens=lost * block_size,
        hit_ratio=left.hit_ratio if left else None,
        computed_tokens_per_second=left.computed_tokens_per_second if left else None,
    )


def _words(name: str, blocks: int, tokens: int, left: CurvePoint | None) -> str:
    lost = f"{blocks:,} blocks ({tokens:,} tokens) that no other worker has"
    ratio = f", and {100 * left.hit_ratio:.0f} % hits are left" if left else ""
    return f"{name} goes first: its cache is worth least, {lost}{ratio}"
