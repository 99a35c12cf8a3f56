"""What the chart tells each process is what the process understands."""

from __future__ import annotations

import os
from collections.abc import Mapping

import pytest
from pydantic_settings import BaseSettings

from cachefleet_controlplane.tracing.tracing_settings import tracing_settings
from cachefleet_controlplane.wiring.settings import Settings as ControlPlaneSettings
from cachefleet_core.environment.control_planes import parse_control_planes
from cachefleet_operator.settings import Settings as OperatorSettings
from tests.chart.helm import Object, template
from tests.chart.matrix import MATRIX

pytestmark = pytest.mark.cluster

PREFIX = "CACHEFLEET_"
PROCESSES: Mapping[str, type[BaseSettings]] = {"operator": OperatorSettings, "controlplane": ControlPlaneSettings}


def variables(container: Object) -> dict[str, str]:
    """By name; what comes from a Secret has a value of its kind."""
    secret = {"CACHEFLEET_DATABASE_URL": "postgresql://cachefleet@db/cachefleet"}
    return {entry["name"]: entry.get("value", secret.get(entry["name"], "")) for entry in container["env"]}


def settings(part: str, values: Object, monkeypatch: pytest.MonkeyPatch) -> BaseSettings:
    for name in list(os.environ):
        if name.startswith(PREFIX):
            monkeypatch.delenv(name)
    for name, value in variables(template(values).container(part)).items():
        monkeypatch.setenv(name, value)
    return PROCESSES[part]()


@pytest.mark.parametrize("part", PROCESSES)
@pytest.mark.parametrize("values", MATRIX)
def test_every_variable_is_a_setting(part: str, values: str) -> None:
    names = [entry["name"] for entry in template(MATRIX[values]).container(part)["env"]]

    assert len(names) == len(set(names))
    own = [name for name in names if not name.startswith("OTEL_")]
    assert {name.removeprefix(PREFIX).lower() for name in own} <= set(PROCESSES[part].model_fields)


@pytest.mark.parametrize("part", PROCESSES)
@pytest.mark.parametrize("values", MATRIX)
def test_every_value_is_allowed(part: str, values: str, monkeypatch: pytest.MonkeyPatch) -> None:
    settings(part, dict(MATRIX[values]), monkeypatch)


def test_traces_are_as_asked() -> None:
    """Off without an endpoint."""
    default, tuned = (variables(template(MATRIX[name]).container("controlplane")) for name in ("defaults", "tuned"))

    assert tracing_settings(default) is None
    assert not [name for name in default if name.startswith("OTEL_")]
    assert tracing_settings(tuned) is not None
    assert (tuned["OTEL_EXPORTER_OTLP_ENDPOINT"], tuned["OTEL_TRACES_SAMPLER_ARG"]) == ("http://collector:4318", "0.5")


def test_what_the_control_plane_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    told = settings("controlplane", dict(MATRIX["tuned"]), monkeypatch)

    assert isinstance(told, ControlPlaneSettings)
    assert (told.policy, told.knowledge, told.api_keys) == ("leastLoaded", "load", "required")
    assert told.renderer_urls == ("http://renderer-0:8000", "http://renderer-1:8000")
    assert (told.queue_requests, told.request_max_bytes) == (0, 1024**3)
    assert (told.withdraw_seconds, told.drain_seconds) == (0, 3600)
    assert (told.pool_source, told.auth, told.replicas) == ("kubernetes", "kubernetes", 2)
    assert (told.log_level, told.log_format) == ("WARNING", "text")


@pytest.mark.parametrize("part", PROCESSES)
def test_operator_and_control_plane_have_one_name(part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    default, others = settings(part, {}, monkeypatch), {"b": "http://b:8080", "c": "https://c"}
    named = settings(part, {"controlPlane": {"name": "b", "others": others}}, monkeypatch)

    assert isinstance(default, OperatorSettings | ControlPlaneSettings)
    assert isinstance(named, OperatorSettings | ControlPlaneSettings)
    assert (default.control_plane_name, named.control_plane_name) == ("default", "b")
    assert (default.control_planes, parse_control_planes(named.control_planes)) == ("", others)


@pytest.mark.parametrize(("values", "ends"), [("defaults", True), ("persistent", False), ("claimed", False)])
def test_the_control_plane_knows_whether_its_store_ends_with_its_pod(
    values: str, *, ends: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = settings("controlplane", dict(MATRIX[values]), monkeypatch)

    assert isinstance(told, ControlPlaneSettings)
    assert told.store_ends_with_pod is ends


@pytest.mark.parametrize("part", PROCESSES)
def test_both_are_told_whose_names_are(part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for values, rules in (
        (MATRIX["named"], {"qwen": ("team-a", "team-b"), "*": ("platform",), "nobody/s": ()}),
        (MATRIX["defaults"], {}),
    ):
        told = settings(part, dict(values), monkeypatch)
        assert isinstance(told, ControlPlaneSettings | OperatorSettings)
        assert told.name_rules == rules


def test_what_the_operator_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    values = {**MATRIX["tuned"], "namespaces": ["a", "b"], "image": {"pullSecrets": ["one", "two"]}}
    told = settings("operator", values, monkeypatch)

    assert isinstance(told, OperatorSettings)
    assert told.namespaces == ("a", "b")
    assert told.operator_namespace == "cachefleet-system"
    assert (told.workers, told.resync_seconds) == (8, 86400)
    assert (told.shared_memory_mib, told.worker_start_seconds) == (1048576, 7200)
    assert (told.worker_drain_seconds, told.worker_shutdown_seconds) == (600, 0)
    assert (told.agent_pull_policy, told.image_pull_secrets) == ("IfNotPresent", ("one", "two"))
    assert told.agent_image == "cachefleet:0.1.0"


def test_both_find_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    told = settings("operator", {"fullnameOverride": "fleet"}, monkeypatch)
    services = {o["metadata"]["name"]: o["spec"] for o in template({"fullnameOverride": "fleet"}).of("Service")}

    assert isinstance(told, OperatorSettings)
    assert told.control_plane_address == "fleet-controlplane-headless.cachefleet-system.svc:8081"
    assert told.admin_url == "https://fleet-controlplane.cachefleet-system.svc:8081"
    for name in ("fleet-controlplane-headless", "fleet-controlplane"):
        assert [port["port"] for port in services[name]["ports"]] == [8081]


def test_extra_variables_stand_above_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    for part in PROCESSES:
        told = settings(part, dict(MATRIX["placed"]), monkeypatch)
        assert getattr(told, "log_level") == "DEBUG"  # noqa: B009  # both kinds have it


def test_two_control_planes_of_one_namespace_share_no_object_of_the_chart_and_no_certificate() -> None:
    whole = {"admissionPolicy": {"enabled": True}, "monitoring": {"monitors": {"enabled": True}}}
    first = template(whole)
    second = template(
        whole | {"controlPlane": {"name": "b"}, "crds": {"install": False}}, release="cachefleet-b", apis=()
    )
    named = [{(one["kind"], one["metadata"]["name"]) for one in objects} for objects in (first, second)]
    assert not named[0] & named[1]
    issued = [variables(objects.container("operator"))["CACHEFLEET_TLS_SECRET"] for objects in (first, second)]
    assert issued == ["cachefleet-controlplane-tls", "cachefleet-b-controlplane-tls"]
    mounted = [volume["secret"]["secretName"] for volume in second.pod("controlplane")["volumes"] if "secret" in volume]
    assert mounted == ["cachefleet-fleet-key", "cachefleet-b-controlplane-tls"]
