"""Pods that wait for devices: which claim, and why."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest

from cachefleet_operator.devices.waiting_claims import MAX_ASKED, claim_failures
from cachefleet_operator.kube.objects import Ref
from cachefleet_operator.reasons import Reason
from cachefleet_operator.status.pods import Pod, pods_of
from cachefleet_operator.status.volume_failures import LOOK_SECONDS
from cachefleet_runtime.kubernetes import Object, RefusedError
from tests.operator.store import Store

NOW = dt.datetime(2026, 1, 1, 0, 1, tzinfo=dt.UTC)
OUT = "0/1 nodes are available: 1 cannot allocate all claims."
TAINT = "0/1 nodes are available: 1 node(s) had untolerated taint(s)."


def pod(*, made: str = "demo-a-gpus-1", scheduler: str = "", **spec: Any) -> Object:
    """One that has a claim and no node; ``made`` is the claim of its template."""
    refused = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": scheduler}
    statuses = [{"name": "gpus", "resourceClaimName": made}] if made else []
    return {
        "kind": "Pod",
        "metadata": {"name": "demo-a", "namespace": "serving", "uid": "u", "creationTimestamp": "2026-01-01T00:00:00Z"},
        "spec": {"resourceClaims": [{"name": "gpus", "resourceClaimTemplateName": "t"}], **spec},
        "status": {
            "phase": "Pending",
            "resourceClaimStatuses": statuses,
            "conditions": [{**refused, "lastTransitionTime": "2026-01-01T00:00:00Z"}] if scheduler else [],
        },
    }


def claim(name: str = "demo-a-gpus-1", *, allocated: bool = False, **request: Any) -> Object:
    requests = [{"name": "r", **(request or {"exactly": {"deviceClassName": "gpu", "count": 2}})}]
    return {
        "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": "serving"},
        "spec": {"devices": {"requests": requests}},
        "status": {"allocation": {"devices": {}}} if allocated else {},
    }


def event(message: str, reason: str = "FailedResourceClaimCreation") -> Object:
    return {
        "kind": "Event",
        "metadata": {"name": reason.lower(), "namespace": "serving"},
        "involvedObject": {"uid": "u"},
        "reason": reason,
        "message": message,
        "lastTimestamp": "2026-01-01T00:00:05Z",
    }


async def test_of_many_pods_without_their_claims_few_are_asked_about() -> None:
    asked: list[Ref] = []
    store = Store()
    store.before = lambda _, ref: asked.append(ref) if ref.kind == "Event" else None
    one = pod(made="")
    pods = [{**one, "metadata": {**one["metadata"], "name": f"demo-{i}"}} for i in range(MAX_ASKED + 3)]
    found = await claim_failures(store, pods, NOW, grace_seconds=5)
    assert (len(found), len(asked)) == (MAX_ASKED + 3, MAX_ASKED)


async def read(found: Object, *there: Object) -> Pod:
    claims = await claim_failures(Store(*there), [found], NOW, grace_seconds=5)
    (made,) = pods_of([found], NOW, grace_seconds=5, ready_seconds=3600, claims=claims)
    return made


@pytest.mark.parametrize(
    ("request_", "asked"),
    [
        ({}, "2 of DeviceClass gpu"),
        ({"exactly": {"deviceClassName": "gpu"}}, "1 of DeviceClass gpu"),
        ({"exactly": {"deviceClassName": "gpu", "allocationMode": "All"}}, "all of DeviceClass gpu"),
        (
            {"firstAvailable": [{"deviceClassName": "big", "count": 1}, {"deviceClassName": "small", "count": 2}]},
            "1 of DeviceClass big or 2 of DeviceClass small",
        ),
    ],
)
async def test_a_claim_that_is_not_allocated_is_named_with_what_it_asks_for(request_: Any, asked: str) -> None:
    trouble = (await read(pod(scheduler=OUT), claim(**request_))).trouble
    assert trouble is not None
    assert trouble.reason is Reason.DEVICES_UNAVAILABLE
    assert trouble.detail == f"ResourceClaim demo-a-gpus-1 ({asked}) is not allocated: {OUT}"
    assert trouble.message.endswith("add nodes with such devices, or claim fewer or others")


def published(*taints: Object) -> tuple[Object, Object]:
    """Two devices of the class, the first of which has these taints."""
    devices = [{"name": "a", "taints": list(taints)}, {"name": "b"}]
    spec = {"driver": "d", "pool": {"name": "n", "generation": 1}, "devices": devices}
    return (
        {"kind": "DeviceClass", "metadata": {"name": "gpu", "namespace": ""}, "spec": {}},
        {"kind": "ResourceSlice", "metadata": {"name": "s", "namespace": ""}, "spec": spec},
    )


@pytest.mark.parametrize(("effect", "told"), [("NoSchedule", True), ("NoExecute", True), ("None", False)], ids=str)
async def test_devices_whose_taints_keep_claims_away_are_counted(effect: str, told: bool) -> None:  # noqa: FBT001
    taint = {"key": "example.com/sick", "value": "ecc", "effect": effect}
    trouble = (await read(pod(scheduler=OUT), claim(), *published(taint))).trouble
    assert trouble is not None
    words = f"is not allocated, 1 of 2 such devices being tainted (example.com/sick=ecc:{effect}): {OUT}"
    assert (words in trouble.detail) is told
    assert ("see to those devices" in trouble.message) is told


async def test_where_nodes_lack_something_else_that_is_told() -> None:
    """No claim is allocated to a pod that has no node."""
    trouble = (await read(pod(scheduler=TAINT), claim())).trouble
    assert trouble is not None
    assert (trouble.reason, trouble.detail) == (Reason.UNSCHEDULABLE, TAINT)


@pytest.mark.parametrize(
    ("there", "words"),
    [
        ((), "ResourceClaim demo-a-gpus-1 does not exist"),
        ((claim("another"),), "ResourceClaim demo-a-gpus-1 does not exist"),
        (({**claim(), "metadata": {**claim()["metadata"], "deletionTimestamp": "x"}},), "is being deleted"),
        ((claim(),), "is not allocated"),
    ],
)
async def test_a_pod_that_is_not_even_tried_is_told_of(there: tuple[Object, ...], words: str) -> None:
    """The scheduler writes no condition then."""
    found = await read(pod(), *there)
    assert found.trouble is not None
    assert words in found.trouble.detail
    assert found.look_again == LOOK_SECONDS


async def test_a_claim_that_cannot_be_made_is_told_in_the_words_of_the_event() -> None:
    found = await read(pod(made=""), event("quota\n exceeded"), event("other", "Scheduled"))
    assert found.trouble is not None
    assert found.trouble.detail == "its ResourceClaim gpus is not made: quota exceeded"
    unsaid = await read(pod(made=""))
    assert unsaid.trouble is not None
    assert unsaid.trouble.detail == "its ResourceClaim gpus is not made"


@pytest.mark.parametrize(
    "found",
    [
        pod(nodeName="n"),
        pod(resourceClaims=[]),
        {**pod(), "metadata": {**pod()["metadata"], "deletionTimestamp": "x"}},
        {**pod(), "metadata": {**pod()["metadata"], "creationTimestamp": "2026-01-01T00:00:58Z"}},
    ],
    ids=["has a node", "no claims", "going", "new"],
)
async def test_nothing_is_asked_of_pods_that_do_not_wait_for_long(found: Object) -> None:
    store, asked = Store(), []
    store.before = lambda verb, _: asked.append(verb)
    assert await claim_failures(store, [found], NOW, grace_seconds=5) == {}
    assert asked == []


async def test_a_new_pod_is_looked_at_again_though_nothing_announces_its_claim() -> None:
    new = pod()
    new["metadata"]["creationTimestamp"] = "2026-01-01T00:00:58Z"
    found = await read(new)
    assert (found.trouble, found.look_again) == (None, 3)


async def test_an_allocated_claim_is_no_trouble() -> None:
    found = await read(pod(), claim(allocated=True))
    assert found.trouble is None


async def test_what_may_not_be_read_is_not_known() -> None:
    def refuse(verb: str, ref: Any) -> None:
        raise RefusedError(403, "Forbidden", f"{verb} {ref}")

    store = Store()
    store.before = refuse
    assert await claim_failures(store, [pod()], NOW, grace_seconds=5) == {}
