"""Parsing, keeping and merging Kubernetes objects."""

from typing import Any

import pytest

from cachefleet_controlplane.pools.kubernetes_objects import (
    POOL_LABEL,
    POOLS,
    SERVICE_SUFFIX,
    SLICES,
    ObjectError,
    Objects,
    merge,
    parse_pool,
    parse_slice,
)
from cachefleet_controlplane.pools.source import WorkerEndpoint
from cachefleet_core.pool.status import PoolStatus
from cachefleet_operator import names as names_of
from cachefleet_operator.manifests.child_objects import children
from cachefleet_operator.settings import Settings
from cachefleet_runtime.kubernetes import KubernetesError
from tests.controlplane.pools.kube_server import endpoint, endpoint_slice, pool
from tests.operator.pools import pool as operators_pool

A, B = "demo-workers-1-aaaaa", "demo-workers-1-bbbbb"


def event(kind: str, item: dict[str, Any], version: int) -> dict[str, Any]:
    return {"type": kind, "object": item | {"metadata": item["metadata"] | {"resourceVersion": str(version)}}}


def names(objects: Objects[Any]) -> list[str]:
    return sorted(item.pool.metadata.name for item in objects.values())


def test_an_endpoint_becomes_a_worker() -> None:
    picture = merge([parse_pool(pool())], filter(None, [parse_slice(endpoint_slice(endpoint(A, "10.0.0.1")))]))
    assert [view.key for view in picture] == ["serving/demo"]
    assert picture[0].workers == (
        WorkerEndpoint(A, "http://10.0.0.1:8000", ready=True, agent="http://10.0.0.1:8082", pod=f"uid-{A}"),
    )


@pytest.mark.parametrize(
    ("names", "scheme"),
    [
        (["engine-tls", "agent-tls"], "https"),
        (["engine", "agent"], "http"),
        ([None], "http"),
        (None, "http"),
    ],
)
def test_a_slice_says_by_its_ports_whether_its_workers_serve_tls(names: list[str | None] | None, scheme: str) -> None:
    ports = None if names is None else [{"name": name, "port": 8000, "protocol": "TCP"} for name in names]
    found = parse_slice(endpoint_slice(endpoint(A, "10.0.0.1")) | {"ports": ports})
    assert found is not None
    assert found.endpoints[0].url == f"{scheme}://10.0.0.1:8000"
    assert found.endpoints[0].agent == f"{scheme}://10.0.0.1:8082"


@pytest.mark.parametrize(("condition", "ready"), [(True, True), (False, False), (None, True)])
def test_unknown_readiness_counts_as_ready(*, condition: bool | None, ready: bool) -> None:
    found = parse_slice(endpoint_slice(endpoint(A, "10.0.0.1", ready=condition)))
    assert found is not None
    assert found.endpoints[0].ready is ready


def test_a_pod_that_is_being_deleted_is_not_ready_though_it_serves() -> None:
    leaving = endpoint(A, "10.0.0.1") | {"conditions": {"ready": False, "serving": True, "terminating": True}}
    found = parse_slice(endpoint_slice(leaving))
    assert found is not None
    assert not found.endpoints[0].ready


def test_ipv6_addresses_are_bracketed() -> None:
    found = parse_slice(endpoint_slice(endpoint(A, "fd00::1"), family="IPv6"))
    assert found is not None
    assert (found.endpoints[0].url, found.endpoints[0].agent) == ("http://[fd00::1]:8000", "http://[fd00::1]:8082")


@pytest.mark.parametrize(
    "item",
    [
        endpoint_slice() | {"addressType": "FQDN"},
        endpoint_slice() | {"metadata": {"name": "x", "namespace": "serving"}},
        endpoint_slice() | {"metadata": {"name": "x", "labels": {"cachefleet.io/pool": "demo"}}},
    ],
    ids=["names", "no labels", "another service"],
)
def test_slices_of_others_are_left_alone(item: dict[str, Any]) -> None:
    assert parse_slice(item) is None


def test_endpoints_that_are_no_pods_are_left_out() -> None:
    found = parse_slice(endpoint_slice({"addresses": ["10.0.0.1"]}, {"addresses": [], "targetRef": {"kind": "Pod"}}))
    assert found is not None
    assert found.endpoints == ()


