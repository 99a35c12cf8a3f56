"""Values: few, described, and refused by name where they cannot be."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.chart.helm import CHART, Object, Refused, template, values

pytestmark = pytest.mark.cluster

SCHEMA: Object = json.loads((CHART / "values.schema.json").read_text())

BAD: dict[str, tuple[Object, str]] = {
    "unknown at the top": ({"replicas": 2}, "'replicas' not allowed"),
    "unknown inside": ({"controlPlane": {"replica": 2}}, "'replica' not allowed"),
    "no replica": ({"controlPlane": {"replicas": 0}}, "/controlPlane/replicas"),
    "three operators": ({"operator": {"replicas": 3}}, "/operator/replicas"),
    "replicas in words": ({"controlPlane": {"replicas": "two"}}, "/controlPlane/replicas"),
    "policy": ({"controlPlane": {"policy": "random"}}, "/controlPlane/policy"),
    "knowledge": ({"controlPlane": {"knowledge": "none"}}, "/controlPlane/knowledge"),
    "api keys": ({"controlPlane": {"apiKeys": "never"}}, "/controlPlane/apiKeys"),
    "renderer without a scheme": ({"controlPlane": {"renderers": ["renderer:8000"]}}, "/controlPlane/renderers/0"),
    "origin with a path": (
        {"controlPlane": {"gateway": {"allowedOrigins": ["*", "https://app.example/"]}}},
        "/controlPlane/gateway/allowedOrigins/1",
    ),
    "files with credentials": (
        {"controlPlane": {"batches": {"filesUrl": "s3://key:secret@bucket"}}},
        "/controlPlane/batches/filesUrl",
    ),
    "a secret of files": ({"controlPlane": {"batches": {"filesSecretName": "A_b"}}}, "batches/filesSecretName"),
    "renderer with a path": ({"controlPlane": {"renderers": ["http://a/b"]}}, "/controlPlane/renderers/0"),
    "name of a control plane": ({"controlPlane": {"name": "B"}}, "/controlPlane/name"),
    "name of another control plane": ({"controlPlane": {"others": {"B": "http://b"}}}, "'B' does not match pattern"),
    "another one's address": ({"controlPlane": {"others": {"b": "b:8080"}}}, "/controlPlane/others/b"),
    "drain": ({"controlPlane": {"drainSeconds": 4000}}, "/controlPlane/drainSeconds"),
    "body": ({"controlPlane": {"requestMaxBytes": 10}}, "/controlPlane/requestMaxBytes"),
    "database without a key": (
        {"controlPlane": {"databaseUrlSecretRef": {"name": "db", "key": ""}}},
        "/controlPlane/databaseUrlSecretRef/key",
    ),
    "a database's URL in the open": (
        {"controlPlane": {"databaseUrl": "postgresql://u:p@h/d"}},
        "'databaseUrl' not allowed",
    ),
    "size of a volume": ({"controlPlane": {"persistence": {"size": "2 GB"}}}, "/controlPlane/persistence/size"),
    "a volume for two": ({"controlPlane": {"persistence": {"enabled": True}}}, "controlPlane.replicas 1, not 2"),
    "a volume for as many as an autoscaler wants": (
        {"controlPlane": {"replicas": None, "persistence": {"enabled": True}}},
        "controlPlane.replicas 1, not null",
    ),
    "batches without a database": (
        {"controlPlane": {"batches": {"enabled": True}}},
        "controlPlane.batches.enabled: needs a database that all replicas share",
    ),
    "label of two words": ({"commonLabels": {"team": "team one"}}, "/commonLabels/team"),
    "a volume and a database": (
        {"controlPlane": {"replicas": 1, "persistence": {"enabled": True}, "databaseUrlSecretRef": {"name": "db"}}},
        "controlPlane.databaseUrlSecretRef.name is set",
    ),
    "service type": ({"controlPlane": {"gateway": {"service": {"type": "External"}}}}, "/gateway/service/type"),
    "port": ({"controlPlane": {"gateway": {"service": {"port": 70000}}}}, "/gateway/service/port"),
    "tag in the repository": ({"image": {"repository": "Cachefleet"}}, "/image/repository"),
    "tag": ({"image": {"tag": "a b"}}, "/image/tag"),
    "digest": ({"image": {"digest": "sha256:12"}}, "/image/digest"),
    "pull policy": ({"image": {"pullPolicy": "Sometimes"}}, "/image/pullPolicy"),
    "log level": ({"log": {"level": "info"}}, "/log/level"),
    "log format": ({"log": {"format": "xml"}}, "/log/format"),
    "namespace of a name": ({"modelNames": {"qwen": ["Serving"]}}, "/modelNames/qwen/0"),
    "one namespace of a name as text": ({"modelNames": {"qwen": "serving"}}, "/modelNames/qwen"),
    "namespace": ({"namespaces": ["Serving"]}, "/namespaces/0"),
    "namespaces as text": ({"namespaces": "serving"}, "/namespaces"),
    "a namespace twice": ({"namespaces": ["a", "a"]}, "/namespaces"),
    "quantity": ({"operator": {"resources": {"limits": {"memory": "1 GB"}}}}, "/operator/resources/limits/memory"),
    "variable without a value": ({"operator": {"extraEnv": [{"name": "A"}]}}, "/operator/extraEnv/0"),
    "variable that is a number": ({"operator": {"extraEnv": [{"name": "A", "value": 1}]}}, "extraEnv/0/value"),
    "toleration": ({"operator": {"tolerations": [{"effect": "Never"}]}}, "/operator/tolerations/0/effect"),
    "a label of ours": ({"operator": {"podLabels": {"app.kubernetes.io/name": "x"}}}, "/operator/podLabels"),
    "shared memory": ({"operator": {"sharedMemoryMiB": 64}}, "/operator/sharedMemoryMiB"),
    "interval": ({"monitoring": {"monitors": {"interval": "often"}}}, "/monitoring/monitors/interval"),
    "runbooks of no folder": (
        {"monitoring": {"rules": {"runbooks": "https://a b"}}},
        "/monitoring/rules/runbooks",
    ),
    "user of two words": ({"admissionPolicy": {"exemptUsers": ["a b"]}}, "/admissionPolicy/exemptUsers/0"),
    "peer": ({"networkPolicy": {"gatewayFrom": [{"pods": {}}]}}, "/networkPolicy/gatewayFrom/0"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_value_is_refused_by_its_name(case: str) -> None:
    bad, message = BAD[case]

    with pytest.raises(Refused) as refused:
        template(bad)
    assert message in str(refused.value)


def nodes(node: Object, path: str = "values") -> Iterator[tuple[str, Object]]:
    yield path, node
    for name, child in node.get("properties", {}).items():
        yield from nodes(child, f"{path}.{name}")
    if "items" in node:
        yield from nodes(node["items"], f"{path}[]")


NODES = {
    **dict(nodes(SCHEMA)),
    **{path: node for name, of in SCHEMA["definitions"].items() for path, node in nodes(of, name)},
}


def test_objects_with_fields_take_no_others() -> None:
    assert [path for path, node in NODES.items() if "properties" in node and node.get("additionalProperties")] == []
    assert [path for path, node in NODES.items() if "properties" in node and "additionalProperties" not in node] == []


def test_every_value_is_described() -> None:
    named = {path: node for path, node in NODES.items() if "." in path and not path.endswith("[]")}

    assert [path for path, node in named.items() if not node.get("description")] == []


def leaves(node: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    yield path
    if isinstance(node, dict):
        for name, child in node.items():
            yield from leaves(child, (*path, name))


def resolved(node: Object) -> Object:
    for part in node.get("allOf", [node]):
        if "$ref" in part:
            found: Object = SCHEMA["definitions"][part["$ref"].rsplit("/", 1)[1]]
            return found
    return node


def test_the_schema_and_the_values_have_the_same_fields() -> None:
    def fields(node: Object, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
        yield path
        for name, child in resolved(node).get("properties", {}).items():
            yield from fields(child, (*path, name))

    inside = ("resources", "affinity", "labels", "annotations")  # Kubernetes' own below
    own = {path for path in leaves(values()) if not set(path[:-1]) & {*inside}}
    assert own == {path for path in fields(SCHEMA) if not set(path[:-1]) & {*inside}}


def test_there_are_not_too_many() -> None:
    assert len((CHART / "values.yaml").read_text().splitlines()) < 300
