"""Pods whose labels were removed go back to their ReplicaSet."""

from __future__ import annotations

from typing import Any

import pytest

from cachefleet_operator.reconcile.apply import Annotate, Emit
from cachefleet_operator.reconcile.released_pods import readopted
from cachefleet_operator.status.events import Subject

SUBJECT = Subject("demo", "serving", "pool-uid", "7")
OURS = {"app.kubernetes.io/managed-by": "cachefleet-operator"}
POOL, HASH = {"cachefleet.io/pool": "demo"}, {"pod-template-hash": "5d9c"}
OWNER = {"kind": "ReplicaSet", "name": "demo-workers-5d9c", "uid": "r", "controller": True}


def pod(labels: dict[str, str], made: str = "demo-workers-5d9c-", **metadata: Any) -> dict[str, Any]:
    name = f"{made}x1y2z"
    return {"metadata": {"name": name, "uid": "u", "generateName": made, "labels": OURS | labels, **metadata}}


@pytest.mark.parametrize(("left", "back"), [(HASH, POOL), (POOL, HASH), ({}, POOL | HASH)])
def test_a_released_pod_gets_its_labels_back_and_is_told_of(left: dict[str, str], back: dict[str, str]) -> None:
    told, labelled = readopted(SUBJECT, [pod(left)], now="2026-01-01T00:00:00Z")
    assert isinstance(labelled, Annotate)
    assert labelled.manifest["metadata"] == {
        "name": "demo-workers-5d9c-x1y2z",
        "namespace": "serving",
        "uid": "u",
        "labels": back,
    }
    assert isinstance(told, Emit)
    assert (told.event["type"], told.event["reason"]) == ("Warning", "PodReleased")
    assert all(name in told.event["message"] for name in back)


@pytest.mark.parametrize(
    "other",
    [
        pod(POOL | HASH, ownerReferences=[OWNER]),
        pod(HASH, ownerReferences=[OWNER]),  # not released yet
        pod(POOL | HASH),  # to be adopted as it is
        pod(HASH, deletionTimestamp="2026-01-01T00:00:00Z"),
        pod(HASH, made="other-workers-5d9c-"),
        pod(HASH, made="demo-workers-canary-workers-5d9c-"),
        pod(HASH, made=""),
    ],
    ids=["owned", "owned still", "whole", "going", "of another pool", "of a longer name", "made by hand"],
)
def test_others_are_left_alone(other: dict[str, Any]) -> None:
    assert readopted(SUBJECT, [other], now="2026-01-01T00:00:00Z") == []
