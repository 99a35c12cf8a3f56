"""Pods that wait for devices: which claim, and why."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest

from cachefleet_operator.devices.published_devices import MAX_TAINTS
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


def rule(name: str = "sick", effect: str = "NoSchedule", **selector: str) -> Object:
    """A DeviceTaintRule with these parts of a selector; ``empty`` makes one without parts."""
    chosen = {"deviceSelector": {key: value for key, value in selector.items() if key != "empty"}} if selector else {}
    spec = {**chosen, "taint": {"key": "example.com/sick", "value": "ecc", "effect": effect}}
    return {"kind": "DeviceTaintRule", "metadata": {"name": name, "namespace": ""}, "spec": spec}


async def tainted(*there: Object, **request: Any) -> str:
    """What is told of the devices of a claim that is not allocated."""
    trouble = (await read(pod(scheduler=OUT), claim(**request), *there)).trouble
    assert trouble is not None
    return trouble.detail.removeprefix("ResourceClaim demo-a-gpus-1 (").partition(") is not allocated")[2]


@pytest.mark.parametrize(
    ("selector", "count"),
    [
        ({"empty": "yes"}, 2),
        ({"driver": "d"}, 2),
        ({"driver": "d", "pool": "n", "device": "b"}, 1),
        ({"device": "a"}, 1),
        ({}, 0),
        ({"driver": "another"}, 0),
        ({"driver": "d", "pool": "another"}, 0),
        ({"pool": "n", "device": "c"}, 0),
    ],
    ids=str,
)
async def test_a_rule_taints_the_devices_that_it_selects_and_is_named(selector: dict[str, str], count: int) -> None:
    words = f", {count} of 2 such devices being tainted (example.com/sick=ecc:NoSchedule of DeviceTaintRule sick)"
    told = await tainted(*published(), rule(**selector))
    assert told == (f"{words}: {OUT}" if count else f": {OUT}")


async def test_a_rule_that_only_says_what_it_would_do_keeps_nobody_away() -> None:
    assert "tainted" not in await tainted(*published(), rule(effect="None", empty="yes"))


async def test_taints_of_drivers_and_rules_are_told_together_and_of_many_the_first() -> None:
    own = {"key": "example.com/hot", "effect": "NoExecute"}
    told = await tainted(*published(own), *(rule(f"r{i}", device="b") for i in range(3)))
    assert "2 of 2 such devices being tainted (example.com/hot=:NoExecute, " in told
    assert told.count("DeviceTaintRule") == MAX_TAINTS - 1
    assert f", ...): {OUT}" in told


@pytest.mark.parametrize(
    ("toleration", "tolerated"),
    [
        ({"operator": "Exists"}, True),
        ({"key": "example.com/sick", "operator": "Exists"}, True),
        ({"key": "example.com/sick", "value": "ecc"}, True),
        ({"key": "example.com/sick", "operator": "Equal", "value": "ecc", "effect": "NoSchedule"}, True),
        ({"key": "example.com/sick", "operator": "Equal", "value": "hot"}, False),
        ({"key": "example.com/sick"}, False),
        ({"key": "example.com/other", "operator": "Exists"}, False),
        ({"key": "example.com/sick", "operator": "Exists", "effect": "NoExecute"}, False),
    ],
    ids=str,
)
async def test_taints_that_a_claim_tolerates_are_not_told(toleration: Object, tolerated: bool) -> None:  # noqa: FBT001
    request = {"exactly": {"deviceClassName": "gpu", "tolerations": [toleration]}}
    assert ("tainted" in await tainted(*published(), rule(empty="yes"), **request)) is not tolerated


@pytest.mark.parametrize("failure", ["unserved", "refused"])
async def test_without_rules_the_taints_of_drivers_are_told(failure: str) -> None:
    """Of older API servers, or with the rights of an earlier version."""

    def refuse(verb: str, ref: Ref) -> None:
        if ref.kind == "DeviceTaintRule":
            raise RefusedError(403, "Forbidden", f"{verb} {ref}")

    store = Store(claim(), *published({"key": "k", "effect": "NoSchedule"}), rule(empty="yes"))
    if failure == "refused":
        store.before = refuse
    else:
        store.unserved = {"DeviceTaintRule"}
    (told,) = (await claim_failures(store, [pod()], NOW, grace_seconds=5)).values()
    assert told.endswith("is not allocated, 1 of 2 such devices being tainted (k=:NoSchedule)")


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
