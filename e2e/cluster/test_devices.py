"""Pools whose devices are claimed (DRA): real API server, claims' controller and scheduler; the devices are made up."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from e2e.cluster import kubelet
from e2e.cluster.bench import Bench
from e2e.cluster.binaries import minor
from e2e.cluster.devices import Devices
from e2e.cluster.kube import Object, Refused, until

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.skipif(minor() < 34, reason="resource.k8s.io/v1 is served from Kubernetes 1.34 on"),
]

QUICK = {"unschedulable_seconds": 0.5, "chat_template_seconds": 0.3}
MATCHES = "device.attributes['gpu.example.com'].type == 'gpu'"


@pytest.fixture
def devices(bench: Bench) -> Iterator[Devices]:
    with ExitStack() as stack:
        made = Devices(bench)
        made.start(stack)
        yield made


def pods(bench: Bench) -> list[Object]:
    return [pod for pod in bench.kube.list("Pod", bench.namespace) if "deletionTimestamp" not in pod["metadata"]]


def placed(bench: Bench) -> list[Object]:
    return [pod for pod in pods(bench) if pod["spec"].get("nodeName")]


def said(bench: Bench, kind: str, name: str = "demo") -> str:
    return str((bench.condition(kind, name) or {}).get("message", ""))


def templates(bench: Bench) -> list[str]:
    return [each["metadata"]["name"] for each in bench.kube.list("ResourceClaimTemplate", bench.namespace)]


def test_a_pool_that_waits_for_devices_says_which_claim_and_why(bench: Bench, devices: Devices) -> None:
    devices.publish("16Gi", "16Gi")
    bench.operator(**QUICK)
    bench.create(**devices.wanted(className=devices.name, selectors=[MATCHES]), replicas=3)
    until(lambda: len(placed(bench)) == 2)
    (waiting,) = [pod["metadata"]["name"] for pod in pods(bench) if not pod["spec"].get("nodeName")]
    (claim,) = [
        each["metadata"]["name"]
        for each in bench.kube.list("ResourceClaim", bench.namespace)
        if "allocation" not in each.get("status", {})
    ]
    asked = f"pod {waiting}: ResourceClaim {claim} (1 of DeviceClass {devices.name}) is not allocated"
    until(lambda: asked in said(bench, "WorkersAvailable"))
    until(lambda: "cannot allocate all claims" in said(bench, "WorkersAvailable"))
    assert bench.reason("WorkersAvailable") == bench.reason("Degraded") == "DevicesUnavailable"
    devices.publish("16Gi", "16Gi", "16Gi")
    until(lambda: len(placed(bench)) == 3)
    until(lambda: bench.reason("WorkersAvailable") == "NoneReady")


def test_each_spec_has_a_template_and_those_of_former_ones_go_when_the_rollout_is_over(
    bench: Bench, devices: Devices
) -> None:
    devices.publish("16Gi", "16Gi", "16Gi")
    bench.operator(**QUICK)
    bench.create(**devices.wanted(className=devices.name), replicas=1)
    (pod,) = until(lambda: placed(bench))
    (first,) = templates(bench)
    assert pod["spec"]["resourceClaims"] == [{"name": "devices", "resourceClaimTemplateName": first}]
    (engine,) = pod["spec"]["containers"]
    assert engine["resources"] == {"claims": [{"name": "devices"}]}
    bench.edit(device={"claims": {"count": 2}})
    until(lambda: len(placed(bench)) == 2)
    assert len(templates(bench)) == 2, "pods of the former one may come back until it is done"
    for each in pods(bench):
        kubelet.ready(bench.kube, each)
    until(lambda: bench.reason("Ready") == "WorkersReady")
    until(lambda: len(templates(bench)) == 1)
    assert templates(bench) != [first]


def test_the_memory_of_devices_is_read_and_decides_about_the_budget(bench: Bench, devices: Devices) -> None:
    bench.operator(**QUICK)
    bench.create(**devices.wanted(), replicas=1)
    until(lambda: "cannot list resource" in said(bench, "BudgetAdmitted"))
    assert "set device.memoryMiB" in said(bench, "BudgetAdmitted")
    devices.let_read()
    until(lambda: "no device of DeviceClass" in said(bench, "BudgetAdmitted"))
    assert bench.reason("BudgetAdmitted") == "DeviceMemoryUnknown"
    assert bench.child("Deployment") is None
    devices.publish("5Gi", "6Gi")
    until(lambda: placed(bench))
    kv_cache = 5120 - 100 - 2048 - 1500
    assert said(bench, "BudgetAdmitted").endswith(f"in {kv_cache} MiB of KV cache")
    (engine,) = placed(bench)[0]["spec"]["containers"]
    assert str(kv_cache << 20) in engine["args"]
    pool = bench.kube.read("PrefixCachePool", bench.namespace, "demo")
    assert pool["status"]["admitted"]["spec"]["device"]["memoryMiB"] == 5120
    bench.edit(prefixCache={"budgetMiB": 2048})
    until(lambda: bench.reason("BudgetAdmitted") == "BudgetExceedsKVCache")


@pytest.mark.skipif(minor() < 36, reason="API servers before Kubernetes 1.36 drop taints of devices")
def test_devices_that_are_tainted_are_counted_where_a_worker_waits(bench: Bench, devices: Devices) -> None:
    devices.let_read()
    devices.publish("16Gi", "16Gi", taints=({"key": "example.com/sick", "value": "ecc", "effect": "NoSchedule"},))
    bench.operator(**QUICK)
    bench.create(**devices.wanted(className=devices.name, count=3), replicas=1)
    tainted = "2 of 2 such devices being tainted (example.com/sick=ecc:NoSchedule)"
    until(lambda: tainted in said(bench, "WorkersAvailable"))
    assert bench.reason("Degraded") == "DevicesUnavailable"
    devices.publish("16Gi", "16Gi", "16Gi")
    until(lambda: placed(bench))


@pytest.mark.skipif(minor() < 37, reason="DeviceTaintRules are served from Kubernetes 1.37 on")
def test_a_rule_that_taints_devices_is_named_and_without_it_the_worker_is_placed(
    bench: Bench, devices: Devices
) -> None:
    devices.let_read()
    devices.publish("16Gi", "16Gi")
    bench.operator(**QUICK)
    with devices.tainted("gpu-1", key="example.com/sick", value="ecc", effect="NoSchedule"):
        bench.create(**devices.wanted(className=devices.name, count=2), replicas=1)
        rule = f"example.com/sick=ecc:NoSchedule of DeviceTaintRule {devices.name}"
        until(lambda: f"1 of 2 such devices being tainted ({rule})" in said(bench, "WorkersAvailable"))
        assert bench.reason("Degraded") == "DevicesUnavailable"
    until(lambda: placed(bench))


MISSING: tuple[tuple[str, Object, str], ...] = (
    ("claim", {"resourceClaimName": "nobody-s"}, "ResourceClaim nobody-s does not exist"),
    ("template", {"resourceClaimTemplateName": "nobody-s"}, "its ResourceClaim devices is not made: "),
    ("class", {"className": "nobody-s"}, "nobody-s"),
)


def test_what_is_claimed_and_not_there_is_named(bench: Bench, devices: Devices) -> None:
    bench.operator(**QUICK)
    for name, claims, _ in MISSING:
        bench.create(name, **devices.wanted(**claims), replicas=1)
    for name, _, words in MISSING:
        until(lambda name=name, words=words: words in said(bench, "WorkersAvailable", name))  # type: ignore[misc]
        assert bench.reason("WorkersAvailable", name) == "DevicesUnavailable"


def test_an_expression_that_is_none_changes_nothing_and_is_told_in_the_server_s_words(
    bench: Bench, devices: Devices
) -> None:
    devices.publish("16Gi")
    bench.operator(**QUICK)
    bench.create(**devices.wanted(className=devices.name), replicas=1)
    until(lambda: placed(bench))
    before = bench.child("Deployment")
    bench.edit(device={"claims": {"selectors": ["device.color == 'red'"]}})
    until(lambda: bench.reason("ConfigValid") == "Refused")
    assert "undefined field 'color'" in bench.conditions()["ConfigValid"]["message"]
    assert (bench.child("Deployment") or {})["spec"] == (before or {})["spec"]


@pytest.mark.parametrize(
    ("device", "words"),
    [
        ({"resource": "nvidia.com/gpu", "claims": {"className": "a"}}, "unless that is empty"),
        ({"claims": {}}, "exactly one of the three"),
        ({"claims": {"className": "a", "resourceClaimName": "b"}}, "exactly one of the three"),
        ({"claims": {"resourceClaimName": "b", "count": 1}}, "without className"),
        ({"claims": {"resourceClaimTemplateName": "b", "selectors": ["true"]}}, "without className"),
        ({"claims": {"className": "a", "count": 0}}, "greater than or equal to 1"),
        ({"claims": {"className": "a", "count": 33}}, "less than or equal to 32"),
        ({"claims": {"className": "A_b"}}, "should match"),
        ({"claims": {"className": "a", "selectors": [""]}}, "at least 1"),
        ({"claims": {"className": "a", "selectors": ["true"] * 33}}, "at most 32"),
        ({"claims": {"className": "a", "claim": "b"}}, "unknown field"),
        ({"claims": ["a"]}, "must be of type object"),
        ({"claims": {"className": 3}}, "must be of type string"),
        ({"claims": {"className": "a", "selectors": "true"}}, "must be of type array"),
    ],
    ids=str,
)
def test_odd_claims_are_refused_by_the_server(bench: Bench, device: Object, words: str) -> None:
    with pytest.raises(Refused) as refused:
        bench.create(device={"memoryMiB": 8192, **device})
    assert words in refused.value.message
