"""Weights in images: what a worker's pod has of them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from cachefleet_core.block_identity.adapters import path_revision
from cachefleet_core.engine.engine_arguments import engine_policy
from cachefleet_core.engine.engine_configuration import EngineConfiguration, asked_configuration
from cachefleet_operator.manifests.pod import TemplateError, pod_template
from tests.operator.pools import SETTINGS, pool

DIGEST = "sha256:" + 64 * "a"
OTHER = "sha256:" + 64 * "b"
BASE = "registry.example:5000/acme/tiny"
RUNNING = {"env": [{"name": "VLLM_ALLOW_RUNTIME_LORA_UPDATING", "value": "1"}]}


def spec(model: dict[str, Any], **more: Any) -> dict[str, Any]:
    made: dict[str, Any] = pod_template(pool({"model": model, **more}), SETTINGS)["spec"]
    return made


def engine(made: dict[str, Any]) -> dict[str, Any]:
    container: dict[str, Any] = made["containers"][0]
    return container


def mounted(made: dict[str, Any]) -> dict[str, tuple[str, str]]:
    """Reference and folder in it, by where the engine has it."""
    references = {each["name"]: each["image"]["reference"] for each in made["volumes"] if "image" in each}
    mounts = [each for each in engine(made)["volumeMounts"] if each["name"] in references]
    assert all(each["readOnly"] for each in mounts)
    return {each["mountPath"]: (references[each["name"]], each.get("subPath", "")) for each in mounts}


def contract(made: dict[str, Any]) -> tuple[str, str]:
    agent = next(each for each in made["initContainers"] if each["name"] == "agent")
    values = {each["name"]: each.get("value", "") for each in agent["env"]}
    return values["CACHEFLEET_WEIGHTS"], values.get("CACHEFLEET_REVISION", "")


@pytest.mark.parametrize(
    ("named", "revision"),
    [(":1", "1"), (f"@{DIGEST}", DIGEST), (f":1@{DIGEST}", DIGEST)],
    ids=["tag", "digest", "both"],
)
def test_the_engine_loads_the_model_from_its_image_and_the_contract_has_its_revision(named: str, revision: str) -> None:
    made = spec({"source": f"oci://{BASE}{named}"})
    assert mounted(made) == {"/mnt/model": (f"{BASE}{named}", "")}
    arguments = engine(made)["args"]
    assert arguments[arguments.index("--model") + 1] == "/mnt/model"
    assert "--revision" not in arguments
    assert contract(made) == (f"oci://{BASE}", revision)


def test_a_folder_of_an_image_is_mounted_and_is_other_weights_than_the_whole() -> None:
    made = spec({"source": f"oci://{BASE}@{DIGEST}", "subPath": "models/tiny"})
    assert mounted(made) == {"/mnt/model": (f"{BASE}@{DIGEST}", "models/tiny")}
    assert contract(made) == (f"oci://{BASE}#models/tiny", DIGEST)


@pytest.mark.parametrize("registry", ["[fd77::2]:5000", "[fd77::2]", "10.0.0.2:5000", "localhost:5000"])
def test_a_registry_may_be_an_address_of_either_family(registry: str) -> None:
    reference = f"{registry}/acme/tiny:1@{DIGEST}"
    made = spec({"source": f"oci://{reference}"})
    assert mounted(made) == {"/mnt/model": (reference, "")}
    assert contract(made) == (f"oci://{registry}/acme/tiny", DIGEST)


def test_a_hub_s_model_has_no_volume() -> None:
    assert mounted(spec({"revision": "v1"})) == {}
    assert contract(spec({"revision": "v1"})) == ("org/tiny", "v1")


def test_adapters_of_one_image_share_its_volume_and_each_has_a_folder_of_its_own() -> None:
    source = f"oci://{BASE}@{DIGEST}"
    adapters = [
        {"name": "sql", "source": source, "subPath": "adapters/sql"},
        {"name": "chat", "source": source, "subPath": "adapters/chat"},
        {"name": "same", "source": source, "subPath": "adapters/chat"},
        {"name": "other", "source": f"oci://{BASE}@{OTHER}", "subPath": "adapters/chat"},
        {"name": "hub", "source": "org/lora", "revision": "v2"},
    ]
    made = spec({"source": source, "subPath": "models", "adapters": adapters})
    found = mounted(made)
    assert [each["image"]["reference"] for each in made["volumes"] if "image" in each] == [
        f"{BASE}@{DIGEST}",
        f"{BASE}@{OTHER}",
    ]
    arguments = engine(made)["args"]
    at = arguments.index("--lora-modules") + 1
    paths = {one["name"]: one["path"] for one in map(json.loads, arguments[at : at + 5])}
    assert {name: found.get(path, path) for name, path in paths.items()} == {
        "sql": (f"{BASE}@{DIGEST}", "adapters/sql"),
        "chat": (f"{BASE}@{DIGEST}", "adapters/chat"),
        "same": (f"{BASE}@{DIGEST}", "adapters/chat"),
        "other": (f"{BASE}@{OTHER}", "adapters/chat"),
        "hub": "org/lora@v2",
    }
    assert found["/mnt/model"] == (f"{BASE}@{DIGEST}", "models")
    assert len({path_revision(paths[name]) for name in ("sql", "chat", "other")}) == 3, "blocks have other keys"


def test_agents_and_contract_name_an_adapter_by_the_folder_it_is_mounted_at() -> None:
    declared = pool({"model": {"adapters": [{"name": "sql", "source": f"oci://{BASE}:1"}]}})
    (path,) = mounted(pod_template(declared, SETTINGS)["spec"])
    (wanted,) = engine_policy(declared).adapters or ()
    assert wanted.path == path
    asked: EngineConfiguration = asked_configuration(declared.spec, plugin=True, events_endpoint="ipc:///x")
    assert asked.adapters == {"sql": path}


def test_an_image_of_an_adapter_replaces_the_pods_also_where_agents_load_adapters() -> None:
    """A running pod gets no further volume."""
    none, one = (
        spec({"adapters": adapters}, engine=RUNNING) for adapters in ([], [{"name": "a", "source": f"oci://{BASE}:1"}])
    )
    assert none != one
    assert "--lora-modules" not in engine(one)["args"]


def test_a_patch_cannot_put_something_else_in_place_of_the_weights() -> None:
    name = next(each["name"] for each in spec({"source": f"oci://{BASE}:1"})["volumes"] if "image" in each)
    patch = {"spec": {"volumes": [{"name": name, "image": None, "emptyDir": {}}]}}
    with pytest.raises(TemplateError, match="cannot be replaced"):
        spec({"source": f"oci://{BASE}:1"}, podTemplate=patch)


def test_pull_secrets_of_the_pod_are_those_of_the_weights_and_a_tag_is_pulled_once_for_a_node() -> None:
    made = spec({"source": f"oci://{BASE}:1"}, podTemplate={"spec": {"imagePullSecrets": [{"name": "registry"}]}})
    assert made["imagePullSecrets"] == [{"name": "registry"}]
    assert [each["image"]["pullPolicy"] for each in made["volumes"] if "image" in each] == ["IfNotPresent"]
