"""Worker pods against a real API server: what it refuses of them, and what it makes of the examples."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cachefleet_core.pool.manifest import documents
from e2e.cluster import kubelet
from e2e.cluster.bench import Bench
from e2e.cluster.kube import Object, Refused, until
from tests.chart.helm import template

pytestmark = pytest.mark.cluster

EXAMPLE = Path(__file__).parents[2] / "examples" / "weights-volume.yaml"


def restrict(bench: Bench) -> None:
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    bench.kube.patch("Namespace", "", bench.namespace, {"metadata": {"labels": labels}})


def pod_of(bench: Bench, template: Object) -> Object:
    metadata = {**template.get("metadata", {}), "name": "one", "namespace": bench.namespace}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]}


def live_template(bench: Bench, name: str = "demo") -> Object:
    deployment = bench.child("Deployment", name)
    assert deployment is not None
    template: Object = deployment["spec"]["template"]
    return template


def test_the_server_takes_every_field_of_the_pod_and_keeps_it(bench: Bench) -> None:
    restrict(bench)
    bench.operator()
    bench.create()
    bench.settled()
    template = live_template(bench)
    names = [each["name"] for each in template["spec"]["initContainers"]]
    assert names == ["plugin", "agent"]
    # Strict: a field that the server does not know is an error here, and not dropped as in a pod of a ReplicaSet.
    made = bench.kube.create(pod_of(bench, template), dry_run=True)
    engine = made["spec"]["containers"][0]
    assert "CACHEFLEET_DRAIN_URL" in {each["name"] for each in engine["env"]}
    assert made["spec"]["topologySpreadConstraints"][0]["matchLabelKeys"] == ["pod-template-hash"]


def test_a_pod_that_would_break_the_profile_is_refused(bench: Bench) -> None:
    restrict(bench)
    bench.operator()
    bench.create()
    bench.settled()
    pod = pod_of(bench, live_template(bench))
    del pod["spec"]["initContainers"][0]["securityContext"]["capabilities"]
    with pytest.raises(Refused, match=r'violates PodSecurity "restricted:latest": unrestricted capabilities'):
        bench.kube.create(pod, dry_run=True)


FIELD = "object.spec.securityContext.{0}"
IN_RANGE = f"!has({FIELD}) || ({FIELD} >= 1000900000 && {FIELD} <= 1000909999)"


def _demand_a_range(bench: Bench) -> None:
    """As OpenShift's restricted-v2, which also fills in what a pod leaves open."""
    name = f"range-{bench.namespace}"
    group = "admissionregistration.k8s.io"
    pods = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}
    spec = {
        "failurePolicy": "Fail",
        "matchConstraints": {"resourceRules": [pods]},
        "validations": [
            {"expression": IN_RANGE.format(field), "message": f"{field} is not of the range"}
            for field in ("runAsUser", "fsGroup")
        ],
    }
    here = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": bench.namespace}}}
    binding = {"policyName": name, "validationActions": ["Deny"], "matchResources": here}
    for kind, what in (("ValidatingAdmissionPolicy", spec), ("ValidatingAdmissionPolicyBinding", binding)):
        bench.kube.create({"apiVersion": f"{group}/v1", "kind": kind, "metadata": {"name": name}, "spec": what})
        bench.stack.callback(bench.kube.delete, kind, "", name)
    fixed = {"containers": [{"name": "one", "image": "i"}], "securityContext": {"runAsUser": 65532}}
    until(lambda: not _taken(bench, fixed))


def _taken(bench: Bench, spec: Object) -> bool:
    try:
        bench.kube.create(pod_of(bench, {"spec": spec}), dry_run=True)
    except Refused as refused:
        assert "is not of the range" in str(refused)  # noqa: PT017
        return False
    return True


def test_a_cluster_that_chooses_users_takes_every_pod_whose_user_is_left_to_it(bench: Bench) -> None:
    until(lambda: bench.kube.list("ServiceAccount", bench.namespace))
    _demand_a_range(bench)
    first = bench.operator()
    bench.create(replicas=1)
    until(lambda: bench.reason("Degraded") == "PodsRefused")
    assert "is not of the range" in bench.conditions()["Degraded"]["message"]
    bench.edit(podIdentity="Cluster")
    until(lambda: bench.kube.list("Pod", bench.namespace))
    first.stop()
    bench.operator(pod_identity="cluster", lease_name="other")
    bench.create("other", replicas=1)
    until(lambda: any("/other-" in f"/{pod['metadata']['name']}" for pod in bench.kube.list("Pod", bench.namespace)))
    for apis, taken in (((), False), (("security.openshift.io/v1",), True)):
        for _, pod in template(apis=apis).pods():
            assert _taken(bench, {**pod, "serviceAccountName": "default"}) is taken


