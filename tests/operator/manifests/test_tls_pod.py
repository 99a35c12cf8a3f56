"""What of a worker's pod serves TLS, and what is as before without."""

from __future__ import annotations

from typing import Any

from cachefleet_operator.manifests.child_objects import children
from cachefleet_operator.settings import Settings
from tests.operator.pools import SETTINGS, pool

TLS = Settings(agent_image="example.org/agent:1", operator_namespace="ops", tls="issued")


def objects(settings: Settings) -> dict[str, Any]:
    return {manifest["kind"]: manifest for manifest in children(pool(), settings)}


def containers(settings: Settings) -> dict[str, Any]:
    spec = objects(settings)["Deployment"]["spec"]["template"]["spec"]
    return {each["name"]: each for each in (*spec["initContainers"], *spec["containers"])}


def variables(container: dict[str, Any]) -> dict[str, str]:
    return {each["name"]: each.get("value", "") for each in container["env"]}


def test_engine_and_agent_serve_the_mounted_certificate() -> None:
    for name in ("engine", "agent"):
        container = containers(TLS)[name]
        assert variables(container)["CACHEFLEET_TLS_FOLDER"] == "/etc/cachefleet/tls"
        assert {"name": "tls", "mountPath": "/etc/cachefleet/tls", "readOnly": True} in container["volumeMounts"]
    arguments = " ".join(containers(TLS)["engine"]["args"])
    assert "--ssl-certfile /etc/cachefleet/tls/tls.crt --ssl-keyfile /etc/cachefleet/tls/tls.key" in arguments


def test_whoever_is_told_an_address_is_told_https() -> None:
    found = variables(containers(TLS)["agent"])
    assert found["CACHEFLEET_ENGINE_URL"] == "https://127.0.0.1:8000"
    assert found["CACHEFLEET_ENDPOINT"] == "https://$(POD_IP):8000"
    assert found["CACHEFLEET_AGENT_ENDPOINT"] == "https://$(POD_IP):8082"
    assert not [value for value in found.values() if value.startswith("http://")]


def test_every_request_of_the_kubelet_is_https() -> None:
    asked = [
        probe["httpGet"]
        for container in containers(TLS).values()
        for kind, probe in container.items()
        if kind.endswith("Probe")
    ]
    assert len(asked) == 5
    assert {each["scheme"] for each in asked} == {"HTTPS"}
    assert {each["port"] for each in asked} == {"engine-tls", "agent-tls"}
    assert variables(containers(TLS)["engine"])["CACHEFLEET_DRAIN_URL"].startswith("https://localhost:8082/drain/")


def test_the_service_has_ports_for_pods_with_tls_and_for_those_of_before() -> None:
    ports = {each["name"]: each["targetPort"] for each in objects(TLS)["Service"]["spec"]["ports"]}
    assert ports == {name: name for name in ("engine", "agent", "engine-tls", "agent-tls")}
    named = [port["name"] for each in containers(TLS).values() for port in each.get("ports", ())]
    assert sorted(named) == ["agent-tls", "engine-tls"]
    assert all(len(name) <= 15 for name in named)


def test_without_tls_nothing_of_it_is_there() -> None:
    text = str(objects(SETTINGS))
    assert not [word for word in ("tls", "https", "HTTPS", "ssl") if word in text]


def test_the_key_is_for_the_pod_s_group_alone() -> None:
    volumes = objects(TLS)["Deployment"]["spec"]["template"]["spec"]["volumes"]
    secret = next(each["secret"] for each in volumes if each["name"] == "tls")
    assert secret == {"secretName": "demo-worker-tls", "defaultMode": 0o440}