@pytest.mark.parametrize(
    "name", ["demo-copy", "demo-workers-0", "demo-workers-2-1-aaaaa", "other-workers-1-aaaaa", "nginx"]
)
def test_other_pods_of_the_label_are_no_workers(name: str) -> None:
    found = parse_slice(endpoint_slice(endpoint(name, "10.0.0.1"), endpoint(A, "10.0.0.2")))
    assert found is not None
    assert [worker.name for worker in found.endpoints] == [A]


@pytest.mark.parametrize(("told", "workers"), [([B, "x"], [A]), (None, [A, B]), ("x", [A, B]), ([1, ""], [A, B])])
def test_a_pod_that_the_operator_calls_foreign_is_no_worker(told: Any, workers: list[str]) -> None:
    declared = parse_pool(pool() | {"status": {"foreignPods": told}})
    parts = [parse_slice(endpoint_slice(endpoint(A, "10.0.0.1"), endpoint(B, "10.0.0.2")))]
    (view,) = merge([declared], filter(None, parts))
    assert [worker.name for worker in view.workers] == workers


@pytest.mark.parametrize(
    ("tls", "names", "pod"),
    [
        (True, ["engine-tls"], f"uid-{A}"),
        (True, ["engine"], ""),
        (False, ["engine"], f"uid-{A}"),
        (False, ["engine-tls"], ""),
        (None, ["engine-tls"], f"uid-{A}"),
    ],
)
def test_agents_that_cannot_report_while_tls_is_turned_on_or_off_need_not(
    names: list[str], pod: str, *, tls: bool | None
) -> None:
    ports = [{"name": name, "port": 8000, "protocol": "TCP"} for name in names]
    part = parse_slice(endpoint_slice(endpoint(A, "10.0.0.1")) | {"ports": ports})
    (view,) = merge([parse_pool(pool())], filter(None, [part]), tls=tls)
    assert view.workers[0].pod == pod


def test_a_slice_without_endpoints_has_none() -> None:
    found = parse_slice(endpoint_slice() | {"endpoints": None})
    assert found is not None
    assert found.endpoints == ()


@pytest.mark.parametrize("item", [{}, endpoint_slice() | {"endpoints": [{"addresses": "10.0.0.1"}]}])
def test_a_malformed_slice_is_an_object_error(item: dict[str, Any]) -> None:
    with pytest.raises(ObjectError):
        parse_slice(item)


def test_a_worker_in_two_slices_is_taken_once_ready_and_ipv4_first() -> None:
    parts = [
        parse_slice(endpoint_slice(endpoint(A, "fd00::1"), endpoint(B, "fd00::2"), family="IPv6", suffix="1")),
        parse_slice(endpoint_slice(endpoint(A, "10.0.0.1", ready=False), endpoint(B, "10.0.0.2"), suffix="2")),
    ]
    for order in (parts, parts[::-1]):
        picture = merge([parse_pool(pool())], filter(None, order))
        assert [(w.name, w.url) for w in picture[0].workers] == [
            (A, "http://[fd00::1]:8000"),
            (B, "http://10.0.0.2:8000"),
        ]


def test_endpoints_never_make_a_pool() -> None:
    assert merge([], filter(None, [parse_slice(endpoint_slice(endpoint(A, "10.0.0.1")))])) == ()


def test_of_a_pools_status_only_its_claim_to_its_name_is_read() -> None:
    assert parse_pool(pool() | {"status": {"from": "another version"}}).pool.status is None
    served = parse_pool(pool() | {"status": {"firstReadyTime": "2027-01-01T00:00:00Z", "replicas": "many"}}).pool
    assert served.status == PoolStatus(first_ready_time="2027-01-01T00:00:00Z")


def test_a_pool_says_since_when_it_is() -> None:
    made = pool()
    made["metadata"] = made["metadata"] | {"creationTimestamp": "2027-01-01T00:00:00Z"}
    assert parse_pool(made).pool.metadata.creation_timestamp == "2027-01-01T00:00:00Z"