def test_a_disruption_budget_that_is_gone_comes_back_and_follows_the_pool(bench: Bench) -> None:
    bench.operator()
    bench.create()
    bench.settled()
    first = bench.child("PodDisruptionBudget")
    assert first is not None
    assert first["spec"]["maxUnavailable"] == 1
    bench.kube.delete("PodDisruptionBudget", bench.namespace, "demo-workers")
    again = until(lambda: bench.child("PodDisruptionBudget"))
    assert again["metadata"]["uid"] != first["metadata"]["uid"]
    bench.edit(rollout={"maxUnavailable": 2})
    until(lambda: (bench.child("PodDisruptionBudget") or first)["spec"]["maxUnavailable"] == 2)


def test_a_network_policy_that_is_changed_or_gone_comes_back(bench: Bench) -> None:
    """That the server has it. Whether it is enforced is the network plugin's matter, of which there is none here."""
    bench.operator()
    bench.create()
    bench.settled()
    first = bench.child("NetworkPolicy")
    assert first is not None
    assert first["spec"]["podSelector"] == {"matchLabels": {"cachefleet.io/pool": "demo"}}
    assert [port["port"] for port in first["spec"]["ingress"][0]["ports"]] == [8000, 8082]
    bench.kube.patch("NetworkPolicy", bench.namespace, "demo-workers", {"spec": {"ingress": [{}]}})
    until(lambda: (bench.child("NetworkPolicy") or {}).get("spec") == first["spec"])
    bench.kube.delete("NetworkPolicy", bench.namespace, "demo-workers")
    again = until(lambda: bench.child("NetworkPolicy"))
    assert again["spec"] == first["spec"]


def test_a_network_policy_that_is_no_longer_wanted_bounds_nothing(bench: Bench) -> None:
    first = bench.operator()
    bench.create()
    bench.settled()
    first.stop()
    bench.operator(worker_peers="")
    until(lambda: (bench.child("NetworkPolicy") or {"spec": {}})["spec"].get("ingress") == [{}])


def test_the_example_with_weights_on_a_volume_is_taken_as_it_is(bench: Bench) -> None:
    restrict(bench)
    given: dict[str, Any] = {document["kind"]: document for _, document in documents(EXAMPLE.read_text())}
    for document in given.values():
        document["metadata"]["namespace"] = bench.namespace
        bench.kube.create(document, dry_run=True)
    bench.kube.create(pod_of(bench, given["Job"]["spec"]["template"]), dry_run=True)
    bench.operator()
    bench.kube.create(given["PrefixCachePool"])
    bench.settled("qwen3-8b")
    pods = bench.kube.list("Pod", bench.namespace)
    assert len(pods) == 3
    mounts = [mount["mountPath"] for mount in pods[0]["spec"]["containers"][0]["volumeMounts"]]
    assert "/weights" in mounts


def test_a_pod_that_lost_a_label_goes_back_to_its_replica_set(bench: Bench) -> None:
    """And the pod that was made in its place goes: it is not ready yet. So with the other label after that."""
    bench.operator()
    bench.create(replicas=1)
    bench.settled()
    (old,) = until(lambda: bench.kube.list("Pod", bench.namespace))
    kubelet.ready(bench.kube, old)
    name = old["metadata"]["name"]

    def back() -> bool:
        left = [pod["metadata"] for pod in bench.kube.list("Pod", bench.namespace)]
        owned = [each["name"] for each in left if each.get("ownerReferences") and label in each["labels"]]
        return len(left) == 1 and owned == [name]

    for label in ("cachefleet.io/pool", "pod-template-hash"):
        bench.kube.patch("Pod", bench.namespace, name, {"metadata": {"labels": {label: None}}})
        until(back)
    assert "PodReleased" in {event["reason"] for event in bench.events()}
