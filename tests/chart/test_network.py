"""Network policies: who reaches whom. Evaluated as a network plugin would."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from cachefleet_operator import names
from cachefleet_operator.manifests.child_objects import children
from cachefleet_operator.settings import Settings
from tests.chart.helm import NAMESPACE, Object, Rendered, template
from tests.chart.matrix import MATRIX
from tests.operator.pools import pool

pytestmark = pytest.mark.cluster

Labels = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Pod:
    namespace: str
    labels: Labels


def part(name: str) -> Pod:
    own = {"name": "cachefleet", "instance": "cachefleet", "component": name}
    return Pod(NAMESPACE, {f"app.kubernetes.io/{key}": value for key, value in own.items()})


OPERATOR, CONTROL_PLANE, TEST = part("operator"), part("controlplane"), part("test")
WORKER = Pod("serving", {"app.kubernetes.io/managed-by": "cachefleet-operator"})
DEMO = Pod("serving", names.labels(pool()))
ELSEWHERE = Pod("elsewhere", WORKER.labels)
CLIENT = Pod("web", {"app": "chat"})
NEIGHBOUR = Pod(NAMESPACE, {"app": "other"})
PROMETHEUS = Pod("monitoring", {"app.kubernetes.io/name": "prometheus"})
INGRESS = Pod("ingress", {})


def selects(selector: Object, labels: Labels) -> bool:
    exact = selector.get("matchLabels", {}).items() <= dict(labels).items()
    return exact and all(
        rule["operator"] == "In" and labels.get(rule["key"]) in rule["values"]
        for rule in selector.get("matchExpressions", ())
    )


def is_peer(peer: Object, pod: Pod, home: str) -> bool:
    if "ipBlock" in peer:
        return False
    spaces = peer.get("namespaceSelector", {"matchLabels": {"kubernetes.io/metadata.name": home}})
    there = selects(spaces, {"kubernetes.io/metadata.name": pod.namespace})
    return there and selects(peer.get("podSelector", {}), pod.labels)


def applies(policy: Object, pod: Pod, direction: str) -> bool:
    chosen = selects(policy["spec"]["podSelector"], pod.labels)
    here = policy["metadata"]["namespace"] == pod.namespace
    return chosen and here and direction in policy["spec"]["policyTypes"]


def allows(rule: Object, peers: str, other: Pod, port: int, *, home: str) -> bool:
    ports = [entry["port"] for entry in rule.get("ports", ())]
    return (not ports or port in ports) and (
        peers not in rule or any(is_peer(peer, other, home) for peer in rule[peers])
    )


def open_for(objects: Rendered, pod: Pod, other: Pod, port: int, *, direction: str, peers: str) -> bool:
    policies = [policy for policy in objects.of("NetworkPolicy") if applies(policy, pod, direction)]
    if not policies:
        return True
    rules = [(rule, p["metadata"]["namespace"]) for p in policies for rule in p["spec"].get(direction.lower(), ())]
    return any(allows(rule, peers, other, port, home=home) for rule, home in rules)


def reaches(objects: Rendered, source: Pod, target: Pod, port: int) -> bool:
    """Whether a connection is let out of the one and into the other."""
    out = open_for(objects, source, target, port, direction="Egress", peers="to")
    return out and open_for(objects, target, source, port, direction="Ingress", peers="from")


OTHER = Pod("b", {"app.kubernetes.io/part-of": "cachefleet", "app.kubernetes.io/component": "controlplane"})
"""The control plane of another release."""

WAYS: dict[str, tuple[Pod, Pod, int, bool]] = {
    "clients to the gateway": (CLIENT, CONTROL_PLANE, 8080, True),
    "ingress to the gateway": (INGRESS, CONTROL_PLANE, 8080, True),
    "helm test to the gateway": (TEST, CONTROL_PLANE, 8080, True),
    "agents to the internal port": (WORKER, CONTROL_PLANE, 8081, True),
    "operator to the internal port": (OPERATOR, CONTROL_PLANE, 8081, True),
    "prometheus to the internal port": (PROMETHEUS, CONTROL_PLANE, 8081, True),
    "prometheus to the operator": (PROMETHEUS, OPERATOR, 8080, True),
    "control plane to engines": (CONTROL_PLANE, WORKER, 8000, True),
    "control plane to agents": (CONTROL_PLANE, WORKER, 8082, True),
    "clients to the internal port": (CLIENT, CONTROL_PLANE, 8081, False),
    "clients to the operator": (CLIENT, OPERATOR, 8080, False),
    "neighbours to the internal port": (NEIGHBOUR, CONTROL_PLANE, 8081, False),
    "workers to the operator": (WORKER, OPERATOR, 8080, False),
    "clients to neighbours, which are not ours": (CLIENT, NEIGHBOUR, 5432, True),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("values", ["defaults", "namespaced"])
def test_ways(values: str, way: str) -> None:
    source, target, port, wanted = WAYS[way]

    assert reaches(template(MATRIX[values]), source, target, port) is wanted


@pytest.mark.parametrize(("values", "wanted"), [("defaults", False), ("picker", True)])
def test_envoys_alone_reach_the_picker_where_it_is_there(values: str, *, wanted: bool) -> None:
    objects = template(MATRIX[values])

    assert reaches(objects, INGRESS, CONTROL_PLANE, 9002) is wanted
    assert not any(reaches(objects, pod, CONTROL_PLANE, 9002) for pod in (CLIENT, WORKER, NEIGHBOUR))


def test_nobody_reaches_the_picker_before_envoys_are_named() -> None:
    objects = template({"controlPlane": {"picker": {"enabled": True}}})

    assert not any(reaches(objects, pod, CONTROL_PLANE, 9002) for pod in (CLIENT, INGRESS, NEIGHBOUR))


def test_in_listed_namespaces_only_workers_there_report() -> None:
    assert reaches(template(), ELSEWHERE, CONTROL_PLANE, 8081)
    assert not reaches(template(MATRIX["namespaced"]), ELSEWHERE, CONTROL_PLANE, 8081)


def with_workers(objects: Rendered, *, connector: bool = False) -> Rendered:
    """The release, and what its operator makes of a pool in the workers' namespace."""
    variables = {entry["name"]: entry.get("value", "") for entry in objects.container("operator")["env"]}
    told = Settings(agent_image="a:1", worker_peers=variables["CACHEFLEET_WORKER_PEERS"])
    transfer = {"kvTransfer": {"kv_connector": "NixlConnector"}} if connector else {}
    return Rendered([*objects, *children(pool({"engine": {"maxModelLen": 2048, **transfer}}), told)])


