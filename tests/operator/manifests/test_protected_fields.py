"""What a pool's own patch may not take from its workers, however it says it."""

from __future__ import annotations

from typing import Any

import pytest

from cachefleet_operator.manifests.pod import TemplateError, pod_template
from tests.operator.pools import SETTINGS, pool

TLS = SETTINGS.model_copy(update={"tls": "issued"})
OWN = "is cachefleet's own and cannot be replaced or removed"


def engine(**fields: Any) -> dict[str, Any]:
    return {"containers": [{"name": "engine", **fields}]}


def agent(**fields: Any) -> dict[str, Any]:
    return {"initContainers": [{"name": "agent", **fields}]}


REFUSED = [
    (
        engine(env=[{"name": "CACHEFLEET_WORKER_KEY_FILE", "value": "/x"}]),
        "containers[engine].env[CACHEFLEET_WORKER_KEY_FILE]",
    ),
    (engine(env=[{"name": "VLLM_PLUGINS", "value": ""}]), "containers[engine].env[VLLM_PLUGINS]"),
    (engine(env=[{"name": "PYTHONPATH", "value": "/x"}]), "containers[engine].env[PYTHONPATH]"),
    (engine(env=[{"name": "VLLM_API_KEY", "value": "x"}]), "containers[engine].env[VLLM_API_KEY]"),
    (engine(env=[{"name": "VLLM_CPU_KVCACHE_SPACE", "value": "9"}]), "containers[engine].env[VLLM_CPU_KVCACHE_SPACE]"),
    (engine(env=None), "containers[engine].env[CACHEFLEET_DRAIN_SECONDS]"),
    (engine(envFrom=[{"secretRef": {"name": "x"}}]), "containers[engine].envFrom"),
    (engine(command=["vllm", "serve"]), "containers[engine].command"),
    (engine(args=["--seed=1"]), "containers[engine].args"),
    (engine(args=None), "containers[engine].args"),
    (engine(ports=[{"name": "other", "containerPort": 8000}]), "containers[engine].ports[8000]"),
    (engine(ports=None), "containers[engine].ports[8000]"),
    (engine(startupProbe=None), "containers[engine].startupProbe"),
    (engine(livenessProbe={"httpGet": {"path": "/x"}}), "containers[engine].livenessProbe"),
    (engine(livenessProbe={"httpGet": None, "exec": {"command": ["true"]}}), "containers[engine].livenessProbe"),
    (engine(env=[{"name": "CACHEFLEET_DRAIN_URL", "value": "x"}]), "containers[engine].env[CACHEFLEET_DRAIN_URL]"),
    (
        engine(env=[{"name": "CACHEFLEET_DRAIN_SECONDS", "value": "9"}]),
        "containers[engine].env[CACHEFLEET_DRAIN_SECONDS]",
    ),
    (engine(restartPolicy="Never"), "containers[engine].restartPolicy"),
    (engine(volumeMounts=None), "containers[engine].volumeMounts[/cachefleet]"),
    (
        engine(volumeMounts=[{"name": "x", "mountPath": "/etc/cachefleet/keys"}]),
        "containers[engine].volumeMounts[/etc/cachefleet/keys]",
    ),
    (
        engine(volumeMounts=[{"name": "x", "mountPath": "/cachefleet/"}]),
        "containers[engine].volumeMounts[/cachefleet/]",
    ),
    (
        engine(volumeMounts=[{"name": "x", "mountPath": "/etc/cachefleet/keys/worker.key", "subPath": "k"}]),
        "containers[engine].volumeMounts[/etc/cachefleet/keys/worker.key]",
    ),
    (
        engine(volumeMounts=[{"name": "x", "mountPath": "/etc/cachefleet/tls"}]),
        "containers[engine].volumeMounts[/etc/cachefleet/tls]",
    ),
    ({"containers": None}, "containers[engine]"),
    ({"containers": "x"}, "containers[engine]"),
    ({"initContainers": None}, "initContainers[plugin]"),
    (agent(env=[{"name": "CACHEFLEET_POOL", "value": "a/b"}]), "initContainers[agent].env[CACHEFLEET_POOL]"),
    (agent(env=None), "initContainers[agent].env[CACHEFLEET_AFTER_DRAIN]"),
    (agent(command=["sleep"]), "initContainers[agent].command"),
    (agent(args=["x"]), "initContainers[agent].args"),
    (agent(envFrom=[{"secretRef": {"name": "x"}}]), "initContainers[agent].envFrom"),
    (agent(restartPolicy=None), "initContainers[agent].restartPolicy"),
    (agent(readinessProbe=None), "initContainers[agent].readinessProbe"),
    (agent(ports=[{"containerPort": 8082, "name": "x"}]), "initContainers[agent].ports[8082]"),
    ({"initContainers": [{"name": "plugin", "command": ["true"]}]}, "initContainers[plugin].command"),
    ({"volumes": [{"name": "keys", "emptyDir": {}}]}, "volumes[keys]"),
    ({"volumes": [{"name": "token", "emptyDir": {}}]}, "volumes[token]"),
    ({"volumes": None}, "volumes[sockets]"),
]


