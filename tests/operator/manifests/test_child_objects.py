import base64
import json
from typing import Any

import pytest

from cachefleet_core.tenancy import FleetKey, fleet_index_key
from cachefleet_operator.kube.objects import Ref
from cachefleet_operator.manifests.child_objects import children, fleet_key_secret, keys_secret, refs
from cachefleet_operator.settings import Settings
from tests.operator.pools import SETTINGS, pool

KEY = FleetKey(bytes(range(32)))


def by_kind(spec: dict[str, Any] | None = None, **metadata: Any) -> dict[str, dict[str, Any]]:
    return {manifest["kind"]: manifest for manifest in children(pool(spec, **metadata), SETTINGS)}


PEERS = ({"namespaceSelector": {"matchLabels": {"a": "b"}}, "podSelector": {}}, {"ipBlock": {"cidr": "10.0.0.0/8"}})
CLOSED = SETTINGS.model_copy(update={"worker_peers": PEERS})
POLICY = Ref("NetworkPolicy", "serving", "demo-workers")


def network_policy(settings: Settings, spec: dict[str, Any] | None = None, *there: Ref) -> dict[str, Any] | None:
    """The spec of the one that is applied."""
    made = {
        Ref.of(manifest): manifest["spec"]
        for manifest in children(pool(spec), settings, there=there)
        if "spec" in manifest
    }
    return made.get(POLICY)


def test_workers_are_reached_by_those_who_are_named_at_two_ports() -> None:
    spec = network_policy(CLOSED)
    assert spec is not None
    assert spec["podSelector"] == by_kind()["Deployment"]["spec"]["selector"]
    assert spec["policyTypes"] == ["Ingress"]
    (rule,) = spec["ingress"]
    assert [(port["port"], port["protocol"]) for port in rule["ports"]] == [(8000, "TCP"), (8082, "TCP")]
    assert rule["from"] == list(PEERS)


def test_workers_with_a_connector_reach_each_other_at_any_port() -> None:
    spec = network_policy(CLOSED, {"engine": {"maxModelLen": 2048, "kvTransfer": {"kv_connector": "NixlConnector"}}})
    assert spec is not None
    assert spec["ingress"][1:] == [
        {"from": [{"podSelector": {"matchLabels": {"app.kubernetes.io/managed-by": "cachefleet-operator"}}}]}
    ]


def test_without_peers_no_policy_is_made_and_one_that_is_there_bounds_nothing() -> None:
    assert network_policy(SETTINGS) is None
    assert (network_policy(SETTINGS, None, POLICY) or {})["ingress"] == [{}]
    assert network_policy(CLOSED, None, POLICY) == network_policy(CLOSED)


def test_every_object_is_looked_for_by_its_name() -> None:
    made = [*children(pool(), CLOSED), keys_secret(pool(), KEY)]
    assert {Ref.of(manifest) for manifest in made} == set(refs("serving", "demo"))


def test_everything_goes_with_its_pool() -> None:
    for manifest in (*children(pool(), CLOSED), keys_secret(pool(), KEY)):
        (owner,) = manifest["metadata"]["ownerReferences"]
        assert (owner["kind"], owner["name"], owner["uid"]) == ("PrefixCachePool", "demo", "uid-1")
        assert owner["controller"]
        assert manifest["metadata"]["labels"]["cachefleet.io/pool"] == "demo"


def test_the_fleet_key_outlives_every_pool() -> None:
    secret = fleet_key_secret("ops", KEY)
    assert "ownerReferences" not in secret["metadata"]
    assert FleetKey.parse(base64.b64decode(secret["data"]["fleet.key"]).decode()).index_key == KEY.index_key


def test_workers_get_derived_keys_and_never_the_fleets() -> None:
    data = {name: base64.b64decode(value) for name, value in keys_secret(pool(), KEY)["data"].items()}
    assert base64.urlsafe_b64decode(data["index.key"]) == fleet_index_key(KEY.index_key, "serving", "tiny")
    assert data["worker.key"].decode() == KEY.worker_key("serving/demo")
    assert len(data) == 2