@pytest.mark.parametrize(
    ("source", "port", "wanted"),
    [
        (CONTROL_PLANE, 8000, True),
        (CONTROL_PLANE, 8082, True),
        (PROMETHEUS, 8000, True),
        (PROMETHEUS, 8082, True),
        (CLIENT, 8000, False),
        (CLIENT, 8082, False),
        (NEIGHBOUR, 8000, False),
        (OPERATOR, 8000, False),
        (WORKER, 8000, False),
        (WORKER, 40000, False),
        (CONTROL_PLANE, 40000, False),
        (Pod("web", CONTROL_PLANE.labels), 8000, False),
    ],
)
@pytest.mark.parametrize("values", ["defaults", "namespaced", "closed", "renamed"])
def test_workers_are_closed_too(values: str, source: Pod, port: int, wanted: bool) -> None:  # noqa: FBT001
    assert reaches(with_workers(template(MATRIX[values])), source, DEMO, port) is wanted


def test_workers_hand_blocks_to_each_other_where_they_have_a_connector() -> None:
    objects = with_workers(template(), connector=True)

    assert reaches(objects, WORKER, DEMO, 40000)
    assert not reaches(objects, ELSEWHERE, DEMO, 40000)
    assert not reaches(objects, CLIENT, DEMO, 40000)