@pytest.mark.parametrize(("patch", "field"), REFUSED, ids=lambda value: str(value)[:70])
def test_what_is_ours_is_refused_by_its_name(patch: dict[str, Any], field: str) -> None:
    with pytest.raises(TemplateError) as refused:
        pod_template(pool({"podTemplate": {"spec": patch}}), TLS)
    assert str(refused.value).startswith(f"spec.podTemplate.spec.{field}: {OWN}")


def test_without_a_spec_nothing_of_ours_is_left() -> None:
    template = pod_template(pool({"podTemplate": {}}), SETTINGS)
    assert template["spec"]["containers"]


@pytest.mark.parametrize(
    ("patch", "hint"),
    [
        (engine(args=["--seed=1"]), "set spec.engine.extraArgs"),
        (engine(env=[{"name": "VLLM_PLUGINS", "value": ""}]), "set it in spec.engine.env"),
        (engine(envFrom=[{"secretRef": {"name": "x"}}]), "name each variable in spec.engine.env"),
    ],
)
def test_what_to_do_instead_is_said(patch: dict[str, Any], hint: str) -> None:
    with pytest.raises(TemplateError, match=hint):
        pod_template(pool({"podTemplate": {"spec": patch}}), SETTINGS)


TAKEN = [
    engine(env=[{"name": "HF_HOME", "value": "/weights"}, {"name": "MINE", "value": "1"}]),
    engine(image="mine:1", imagePullPolicy="Always"),
    engine(ports=[{"name": "debug", "containerPort": 9000}]),
    engine(startupProbe={"failureThreshold": 999}, livenessProbe={"timeoutSeconds": 30}),
    engine(lifecycle={"postStart": {"exec": {"command": ["true"]}}}),
    engine(volumeMounts=[{"name": "cache", "mountPath": "/cache", "subPath": "a"}]),
    engine(volumeMounts=[{"name": "x", "mountPath": "/cachefleet-weights"}]),
    engine(resources={"requests": {"cpu": "8"}}, securityContext={"runAsUser": 1}),
    agent(env=[{"name": "CACHEFLEET_LOG_FORMAT", "value": "text"}], resources={"limits": {"memory": "1Gi"}}),
    {"volumes": [{"name": "cache", "persistentVolumeClaim": {"claimName": "x"}}]},
    {"initContainers": [{"name": "mine", "image": "x"}], "containers": [{"name": "proxy", "image": "x"}]},
]


@pytest.mark.parametrize("patch", TAKEN, ids=lambda value: str(value)[:70])
def test_what_is_the_pools_is_taken(patch: dict[str, Any]) -> None:
    plain = pod_template(pool(), TLS)
    assert pod_template(pool({"podTemplate": {"spec": patch}}), TLS) != plain


def test_the_mark_of_the_chat_template_is_ours() -> None:
    patch = {"metadata": {"annotations": {"cachefleet.io/chat-template": "x"}}}
    template = pod_template(pool({"podTemplate": patch}), SETTINGS, chat_template="y")
    assert template["metadata"]["annotations"]["cachefleet.io/chat-template"] == "y"
