from typing import Any

import pytest

from cachefleet_operator.manifests.agent_container import agent_container
from cachefleet_operator.manifests.engine_container import engine_container
from tests.operator.pools import SETTINGS, pool


def engine(changes: dict[str, Any] | None = None) -> dict[str, Any]:
    return engine_container(pool(changes), SETTINGS)


def variables(*given: dict[str, Any], **changes: Any) -> dict[str, dict[str, Any]]:
    found = engine({"engine": {"env": list(given)}, **changes})["env"]
    named = {variable["name"]: variable for variable in found}
    assert len(named) == len(found)
    return named


def value(name: str, *given: dict[str, Any], **changes: Any) -> str:
    return str(variables(*given, **changes)[name]["value"])


SOURCE: dict[str, Any] = {"configMapKeyRef": {"name": "c", "key": "k"}}


def test_the_plugin_is_on_and_finds_its_keys() -> None:
    mounts = {mount["name"]: mount for mount in engine()["volumeMounts"]}
    assert value("PYTHONPATH") == mounts["plugin"]["mountPath"] == "/cachefleet"
    assert value("VLLM_PLUGINS") == "cachefleet"
    arguments = engine()["args"]
    assert arguments[arguments.index("--scheduler-cls") + 1] == "cachefleet_worker.plugin.scheduler.create"
    for name, volume in (("WORKER_KEY", "keys"), ("INDEX_KEY", "keys"), ("POLICY", "policy")):
        assert value(f"CACHEFLEET_{name}_FILE").startswith(mounts[volume]["mountPath"] + "/")
    assert engine()["command"][-1] == "cachefleet_worker.engine_start", "which makes that file vLLM's API key"


def test_its_first_process_is_that_of_the_plugins_folder() -> None:
    mounts = {mount["name"]: mount for mount in engine()["volumeMounts"]}
    assert engine()["command"][0] == f"{mounts['plugin']['mountPath']}/dumb-init"
    agent = agent_container(pool(), SETTINGS)
    assert "command" not in agent, "which would replace the image's entry point"


def test_no_key_is_a_variable() -> None:
    assert not [one for one in variables().values() if "secretKeyRef" in one.get("valueFrom", {})]
    assert "VLLM_API_KEY" not in variables()


@pytest.mark.parametrize(
    ("name", "separator", "ours"), [("PYTHONPATH", ":", "/cachefleet"), ("VLLM_PLUGINS", ",", "cachefleet")]
)
def test_what_the_pool_gives_stands_behind_the_plugin(name: str, separator: str, ours: str) -> None:
    assert value(name, {"name": name, "value": "mine"}) == f"{ours}{separator}mine"
    assert value(name, {"name": name, "value": ""}) == ours
    found = list(variables({"name": name, "valueFrom": SOURCE}).values())
    hidden = {"name": f"CACHEFLEET_GIVEN_{name}", "valueFrom": SOURCE}
    joined = {"name": name, "value": f"{ours}{separator}$(CACHEFLEET_GIVEN_{name})"}
    assert found.index(hidden) < found.index(joined)  # a variable knows only those before it


@pytest.mark.parametrize(
    ("image", "asked"),
    [
        ("vllm/vllm-openai:v0.32.0", True),
        ("vllm/vllm-openai:v0.30.0", True),
        ("vllm/vllm-openai:v0.29.1", False),
        ("vllm/vllm-openai:latest", True),
        ("example.org/vllm@sha256:" + "0" * 64, True),
    ],
)
def test_an_option_that_a_version_does_not_know_is_left_out(image: str, *, asked: bool) -> None:
    assert ("--enable-scale-out" in engine({"engine": {"image": image}})["args"]) is asked


def test_a_budget_of_nothing_can_be_raised_later_and_a_disabled_cache_not() -> None:
    assert "--no-enable-prefix-caching" not in engine({"prefixCache": {"budgetMiB": 0}})["args"]
    assert "--no-enable-prefix-caching" in engine({"prefixCache": {"enabled": False}})["args"]