def test_the_workers_service_is_headless_with_named_ports() -> None:
    service = by_kind()["Service"]
    assert service["metadata"]["name"] == "demo-workers"
    assert service["spec"]["clusterIP"] == "None"
    assert {port["name"]: port["port"] for port in service["spec"]["ports"]} == {"engine": 8000, "agent": 8082}


def test_a_policy_edit_restarts_nobody() -> None:
    before = by_kind()
    after = by_kind(
        {
            "hit": {"threshold": 0.25},
            "preemption": {"rejectBelow": 0.9, "policy": "Recompute"},
            "prefixCache": {"budgetMiB": 0, "maxEntries": 3},
        },
        generation=2,
    )
    assert after["Deployment"] == before["Deployment"]
    policy = json.loads(after["ConfigMap"]["data"]["policy.json"])
    assert (policy["threshold"], policy["preemption"], policy["generation"]) == (0.25, "Recompute", 2)


def test_an_image_rolls() -> None:
    template = by_kind({"engine": {"image": "other:1"}})["Deployment"]["spec"]["template"]
    assert template != by_kind()["Deployment"]["spec"]["template"]


def test_scaling_touches_nothing_but_the_number() -> None:
    before, after = by_kind()["Deployment"]["spec"], by_kind({"replicas": 7})["Deployment"]["spec"]
    assert after["replicas"] == 7
    assert {**after, "replicas": 2} == before


@pytest.mark.parametrize(("replicas", "unavailable", "expected"), [(1, 0, 1), (4, 0, 1), (4, 3, 3)])
def test_a_node_that_is_drained_loses_one_worker_at_a_time_and_is_never_blocked(
    replicas: int, unavailable: int, expected: int
) -> None:
    budget = by_kind({"replicas": replicas, "rollout": {"maxUnavailable": unavailable}})["PodDisruptionBudget"]
    assert budget["metadata"]["name"] == "demo-workers"
    assert budget["spec"] == {
        "maxUnavailable": expected,
        "selector": by_kind()["Deployment"]["spec"]["selector"],
        "unhealthyPodEvictionPolicy": "AlwaysAllow",
    }


def test_another_chat_template_replaces_pods_and_nothing_else() -> None:
    given = {"model": {"chatTemplate": {"configMapKeyRef": {"name": "t", "key": "k"}}}}
    first, second = (children(pool(given), SETTINGS, chat_template=text) for text in ("a", "b"))
    assert [old["kind"] for old, new in zip(first, second, strict=True) if old != new] == ["Deployment"]


SIDECAR = {"name": "weights", "image": "w", "restartPolicy": "Always", "startupProbe": {"failureThreshold": 4}}


@pytest.mark.parametrize(
    ("patch", "seconds"),
    [
        ({}, 3600 + 60),
        ({"containers": [{"name": "engine", "startupProbe": {"failureThreshold": 900}}]}, 9000 + 60),
        (
            {"containers": [{"name": "engine", "startupProbe": {"initialDelaySeconds": 60, "periodSeconds": 30}}]},
            10_920,
        ),
        ({"initContainers": [{"name": "agent", "startupProbe": {"periodSeconds": 5}}]}, 3600 + 300),
        ({"initContainers": [SIDECAR]}, 3600 + 60 + 40),
        ({"containers": [{"name": "beside", "image": "b", "startupProbe": {"periodSeconds": 1}}]}, 3600 + 60),
    ],
)
def test_a_worker_is_late_by_the_numbers_of_its_own_probes(patch: dict[str, Any], seconds: int) -> None:
    changes = {"podTemplate": {"spec": patch}, "rollout": {"warmTimeoutSeconds": 7}}
    assert by_kind(changes)["Deployment"]["spec"]["progressDeadlineSeconds"] == seconds + 7
