"""TLS as the chart sets it up: on, everywhere, and the same on both sides of each connection."""

from __future__ import annotations

from typing import Any

import pytest

from cachefleet_core.tls_names import WORKERS_DOMAIN
from cachefleet_operator.names import AUTHORITY
from cachefleet_operator.settings import Settings as OperatorSettings
from tests.chart.helm import Rendered, template
from tests.chart.matrix import MATRIX
from tests.chart.test_settings import variables

pytestmark = pytest.mark.cluster

EXISTING = MATRIX["certificates of others"]


def mounted(objects: Rendered) -> str:
    """The Secret that is in the folder which the control plane is told."""
    container, pod = objects.container("controlplane"), objects.pod("controlplane")
    folder = variables(container)["CACHEFLEET_TLS_FOLDER"]
    [volume] = [mount["name"] for mount in container["volumeMounts"] if mount["mountPath"] == folder]
    [secret] = [each["secret"] for each in pod["volumes"] if each["name"] == volume]
    assert "subPath" not in str(container["volumeMounts"])  # which would never be renewed
    return str(secret["secretName"])


def endpoints(objects: Rendered) -> list[Any]:
    monitors = [*objects.of("ServiceMonitor"), *objects.of("PodMonitor")]
    return [
        endpoint
        for each in monitors
        for endpoint in (*each["spec"].get("endpoints", ()), *each["spec"].get("podMetricsEndpoints", ()))
        if endpoint["port"] != "metrics"  # the operator's own: no token is ever sent there
    ]


def test_it_is_on_and_the_operator_issues() -> None:
    told = variables(template().container("operator"))
    assert told["CACHEFLEET_TLS"] == "issued"
    assert told["CACHEFLEET_ADMIN_URL"].startswith("https://")
    assert mounted(template()) == told["CACHEFLEET_TLS_SECRET"] == OperatorSettings(agent_image="x").tls_secret


def test_the_kubelet_asks_the_internal_port_over_tls() -> None:
    for values, scheme in (({}, "HTTPS"), (MATRIX["plain"], None)):
        container = template(values).container("controlplane")
        probes = [probe["httpGet"] for name, probe in container.items() if name.endswith("Probe")]
        assert [probe.get("scheme") for probe in probes] == [scheme] * 3
    operator = template().container("operator")
    assert "scheme" not in operator["readinessProbe"]["httpGet"]


def test_prometheus_verifies_what_it_reads() -> None:
    found = endpoints(template(MATRIX["monitored"]))
    assert [each["port"] for each in found] == ["internal", "agent-tls", "engine-tls"]
    for each in found:
        assert each["scheme"] == "https"
        assert each["tlsConfig"]["ca"] == {"configMap": {"name": AUTHORITY, "key": "ca.crt"}}
    names = [each["tlsConfig"]["serverName"] for each in found]
    assert names == ["cachefleet-controlplane.cachefleet-system.svc", WORKERS_DOMAIN, WORKERS_DOMAIN]


def test_secrets_of_others_are_mounted_and_trusted() -> None:
    objects = template(EXISTING)
    told = variables(objects.container("operator"))
    assert (told["CACHEFLEET_TLS"], told["CACHEFLEET_TLS_WORKER_SECRET"]) == ("existing", "workers-tls")
    assert mounted(objects) == told["CACHEFLEET_TLS_SECRET"] == "plane-tls"
    for each in endpoints(objects):
        assert each["tlsConfig"]["ca"] == {"secret": {"name": "plane-tls", "key": "ca.crt"}}


def test_of_secrets_in_its_own_namespace_only_certificates_are_changed_and_by_an_operator_that_issues_alone() -> None:
    def verbs(values: Any, kind: str) -> set[str]:
        rules = [rule for role in template(values).of(kind) for rule in role["rules"] if "secrets" in rule["resources"]]
        assert rules
        return {verb for rule in rules for verb in rule["verbs"]}

    assert verbs({}, "Role") == {"create", "get", "update"}
    assert verbs(EXISTING, "Role") == verbs(MATRIX["plain"], "Role") == {"create", "get"}
    for values in ({}, EXISTING, MATRIX["plain"]):  # of pools: their keys, and their certificates
        assert verbs(values, "ClusterRole") == {"create", "get", "update"}


def test_without_it_everything_is_plain() -> None:
    objects = template(MATRIX["plain"])
    told = variables(objects.container("operator"))
    assert told["CACHEFLEET_TLS"] == "off"
    assert told["CACHEFLEET_ADMIN_URL"].startswith("http://")
    assert "CACHEFLEET_TLS_FOLDER" not in variables(objects.container("controlplane"))
    assert [each["port"] for each in endpoints(objects)] == ["internal", "agent", "engine"]
    assert "https" not in str(endpoints(objects))


def test_the_gateway_serves_https_where_a_certificate_is_named() -> None:
    objects = template(MATRIX["https"])
    container, pod = objects.container("controlplane"), objects.pod("controlplane")
    folder = variables(container)["CACHEFLEET_GATEWAY_TLS_FOLDER"]
    assert {"name": "gateway-tls", "mountPath": folder, "readOnly": True} in container["volumeMounts"]
    assert {"name": "gateway-tls", "secret": {"secretName": "llm-tls", "defaultMode": 0o440}} in pod["volumes"]
    [port] = objects.one("Service", "-gateway")["spec"]["ports"]
    assert (port["name"], port["appProtocol"], port["targetPort"]) == ("https", "https", "gateway")
    assert {probe["httpGet"]["port"] for name, probe in container.items() if name.endswith("Probe")} == {"internal"}


def test_the_test_verifies_the_gateway_and_never_has_its_key() -> None:
    pod = template(MATRIX["https"]).one("Pod", "-test-hit")
    [container] = pod["spec"]["containers"]
    assert "https://cachefleet-gateway.cachefleet-system.svc:8080" in container["args"]
    [mount] = [mount["mountPath"] for mount in container["volumeMounts"] if mount["name"] == "gateway-tls"]
    [volume] = [volume["secret"] for volume in pod["spec"]["volumes"] if volume["name"] == "gateway-tls"]
    assert volume == {"secretName": "llm-tls", "items": [{"key": "tls.crt", "path": "tls.crt"}]}
    assert container["args"][-2:] == ["--certificate", f"{mount}/tls.crt"]


def test_without_one_the_gateway_is_plain() -> None:
    objects = template()
    assert "CACHEFLEET_GATEWAY_TLS_FOLDER" not in variables(objects.container("controlplane"))
    [port] = objects.one("Service", "-gateway")["spec"]["ports"]
    assert (port["name"], port["appProtocol"]) == ("http", "http")
