"""What others add by hand: found where it changes the meaning, left alone where it does not."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest

from cachefleet_operator.kube.additions import without_additions
from cachefleet_operator.kube.drift import holds
from cachefleet_operator.kube.objects import Ref
from cachefleet_operator.manifests.child_objects import children
from tests.operator.hand_edits import ADDITIONS, CHANGES, ENGINE, HandEdit
from tests.operator.pools import SETTINGS, pool

PEERS = ({"podSelector": {"matchLabels": {"a": "b"}}},)
MADE = {each["kind"]: each for each in children(pool(), SETTINGS.model_copy(update={"worker_peers": PEERS}))}


@pytest.mark.parametrize("edit", ADDITIONS, ids=str)
def test_what_changes_the_meaning_is_taken_away(edit: HandEdit) -> None:
    wanted = MADE[edit.kind]
    live = edit.of(wanted)
    parts = without_additions(wanted, live)
    assert parts is not None
    mended = {name: each for name, each in {**live, **parts}.items() if each is not None}
    assert holds(wanted, mended)
    assert without_additions(wanted, mended) is None
    assert holds(mended, wanted)


@pytest.mark.parametrize("edit", CHANGES, ids=str)
def test_what_is_changed_does_not_hold(edit: HandEdit) -> None:
    assert not holds(MADE[edit.kind], edit.of(MADE[edit.kind]))


HARMLESS = [
    ("Service", "metadata.annotations.mine", "x"),
    ("Service", "metadata.labels.mine", "x"),
    ("Service", "spec.clusterIPs", ["None"]),
    ("Service", "spec.sessionAffinity", "None"),
    ("Service", "spec.externalIPs", []),
    ("ServiceAccount", "imagePullSecrets", [{"name": "x"}]),
    ("ServiceAccount", "secrets", [{"name": "x"}]),
    ("Deployment", "status", {"replicas": 2}),
    ("Deployment", "spec.template.metadata.annotations.restartedAt", "now"),
    ("Deployment", "spec.template.metadata.labels.mine", "x"),
    ("Deployment", "spec.template.spec.containers.sidecar", {"image": "proxy"}),
    ("Deployment", "spec.template.spec.initContainers.init", {"image": "proxy"}),
    ("Deployment", "spec.template.spec.volumes.theirs", {"emptyDir": {}}),
    ("Deployment", "spec.template.spec.restartPolicy", "Always"),
    ("Deployment", f"spec.{ENGINE}.terminationMessagePolicy", "File"),
    ("Deployment", f"spec.{ENGINE}.startupProbe.successThreshold", 1),
]


@pytest.mark.parametrize(("kind", "place", "value"), HARMLESS, ids=lambda value: str(value)[:60])
def test_what_means_nothing_or_is_not_ours_stays(kind: str, place: str, value: Any) -> None:
    live = HandEdit(kind, place, value).of(MADE[kind])
    assert without_additions(MADE[kind], live) is None
    assert holds(MADE[kind], live)


def test_what_is_not_ours_survives_a_repair() -> None:
    live = HandEdit("Deployment", "spec.template.spec.containers.sidecar", {"image": "proxy"}).of(MADE["Deployment"])
    live["spec"]["template"]["metadata"]["annotations"]["restartedAt"] = "now"
    live["spec"]["template"]["spec"]["nodeSelector"] = {"a": "b"}
    parts = without_additions(MADE["Deployment"], live)
    assert parts is not None
    template = parts["spec"]["template"]
    assert "nodeSelector" not in template["spec"]
    assert [each["name"] for each in template["spec"]["containers"]] == ["engine", "sidecar"]
    assert template["metadata"]["annotations"]["restartedAt"] == "now"


def test_a_port_that_was_moved_is_moved_back_at_once() -> None:
    """An apply would be refused: two ports of one name."""
    live = deepcopy(MADE["Service"])
    live["spec"]["ports"][0]["port"] = 9000
    parts = without_additions(MADE["Service"], live)
    assert parts is not None
    assert sorted(port["port"] for port in parts["spec"]["ports"]) == [8000, 8082]


def test_every_object_of_a_pool_has_nothing_to_take_away_from_itself() -> None:
    for manifest in MADE.values():
        assert without_additions(manifest, manifest) is None, Ref.of(manifest)


def test_what_the_server_fills_into_a_projected_token_stays() -> None:
    source = {"serviceAccountToken": {"path": "token"}}
    volume = {"name": "v", "projected": {"sources": [source]}}
    wanted: dict[str, Any] = {"kind": "Deployment", "spec": {"volumes": [volume]}}
    live = deepcopy(wanted)
    live["spec"]["volumes"][0]["projected"]["sources"][0]["serviceAccountToken"]["expirationSeconds"] = 3600
    assert without_additions(wanted, live) is None


def test_an_open_policy_that_was_narrowed_is_opened_again() -> None:
    """Its rule is an empty mapping, which holds whatever is added to it."""
    spec = {"podSelector": {}, "policyTypes": ["Ingress"], "ingress": [{}]}
    wanted: dict[str, Any] = {"kind": "NetworkPolicy", "spec": spec}
    live = deepcopy(wanted)
    live["spec"]["ingress"] = [{"from": [{"podSelector": {"matchLabels": {"a": "b"}}}]}]
    assert without_additions(wanted, live) == {"spec": wanted["spec"]}


@pytest.mark.parametrize(
    ("image", "policy"),
    [
        ("vllm", "Always"),
        ("vllm:latest", "Always"),
        ("registry:5000/vllm", "Always"),
        ("vllm:v0.32.0", "IfNotPresent"),
        ("registry:5000/org/vllm:v1@sha256:abc", "IfNotPresent"),
        ("registry.example.org/vllm@sha256:abc", "IfNotPresent"),
        ("vllm:latest@sha256:abc", "Always"),
    ],
)
def test_the_pull_policy_that_the_api_server_fills_in_stays_and_no_other(image: str, policy: str) -> None:
    wanted = HandEdit("Deployment", f"spec.{ENGINE}.image", image).of(MADE["Deployment"])
    for given in ("Always", "IfNotPresent", "Never"):
        live = HandEdit("Deployment", f"spec.{ENGINE}.imagePullPolicy", given).of(wanted)
        assert (without_additions(wanted, live) is None) == (given == policy)
