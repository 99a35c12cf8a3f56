from typing import Any

import pytest

from cachefleet_operator.pod import AUDIENCE, TemplateError, pod_template
from tests.operator.pools import SETTINGS, pool


def spec(changes: dict[str, Any] | None = None) -> dict[str, Any]:
    template: dict[str, Any] = pod_template(pool(changes), SETTINGS)["spec"]
    return template


def engine(changes: dict[str, Any] | None = None) -> dict[str, Any]:
    container: dict[str, Any] = spec(changes)["containers"][0]
    return container


def env(container: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {variable["name"]: variable for variable in container["env"]}


def containers() -> list[dict[str, Any]]:
    return [*spec()["initContainers"], *spec()["containers"]]


def test_the_agent_is_a_native_sidecar_whose_readiness_is_the_pods() -> None:
    agent = spec()["initContainers"][0]
    assert agent["restartPolicy"] == "Always"
    assert agent["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": "agent"}
    assert "readinessProbe" not in engine()


@pytest.mark.parametrize("index", [0, 1])
def test_keeps_to_the_restricted_profile(index: int) -> None:
    assert spec()["securityContext"]["runAsNonRoot"]
    assert spec()["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    security = containers()[index]["securityContext"]
    assert security["allowPrivilegeEscalation"] is False
    assert security["capabilities"] == {"drop": ["ALL"]}
    assert security["readOnlyRootFilesystem"]


def test_every_mount_has_its_volume_and_every_volume_is_mounted() -> None:
    chat = {"model": {"chatTemplate": {"configMapKeyRef": {"name": "t", "key": "chat.jinja"}}}}
    pod = spec(chat)
    volumes = {volume["name"] for volume in pod["volumes"]}
    mounted = {mount["name"] for each in [*pod["initContainers"], *pod["containers"]] for mount in each["volumeMounts"]}
    assert volumes == mounted


def test_the_key_to_block_keys_is_the_agents_alone() -> None:
    assert "keys" not in {mount["name"] for mount in engine()["volumeMounts"]}
    assert env(engine())["VLLM_API_KEY"]["valueFrom"]["secretKeyRef"] == {"name": "demo-keys", "key": "worker.key"}


def test_no_token_for_the_api_server_and_one_for_reports() -> None:
    assert spec()["automountServiceAccountToken"] is False
    token = next(volume for volume in spec()["volumes"] if volume["name"] == "token")
    assert token["projected"]["sources"][0]["serviceAccountToken"]["audience"] == AUDIENCE


def test_events_stay_between_the_two_containers() -> None:
    arguments = " ".join(engine()["args"])
    agent = env(spec()["initContainers"][0])
    for name in ("EVENTS", "REPLAY"):
        endpoint = agent[f"CACHEFLEET_{name}_ENDPOINT"]["value"]
        assert endpoint.startswith("ipc:///run/cachefleet/")
        assert endpoint in arguments


def test_devices() -> None:
    assert engine({"engine": {"tensorParallelSize": 4}})["resources"] == {"limits": {"nvidia.com/gpu": "4"}}
    assert engine({"device": {"resource": ""}})["resources"] == {"requests": {"memory": "8192Mi"}}


def test_the_users_variables_win_over_ours_but_not_over_the_key() -> None:
    given = {
        "engine": {"env": [{"name": "HF_HOME", "value": "/w"}, {"name": "X", "valueFrom": {"fieldRef": {}}}]},
        "model": {"hubTokenSecretRef": {"name": "hf", "key": "token"}},
    }
    variables = env(engine(given))
    assert variables["HF_HOME"] == {"name": "HF_HOME", "value": "/w"}
    assert variables["X"] == {"name": "X", "valueFrom": {"fieldRef": {}}}
    assert variables["HF_TOKEN"]["valueFrom"] == {"secretKeyRef": {"name": "hf", "key": "token"}}


def test_the_pools_patch_reaches_the_pod_but_not_its_identity() -> None:
    patch = {
        "metadata": {"labels": {"team": "x", "cachefleet.io/pool": "other"}},
        "spec": {"nodeSelector": {"gpu": "a"}, "containers": [{"name": "engine", "image": "mine"}]},
    }
    template = pod_template(pool({"podTemplate": patch}), SETTINGS)
    assert template["metadata"]["labels"]["team"] == "x"
    assert template["metadata"]["labels"]["cachefleet.io/pool"] == "demo"
    assert template["spec"]["nodeSelector"] == {"gpu": "a"}
    assert template["spec"]["containers"][0]["image"] == "mine"
    assert template["spec"]["containers"][0]["args"] == engine()["args"]


@pytest.mark.parametrize(
    ("patch", "message"),
    [
        ({"nodeSelector": {}}, "spec.podTemplate.nodeSelector: is not a known field; known are metadata and spec"),
        ({"spec": []}, "spec.podTemplate.spec: must be a mapping"),
        ({"metadata": {"name": "x"}}, "spec.podTemplate.metadata.name: is not a known field"),
        ({"metadata": {"labels": {"a": 1}}}, "spec.podTemplate.metadata.labels: must be a mapping of text"),
        ({"metadata": {"labels": "a"}}, "spec.podTemplate.metadata.labels: must be a mapping of text"),
    ],
)
def test_a_patch_that_is_none_says_where(patch: dict[str, Any], message: str) -> None:
    with pytest.raises(TemplateError, match=message):
        pod_template(pool({"podTemplate": patch}), SETTINGS)