def test_events_move_objects_and_version() -> None:
    objects = Objects(POOLS)
    objects.replace([pool("a"), pool("b")], "5")
    assert (objects.listed, objects.version, names(objects)) == (True, "5", ["a", "b"])
    assert objects.apply(event("ADDED", pool("c"), 6))
    assert objects.apply(event("DELETED", pool("a"), 7))
    assert (objects.version, names(objects)) == ("7", ["b", "c"])
    assert not objects.apply({"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "9"}}})
    assert objects.version == "9"


def test_a_list_drops_what_is_no_longer_there() -> None:
    objects = Objects(POOLS)
    objects.replace([pool("a"), pool("b")], "5")
    objects.replace([pool("b")], "6")
    assert names(objects) == ["b"]


def test_an_object_that_turns_invalid_keeps_its_last_good_form() -> None:
    objects = Objects(POOLS)
    objects.replace([pool("a")], "5")
    broken = pool("a", replicas="many")
    objects.apply(event("MODIFIED", broken, 6))
    assert next(iter(objects.values())).pool.spec.replicas == 1
    assert "spec.replicas" in objects.invalid["serving/a"]
    objects.replace([broken, pool("b", replicas=-1)], "7")
    assert names(objects) == ["a"]
    assert set(objects.invalid) == set(objects.unread) == {"serving/a", "serving/b"}
    objects.apply(event("MODIFIED", pool("a", replicas=3), 8))
    assert next(iter(objects.values())).pool.spec.replicas == 3
    assert set(objects.invalid) == set(objects.unread) == {"serving/b"}
    objects.apply(event("DELETED", pool("b"), 9))
    assert (objects.invalid, objects.unread) == ({}, {})


def test_a_slice_that_changes_hands_goes() -> None:
    objects = Objects(SLICES)
    item = endpoint_slice(endpoint(A, "10.0.0.1"))
    objects.replace([item], "1")
    objects.apply(event("MODIFIED", item | {"addressType": "FQDN"}, 2))
    assert list(objects.values()) == []


@pytest.mark.parametrize(
    ("bad", "gone"),
    [
        ({"type": "ERROR", "object": {"code": 410, "message": "too old"}}, True),
        ({"type": "ERROR", "object": {"code": 500}}, False),
        ({"type": "SOMETHING", "object": {}}, False),
        ({}, False),
    ],
)
def test_errors_of_a_watch_change_nothing(*, bad: dict[str, Any], gone: bool) -> None:
    objects = Objects(POOLS)
    objects.replace([pool("a")], "5")
    with pytest.raises(KubernetesError) as error:
        objects.apply(bad)
    assert error.value.gone is gone
    assert (objects.version, names(objects)) == ("5", ["a"])


def test_workers_are_looked_for_as_the_operator_names_them() -> None:
    declared = parse_pool(pool()).pool
    assert names_of.POOL_LABEL == POOL_LABEL
    assert names_of.service(declared.metadata.name) == declared.metadata.name + SERVICE_SUFFIX
    assert names_of.labels(declared)[POOL_LABEL] == declared.metadata.name


def test_tls_ports_are_named_as_the_operator_names_them() -> None:
    settings = Settings(agent_image="x", tls="issued")
    service = next(each for each in children(operators_pool(), settings) if each["kind"] == "Service")
    [tls] = [port for port in service["spec"]["ports"] if port["name"].startswith("engine-")]
    found = parse_slice(endpoint_slice(endpoint(A, "10.0.0.1")) | {"ports": [tls]})
    assert found is not None
    assert found.endpoints[0].url.startswith("https:")


def test_paths_and_queries() -> None:
    assert POOLS.path("") == "/apis/cachefleet.io/v1alpha1/prefixcachepools"
    assert SLICES.path("serving") == "/apis/discovery.k8s.io/v1/namespaces/serving/endpointslices"
    assert SLICES.list_query(limit=5, token="t") == {
        "limit": "5",
        "continue": "t",
        "labelSelector": "cachefleet.io/pool",
    }
    assert POOLS.watch_query(version="7", seconds=20)["timeoutSeconds"] == "20"
