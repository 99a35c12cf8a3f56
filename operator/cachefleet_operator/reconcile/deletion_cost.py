"""Which worker goes first when there are to be fewer: the one whose cache is worth least (pure).

ReplicaSets delete pods of the lowest deletion cost first, among those that are ready. Costs are ranks, written only
right before pods have to go.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cachefleet_operator.kube.objects import Ref
from cachefleet_operator.reconcile.apply import Annotate
from cachefleet_operator.status.pods import DELETION_COST, Pod


def ranks(pods: Sequence[Pod], values: Mapping[str, float]) -> dict[str, int]:
    """The cost of each pod that stays so far, by name: 0 for the first to go. Pods of unknown value go first."""
    staying = [pod.name for pod in pods if not pod.leaving]
    order = sorted(staying, key=lambda name: (name in values, values.get(name, 0.0), name))
    return {name: rank for rank, name in enumerate(order)}


def costs(namespace: str, pods: Sequence[Pod], values: Mapping[str, float]) -> list[Annotate]:
    """What has to be written; nothing where nobody knows the worth of any cache."""
    if not values:
        return []
    wanted = ranks(pods, values)
    changed = [pod for pod in pods if pod.name in wanted and pod.cost != wanted[pod.name]]
    return [_annotate(namespace, pod, wanted[pod.name]) for pod in changed]


def _annotate(namespace: str, pod: Pod, cost: int) -> Annotate:
    manifest = Ref("Pod", namespace, pod.name).manifest()
    # With its uid: a pod that has gone is not made anew.
    manifest["metadata"] |= {"uid": pod.uid, "annotations": {DELETION_COST: str(cost)}}
    return Annotate(manifest)
