"""Removal by path."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest

from cachefleet_operator.manifests.pod_removals import without

TEMPLATE: dict[str, Any] = {
    "metadata": {"annotations": {"a.b/c": "1", "d~e": "2"}},
    "spec": {
        "securityContext": {"fsGroup": 1, "runAsUser": 2},
        "containers": [{"name": "engine", "ports": [{"containerPort": 8000}], "args": ["x"]}, {"name": "other"}],
    },
}


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/spec/securityContext", {"containers": TEMPLATE["spec"]["containers"]}),
        ("/spec/securityContext/fsGroup", {**TEMPLATE["spec"], "securityContext": {"runAsUser": 2}}),
        ("/spec/containers/other", {**TEMPLATE["spec"], "containers": TEMPLATE["spec"]["containers"][:1]}),
        (
            "/spec/containers/engine/ports/8000",
            {**TEMPLATE["spec"], "containers": [{"name": "engine", "ports": [], "args": ["x"]}, {"name": "other"}]},
        ),
    ],
)
def test_removes_fields_and_named_entries(path: str, expected: dict[str, Any]) -> None:
    before = deepcopy(TEMPLATE)
    assert without(TEMPLATE, [path])["spec"] == expected
    assert before == TEMPLATE


def test_slashes_and_tildes_in_names_are_escaped() -> None:
    assert without(TEMPLATE, ["/metadata/annotations/a.b~1c", "/metadata/annotations/d~0e"])["metadata"] == {
        "annotations": {}
    }


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("/spec/nodeSelector", "/spec has containers, securityContext"),
        ("/spec/containers/0", "/spec/containers has engine, other"),
        ("/spec/containers/engine/args/0", "/spec/containers/engine/args has nothing by a name"),
        ("/spec/securityContext/fsGroup/x", "/spec/securityContext/fsGroup has nothing by a name"),
    ],
)
def test_a_path_to_nothing_says_what_there_is(path: str, message: str) -> None:
    with pytest.raises(LookupError, match=message):
        without(TEMPLATE, [path])