def test_all_that_is_kept_or_compiled_goes_where_it_may_be_written() -> None:
    writable = [mount["mountPath"] for mount in engine()["volumeMounts"] if not mount.get("readOnly")]
    for name in ("HF_HOME", "VLLM_CACHE_ROOT", "TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "XDG_CACHE_HOME"):
        assert any(value(name).startswith(path) for path in writable if path == "/cache")
    assert value("HOME") in writable


def test_events_stay_between_the_two_containers() -> None:
    arguments = " ".join(engine()["args"])
    assert "ipc:///run/cachefleet/events" in arguments
    assert "tcp://" not in arguments


@pytest.mark.parametrize(
    ("device", "parallel", "resources"),
    [
        ({}, 4, {"limits": {"nvidia.com/gpu": "4"}}),
        ({"resource": "nvidia.com/mig-1g.10gb"}, 1, {"limits": {"nvidia.com/mig-1g.10gb": "1"}}),
        ({"resource": "amd.com/gpu"}, 1, {"limits": {"amd.com/gpu": "1"}}),
        ({"resource": ""}, 1, {"requests": {"memory": "8192Mi"}}),
    ],
)
def test_devices(device: dict[str, Any], parallel: int, resources: dict[str, Any]) -> None:
    assert engine({"engine": {"tensorParallelSize": parallel}, "device": device})["resources"] == resources


def test_ranks_have_devices_of_their_own_and_the_agent_follows_each() -> None:
    ranked = {"engine": {"tensorParallelSize": 2, "dataParallelSize": 3}}
    arguments = engine(ranked)["args"]
    assert arguments[arguments.index("--data-parallel-size") + 1] == "3"
    assert engine(ranked)["resources"] == {"limits": {"nvidia.com/gpu": "6"}}
    told = {each["name"]: each.get("value") for each in agent_container(pool(ranked), SETTINGS)["env"]}
    assert told["CACHEFLEET_RANKS"] == "3"
    assert "--data-parallel-size" not in engine()["args"]


def test_adapters_are_loaded_under_their_names_and_the_pool_may_say_how_many_at_once() -> None:
    adapters = [
        {"name": "sql", "source": "/weights/sql"},
        {"name": "org/chat", "source": "org/chat-lora", "revision": "v2"},
    ]
    arguments = engine({"model": {"adapters": adapters}, "engine": {"extraArgs": ["--max-loras", "1"]}})["args"]
    at = arguments.index("--enable-lora")
    assert arguments[at : at + 8] == [
        *("--enable-lora", "--max-loras", "2", "--max-cpu-loras", "64", "--lora-modules"),
        '{"name":"sql","path":"/weights/sql"}',
        '{"name":"org/chat","path":"org/chat-lora@v2"}',
    ]
    assert arguments[-2:] == ["--max-loras", "1"], "vLLM takes the last one"
    assert "--enable-lora" not in engine()["args"]


def test_where_agents_load_adapters_which_there_are_is_no_matter_of_the_pod() -> None:
    allowed = {"env": [{"name": "VLLM_ALLOW_RUNTIME_LORA_UPDATING", "value": "True"}]}
    some = {"adapters": [{"name": "sql", "source": "/weights/sql"}]}
    none, one = ({"model": model, "engine": allowed} for model in ({}, some))
    assert engine(none) == engine(one)
    assert agent_container(pool(none), SETTINGS) == agent_container(pool(one), SETTINGS)
    arguments = engine(one)["args"]
    at = arguments.index("--enable-lora")
    assert arguments[at : at + 5] == ["--enable-lora", "--max-loras", "4", "--max-cpu-loras", "64"]
    assert "--lora-modules" not in arguments
    told = {each["name"]: each.get("value") for each in agent_container(pool(one), SETTINGS)["env"]}
    assert told["CACHEFLEET_LOAD_ADAPTERS"] == "1"
    started = {each["name"] for each in agent_container(pool({"model": some}), SETTINGS)["env"]}
    assert "CACHEFLEET_LOAD_ADAPTERS" not in started


def test_the_users_variables_win_over_ours_but_not_over_the_keys() -> None:
    token = {"hubTokenSecretRef": {"name": "hf", "key": "token"}}
    found = variables({"name": "HF_HOME", "value": "/w"}, {"name": "X", "valueFrom": SOURCE}, model=token)
    assert found["HF_HOME"] == {"name": "HF_HOME", "value": "/w"}
    assert found["X"] == {"name": "X", "valueFrom": SOURCE}
    assert found["HF_TOKEN"]["valueFrom"] == {"secretKeyRef": {"name": "hf", "key": "token"}}
    own = {"name": "HF_TOKEN", "value": "t"}
    assert variables(own, model=token)["HF_TOKEN"] == own
    assert value("CACHEFLEET_WORKER_KEY_FILE") == "/etc/cachefleet/keys/worker.key"


def test_the_hub_may_be_asked() -> None:
    assert "HF_HUB_OFFLINE" not in variables()


def test_a_chat_template_is_read_from_its_mount() -> None:
    changes = {"model": {"chatTemplate": {"configMapKeyRef": {"name": "t", "key": "chat.jinja"}}}}
    arguments = engine(changes)["args"]
    path = arguments[arguments.index("--chat-template") + 1]
    (mount,) = [mount for mount in engine(changes)["volumeMounts"] if mount["name"] == "chat-template"]
    assert path == f"{mount['mountPath']}/template.jinja"
    assert "--chat-template" not in engine()["args"]
