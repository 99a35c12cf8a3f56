"""Which field somebody else changed, and who, by what the API server says of field managers."""

from __future__ import annotations

import re
from copy import deepcopy
from typing import Any

import pytest

from cachefleet_operator.kube.foreign_edits import Edit, foreign_edit
from cachefleet_operator.manifests.child_objects import children
from tests.operator.hand_edits import ADDITIONS, CHANGES, ENGINE, HandEdit
from tests.operator.pools import SETTINGS, pool

PEERS = ({"podSelector": {"matchLabels": {"a": "b"}}},)
MADE = {each["kind"]: each for each in children(pool(), SETTINGS.model_copy(update={"worker_peers": PEERS}))}
OWN = {"manager": "cachefleet-operator", "operation": "Apply", "time": "2026-01-01T00:00:00Z"}


def managed(live: dict[str, Any], *managers: dict[str, Any]) -> dict[str, Any]:
    return {**live, "metadata": {**live["metadata"], "managedFields": [OWN, *managers]}}


def manager(name: str, fields: dict[str, Any], *, subresource: str = "", time: str = "2026-01-01T00:00:00Z") -> Any:
    return {"manager": name, "subresource": subresource, "time": time, "fieldsV1": fields}


SCALE: Any = {"f:spec": {"f:replicas": {}}}
IMAGE: Any = {"f:spec": {"f:template": {"f:spec": {"f:containers": {'k:{"name":"engine"}': {".": {}, "f:image": {}}}}}}}
PORT: Any = {"f:spec": {"f:ports": {'k:{"port":9,"protocol":"TCP"}': {".": {}, "f:name": {}}}}}


@pytest.mark.parametrize(
    ("edit", "managers", "expected"),
    [
        (
            HandEdit("Deployment", "spec.replicas", 9),
            [
                manager("kubectl-edit", IMAGE, time="2026-02-01T00:00:00Z"),
                manager("kubectl", SCALE, subresource="scale"),
            ],
            ("spec.replicas", "kubectl", "scale"),
        ),
        (
            HandEdit("Deployment", f"spec.{ENGINE}.image", "other"),
            [manager("kubectl", SCALE, subresource="scale"), manager("argocd", IMAGE)],
            ("spec.template.spec.containers[engine].image", "argocd", ""),
        ),
        (
            HandEdit("Service", "spec.ports", [{"name": "more", "port": 9, "protocol": "TCP"}]),
            [manager("mesh", PORT)],
            ("spec.ports[9,TCP]", "mesh", ""),
        ),
        (HandEdit("Deployment", "spec.template.spec.nodeSelector", {"a": "b"}), [], ("", "somebody", "")),
    ],
)
def test_the_field_and_its_manager_are_named(edit: HandEdit, managers: Any, expected: tuple[str, ...]) -> None:
    found = foreign_edit(MADE[edit.kind], managed(edit.of(MADE[edit.kind]), *managers))
    assert found is not None
    assert (found.field if expected[0] else "", found.manager, found.subresource) == expected


def test_what_is_written_to_the_status_is_no_edit() -> None:
    status = manager("kube-controller-manager", {"f:status": {"f:replicas": {}}}, subresource="status")
    live = managed(HandEdit("Deployment", "spec.replicas", 9).of(MADE["Deployment"]), status)
    found = foreign_edit(MADE["Deployment"], live)
    assert found is not None
    assert found.manager == "somebody"


@pytest.mark.parametrize("edit", [*ADDITIONS, *CHANGES], ids=str)
def test_every_edit_by_hand_is_seen_with_its_field(edit: HandEdit) -> None:
    found = foreign_edit(MADE[edit.kind], edit.of(MADE[edit.kind]))
    assert found is not None
    plain = re.sub(r"\[([^\]]*)\]", r".\1", found.field)
    assert plain.split(".")[0] == edit.place.split(".", maxsplit=1)[0]
    assert found.template == edit.place.startswith("spec.template")
    assert found.scales == (edit.place == "spec.replicas")


def test_nothing_is_foreign_where_nothing_differs_or_the_manifest_is_another() -> None:
    made = MADE["Deployment"]
    assert foreign_edit(made, deepcopy(made)) is None
    others = {each["kind"]: each for each in children(pool({"replicas": 7}), SETTINGS)}
    assert foreign_edit(others["Deployment"], made) is None


def test_an_edit_that_takes_the_digest_along_is_one() -> None:
    live = HandEdit("Deployment", "spec.replicas", 9).of(MADE["Deployment"])
    live["metadata"]["annotations"] = {}
    assert foreign_edit(MADE["Deployment"], live) == Edit(("spec", "replicas"), scales=True)
