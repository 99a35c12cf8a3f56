"""Pod deletion costs: when a pool scales down, the worker with the least valuable cache goes first (pure).

ReplicaSets delete pods of the lowest deletion cost first, among those that are ready. Costs are ranks, written only
right before pods are deleted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cachefleet_core.fleet_status.cache_worth import removal_order
from cachefleet_operator.kube.objects import Ref
from cachefleet_operator.reconcile.apply import Annotate
from cachefleet_operator.status.pods import DELETION_COST, Pod


def ranks(pods: Sequence[Pod], values: Mapping[str, float]) -> dict[str, int]:
    """Deletion cost by name of each pod not being deleted: 0 for the first to go. Pods of unknown value go first."""
    staying = [pod.name for pod in pods if not pod.leaving]
    return {name: rank for rank, name in enumerate(removal_order(staying, values))}


def costs(namespace: str, pods: Sequence[Pod], values: Mapping[str, float]) -> list[Annotate]:
    """Annotations for costs that changed; none where no cache value is known."""
    if not values:
        return []
    wanted = ranks(pods, values)
    changed = [pod for pod in pods if pod.name in wanted and pod.cost != wanted[pod.name]]
    return [_annotate(namespace, pod, wanted[pod.name]) for pod in changed]


def _annotate(namespace: str, pod: Pod, cost: int) -> Annotate:
    manifest = Ref("Pod", namespace, pod.name).manifest()
    # With its uid: another pod may have its name by now.
    manifest["metadata"] |= {"uid": pod.uid, "annotations": {DELETION_COST: str(cost)}}
    return Annotate(manifest)