@pytest.mark.parametrize("policy", [{"workers": False}, {"enabled": False}])
def test_workers_may_be_left_open(policy: Any) -> None:
    objects = with_workers(template({"networkPolicy": policy}))

    assert reaches(objects, CLIENT, DEMO, 8000)


def test_more_may_be_let_in_to_workers() -> None:
    bench = {"podSelector": {"matchLabels": {"app": "bench"}}}
    objects = with_workers(template({"networkPolicy": {"workersFrom": [bench]}}))

    assert reaches(objects, Pod("serving", {"app": "bench"}), DEMO, 8000)
    assert not reaches(objects, Pod("elsewhere", {"app": "bench"}), DEMO, 8000)


def test_a_prometheus_beside_the_release_reads_workers_in_other_namespaces() -> None:
    beside = {"podSelector": {"matchLabels": {"app": "prometheus"}}}
    objects = with_workers(template({"networkPolicy": {"prometheusFrom": [beside]}}))

    assert reaches(objects, Pod(NAMESPACE, {"app": "prometheus"}), DEMO, 8000)
    assert not reaches(objects, Pod("serving", {"app": "prometheus"}), DEMO, 8000)


def test_the_gateway_may_be_closed() -> None:
    objects = template(MATRIX["closed"])

    assert reaches(objects, INGRESS, CONTROL_PLANE, 8080)
    assert reaches(objects, TEST, CONTROL_PLANE, 8080)
    assert not reaches(objects, CLIENT, CONTROL_PLANE, 8080)


def egress(values: Any) -> Rendered:
    return template({"networkPolicy": {"egress": {"enabled": True, **values}}})


@pytest.mark.parametrize(
    ("source", "target", "port", "wanted"),
    [
        (OPERATOR, CLIENT, 443, True),  # the API server may have any address
        (OPERATOR, CLIENT, 53, True),
        (OPERATOR, CONTROL_PLANE, 8081, True),
        (CONTROL_PLANE, WORKER, 8000, True),
        (CONTROL_PLANE, WORKER, 8082, True),
        (TEST, CONTROL_PLANE, 8080, True),
        (CONTROL_PLANE, CLIENT, 5432, False),
        (OPERATOR, CLIENT, 80, False),
    ],
)
def test_what_leaves_is_bounded_where_that_is_asked_for(source: Pod, target: Pod, port: int, wanted: bool) -> None:  # noqa: FBT001
    assert reaches(egress({}), source, target, port) is wanted


def test_a_database_may_be_let_through() -> None:
    assert reaches(egress({"extra": [{"ports": [{"port": 5432, "protocol": "TCP"}]}]}), CONTROL_PLANE, CLIENT, 5432)


def test_nothing_that_leaves_is_bounded_by_itself() -> None:
    assert {kind for o in template().of("NetworkPolicy") for kind in o["spec"]["policyTypes"]} == {"Ingress"}


def test_policies_may_be_left_out() -> None:
    assert template(MATRIX["open"]).of("NetworkPolicy") == []


@pytest.mark.parametrize(("others", "wanted"), [({}, False), ({"b": "http://gateway.b.svc:8080"}, True)])
def test_control_planes_that_know_each_other_reach_the_gateways(others: Object, *, wanted: bool) -> None:
    own = {"controlPlane": {"others": others}}
    bounded = template(own | {"networkPolicy": {"gatewayFrom": [{"podSelector": {"matchLabels": {"app": "chat"}}}]}})
    assert reaches(bounded, OTHER, CONTROL_PLANE, 8080) is wanted
    assert not reaches(bounded, OTHER, CONTROL_PLANE, 8081)
    let_out = template(own | {"networkPolicy": {"egress": {"enabled": True}}})
    assert reaches(let_out, CONTROL_PLANE, OTHER, 8080) is wanted
