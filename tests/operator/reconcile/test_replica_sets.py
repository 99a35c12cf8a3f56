"""ReplicaSets of a Deployment: which has its template, and when those of other templates can be scaled to 0."""

from __future__ import annotations

from typing import Any

import pytest

from cachefleet_operator.kube.objects import Ref
from cachefleet_operator.reconcile.replica_sets import ReplicaSet, can_pause, outdated, replica_sets_of

TEMPLATE = {"metadata": {"labels": {"app": "a"}}, "spec": {"containers": [{"name": "engine", "image": "i:1"}]}}


def deployment(*, replicas: int = 2, unavailable: int = 0) -> dict[str, Any]:
    strategy = {"rollingUpdate": {"maxUnavailable": unavailable}}
    return {"metadata": {"uid": "d"}, "spec": {"replicas": replicas, "strategy": strategy, "template": TEMPLATE}}


def manifest(name: str, *, uid: str = "d", image: str = "i:1") -> dict[str, Any]:
    labels = {"app": "a", "pod-template-hash": name}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "engine", "image": image}]}}
    owners = [{"kind": "Deployment", "uid": uid, "controller": True}]
    metadata = {"name": name, "namespace": "serving", "uid": f"uid-{name}", "ownerReferences": owners}
    return {"metadata": metadata, "spec": {"replicas": 2, "template": template}, "status": {"readyReplicas": 1}}


def replica_set(name: str, *, current: bool, ready: int = 0, replicas: int = 2) -> ReplicaSet:
    return ReplicaSet(Ref("ReplicaSet", "serving", name), f"uid-{name}", replicas, ready, current)


def test_the_current_one_has_the_deployment_s_template_but_for_the_hash() -> None:
    listed = [manifest("a"), manifest("b", image="i:2"), manifest("c", uid="another")]
    assert replica_sets_of(deployment(), listed) == (
        replica_set("a", current=True, ready=1),
        replica_set("b", current=False, ready=1),
    )


@pytest.mark.parametrize(
    ("own", "others", "unavailable", "possible"),
    [
        (2, 2, 0, True),
        (1, 1, 0, False),
        (1, 1, 1, True),
        (0, 1, 1, False),
        (0, 0, 0, True),
    ],
)
def test_it_can_pause_where_no_more_pods_are_missing_than_in_a_rollout(
    own: int, others: int, unavailable: int, *, possible: bool
) -> None:
    there = [replica_set("own", current=True, ready=own), replica_set("other", current=False, ready=others)]
    assert can_pause(deployment(unavailable=unavailable), there) is possible


def test_it_cannot_pause_without_a_current_one() -> None:
    assert not can_pause(deployment(replicas=0), [replica_set("other", current=False)])
    assert not can_pause(deployment(replicas=0), [])


def test_those_of_other_templates_with_pods_are_outdated() -> None:
    there = [
        replica_set("own", current=True),
        replica_set("other", current=False),
        replica_set("ended", current=False, replicas=0),
    ]
    metadata = {"name": "other", "namespace": "serving", "uid": "uid-other"}
    expected = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": metadata, "spec": {"replicas": 0}}
    assert outdated(there) == [expected]
