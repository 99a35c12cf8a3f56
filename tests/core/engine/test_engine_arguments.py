from __future__ import annotations

import json
from typing import Any

import pytest

from cachefleet_core.engine.engine_arguments import (
    EngineAddresses,
    asked_version,
    engine_arguments,
    engine_environment,
    engine_policy,
    image_version,
    scale_out,
    with_plugin,
)
from cachefleet_core.pool.adapter_reports import WantedAdapter
from cachefleet_core.pool.spec import PrefixCachePool, read_pool
from tests.core.invalid_pools import VALID, merged

CPU: dict[str, Any] = {
    "device": {"resource": "", "memoryMiB": 64, "activationMiB": 0, "floorMiB": 0},
    "model": {"weightsMiB": 1},
}


def pool(**patch: Any) -> PrefixCachePool:
    return read_pool(merged(VALID, {"spec": patch}))


def arguments(*, chat_template: str | None = None, plugin: bool = False, version: str = "", **patch: Any) -> list[str]:
    return engine_arguments(
        pool(**patch).spec,
        EngineAddresses("0.0.0.0", 8000, events="ipc:///run/events", replay="ipc:///run/replay"),
        model_path="/models/qwen",
        chat_template=chat_template,
        plugin=plugin,
        version=version,
    )


def option(given: list[str], name: str) -> str:
    assert given.count(name) == 1
    return given[given.index(name) + 1]


def test_a_pool_on_gpus() -> None:
    given = arguments(engine={"tensorParallelSize": 2, "dtype": "bfloat16"}, model={"revision": "9216db5781bf"})

    assert given[:6] == ["--model", "/models/qwen", "--served-model-name", "qwen3-32b", "--revision", "9216db5781bf"]
    assert option(given, "--host") == "0.0.0.0"
    assert option(given, "--port") == "8000"
    assert option(given, "--tensor-parallel-size") == "2"
    assert option(given, "--dtype") == "bfloat16"
    assert option(given, "--max-model-len") == "32768"
    assert option(given, "--block-size") == "16"
    assert option(given, "--kv-cache-memory-bytes") == str(47122 * 1024 * 1024)
    assert option(given, "--prefix-caching-hash-algo") == "sha256_cbor"
    assert {"--enable-scale-out", "--enable-prompt-tokens-details"} <= set(given)
    assert not {"--enforce-eager", "--kv-transfer-config", "--chat-template", "--api-key"} & set(given)


def test_polls_are_not_logged_and_a_pool_may_say_otherwise() -> None:
    unlogged = option(arguments(), "--disable-access-log-for-endpoints").split(",")
    assert {"/health", "/metrics", "/v1/fleet/stats"} <= set(unlogged)
    assert not [path for path in unlogged if path.startswith("/v1/") and not path.startswith("/v1/fleet/")]
    given = arguments(engine={"extraArgs": ["--disable-access-log-for-endpoints=/health"]})
    assert given[-1] == "--disable-access-log-for-endpoints=/health"  # the last one holds


@pytest.mark.parametrize(
    ("domains", "given"),
    [
        ([], ["--allowed-media-domains", "none.invalid"]),
        (["a.example", "10.0.0.1"], ["--allowed-media-domains", "a.example", "10.0.0.1"]),
        (["*"], []),
    ],
)
def test_media_come_from_hosts_that_the_pool_names(domains: list[str], given: list[str]) -> None:
    found = arguments(engine={"allowedMediaDomains": domains, "extraArgs": []})

    at = found.index("--allowed-media-domains") if given else len(found)
    end = next((i for i, text in enumerate(found[at + 1 :], at + 1) if text.startswith("--")), len(found))
    assert found[at:end] == given
    assert engine_environment(pool().spec)["VLLM_MEDIA_URL_ALLOW_REDIRECTS"] == "0"


def test_events_go_where_they_are_read_and_can_be_replayed_for_minutes() -> None:
    config = json.loads(option(arguments(), "--kv-events-config"))

    assert config == {
        "enable_kv_cache_events": True,
        "publisher": "zmq",
        "endpoint": "ipc:///run/events",
        "replay_endpoint": "ipc:///run/replay",
        "buffer_steps": 50_000,
    }


@pytest.mark.parametrize(
    "engine",
    [
        {"tensorParallelSize": 2},
        {"env": [{"name": "VLLM_CPU_OMP_THREADS_BIND", "value": "0-3"}]},
        {"env": [{"name": "OMP_NUM_THREADS", "value": "4"}]},
    ],
)
def test_a_cpu_pool_that_says_how_its_threads_run_has_worker_processes(engine: dict[str, object]) -> None:
    assert "--distributed-executor-backend" not in arguments(**CPU, engine=engine)


def test_a_pool_on_a_cpu() -> None:
    given = arguments(**CPU)

    assert option(given, "--block-size") == "32"
    assert option(given, "--kv-cache-memory-bytes") == str(63 * 1024 * 1024)
    assert "--enforce-eager" in given
    assert option(given, "--distributed-executor-backend").endswith(".UniProcExecutor"), "no process that only spins"
    assert "--revision" not in given
    assert engine_environment(pool(**CPU).spec) == {
        "DO_NOT_TRACK": "1",
        "VLLM_COMPUTE_NANS_IN_LOGITS": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_MEDIA_URL_ALLOW_REDIRECTS": "0",
        "OMP_NUM_THREADS": "1",
        "TORCH_COMPILE_DISABLE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    }


@pytest.mark.parametrize("resource", ["", "nvidia.com/gpu"])
def test_a_block_size_asked_for_is_given(resource: str) -> None:
    assert option(arguments(device={"resource": resource}, engine={"blockSize": 64}), "--block-size") == "64"


@pytest.mark.parametrize("prefix_cache", [{"enabled": False}, {"budgetMiB": 0}])
def test_no_idle_blocks_where_none_are_wanted(prefix_cache: dict[str, Any]) -> None:
    given = arguments(prefixCache=prefix_cache)

    assert "--no-enable-prefix-caching" in given
    assert "--prefix-caching-hash-algo" not in given


def test_whether_a_model_can_have_a_prefix_cache_is_left_to_the_engine() -> None:
    switches = {"--enable-prefix-caching", "--no-enable-prefix-caching"}
    assert not switches & set(arguments(prefixCache={"budgetMiB": 1024}))
    assert not switches & set(arguments(plugin=True, prefixCache={"budgetMiB": 1024}))


def test_the_plugin_has_its_scheduler_before_what_the_user_gives() -> None:
    given = arguments(plugin=True, engine={"extraArgs": ["--load-format", "dummy"]})

    assert given[-4:] == ["--scheduler-cls", "cachefleet_worker.plugin.scheduler.create", "--load-format", "dummy"]
    assert "--scheduler-cls" not in arguments()


def test_with_the_plugin_a_budget_of_0_can_be_raised_later_and_a_disabled_cache_not() -> None:
    assert "--no-enable-prefix-caching" not in arguments(plugin=True, prefixCache={"budgetMiB": 0})
    assert "--no-enable-prefix-caching" in arguments(plugin=True, prefixCache={"enabled": False})


@pytest.mark.parametrize(
    ("version", "known"),
    [("", True), ("0.28.0", False), ("v0.29.1", False), ("0.30.0", True), ("1.2", True), ("nightly-1", True)],
)
def test_versions_before_0_30_do_not_know_the_option_for_token_routes(version: str, *, known: bool) -> None:
    assert ("--enable-scale-out" in arguments(version=version)) is known


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("", "cachefleet"),
        ("mine", "mine,cachefleet"),
        ("cachefleet", "cachefleet"),
        (" a, cachefleet ,b,", "a,cachefleet,b"),
    ],
)
def test_the_plugin_is_let_in_beside_the_users(given: str, expected: str) -> None:
    assert with_plugin(given) == expected
    own = {"engine": {"env": [{"name": "VLLM_PLUGINS", "value": given}]}}
    assert engine_environment(pool(**own).spec, plugin=True, plugins="inherited")["VLLM_PLUGINS"] == expected
    assert engine_environment(pool().spec, plugin=True, plugins=given)["VLLM_PLUGINS"] == expected


def test_without_the_plugin_the_list_of_plugins_is_left_alone() -> None:
    assert "VLLM_PLUGINS" not in engine_environment(pool().spec, plugins="mine")


@pytest.mark.parametrize(
    ("role", "kv_role"), [("Both", "kv_both"), ("Prefill", "kv_producer"), ("Decode", "kv_consumer")]
)
def test_kv_transfer_takes_its_role_from_the_pool(role: str, kv_role: str) -> None:
    transfer = {"kv_connector": "NixlConnector", "kv_connector_extra_config": {"backends": ["UCX"]}}

    assert json.loads(option(arguments(role=role, engine={"kvTransfer": transfer}), "--kv-transfer-config")) == {
        **transfer,
        "kv_role": kv_role,
    }


def test_a_role_given_with_the_transfer_wins() -> None:
    given = arguments(role="Decode", engine={"kvTransfer": {"kv_connector": "X", "kv_role": "kv_both"}})

    assert json.loads(option(given, "--kv-transfer-config"))["kv_role"] == "kv_both"


def test_extra_arguments_come_last_and_a_template_by_path() -> None:
    given = arguments(chat_template="/template/chat.jinja", engine={"extraArgs": ["--load-format", "dummy"]})

    assert given[-2:] == ["--load-format", "dummy"]
    assert option(given, "--chat-template") == "/template/chat.jinja"


def test_no_engine_without_a_kv_cache() -> None:
    with pytest.raises(ValueError, match="leaves no device memory for a KV cache"):
        arguments(device={"memoryMiB": 100})


def test_variables_of_the_pool_win_and_sources_are_left_to_pods() -> None:
    env = [
        {"name": "OMP_NUM_THREADS", "value": "4"},
        {"name": "EMPTY"},
        {"name": "SECRET", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}},
    ]
    given = engine_environment(pool(**CPU, engine={"env": env}).spec)

    assert given["OMP_NUM_THREADS"] == "4"
    assert given["EMPTY"] == ""
    assert "SECRET" not in given


def test_on_a_gpu_threads_are_left_alone_and_nothing_replaces_the_kv_cache() -> None:
    assert engine_environment(pool().spec) == {
        "DO_NOT_TRACK": "1",
        "VLLM_COMPUTE_NANS_IN_LOGITS": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_MEDIA_URL_ALLOW_REDIRECTS": "0",
    }
    assert "VLLM_CPU_KVCACHE_SPACE" not in engine_environment(pool(**CPU).spec)


def test_policy_of_a_pool() -> None:
    asked = read_pool(
        merged(
            VALID,
            {
                "metadata": {"uid": "u-1", "generation": 7},
                "spec": {
                    "hit": {"threshold": 0.25},
                    "preemption": {"policy": "Recompute", "rejectBelow": 0.75},
                    "prefixCache": {"budgetMiB": 512, "maxEntries": 3},
                },
            },
        )
    )
    policy = engine_policy(asked)

    assert (policy.pool, policy.uid, policy.generation) == ("default/qwen", "u-1", 7)
    assert (policy.threshold, policy.preemption, policy.reject_below) == (0.25, "Recompute", 0.75)
    assert (policy.budget_mib, policy.max_entries) == (512, 3)
    assert (policy.warm_prefixes, policy.warm_timeout_seconds) == (0, 600)
    assert policy.adapters == ()
    adapted = pool(model={"adapters": [{"name": "sql", "source": "acme/sql", "revision": "5f3c"}]})
    assert engine_policy(adapted).adapters == (WantedAdapter(name="sql", path="acme/sql@5f3c"),)


@pytest.mark.parametrize(("cache", "expected"), [({}, 1), ({"budgetMiB": 0}, 0), ({"enabled": False}, 0)])
def test_workers_wait_for_warm_prefixes_where_anything_is_kept(cache: dict[str, Any], expected: int) -> None:
    prefix = {"name": "p", "messages": [{"role": "system", "content": "x"}], "tenants": ["a"]}
    asked = pool(prefixCache={"warmPrefixes": [prefix], **cache}, rollout={"warmTimeoutSeconds": 9})
    assert (engine_policy(asked).warm_prefixes, engine_policy(asked).warm_timeout_seconds) == (expected, 9)


def test_a_disabled_cache_is_a_budget_of_nothing() -> None:
    assert engine_policy(pool(prefixCache={"enabled": False})).budget_mib == 0


@pytest.mark.parametrize(
    ("image", "version"),
    [
        ("vllm/vllm-openai:v0.32.0", "0.32.0"),
        ("vllm/vllm-openai:0.29.1", "0.29.1"),
        ("example.org:5000/vllm:v0.30.0-cu130", "0.30.0"),
        ("example.org/vllm:v0.31@sha256:" + "0" * 64, "0.31"),
        ("vllm/vllm-openai:v0.33.0rc1", "0.33.0"),
        ("example.org:5000/vllm", ""),
        ("example.org/vllm@sha256:" + "0" * 64, ""),
        ("registry.example/rocm/vllm:rocm7.0_vllm_0.29.1", "0.29.1"),
        ("rocm/vllm:rocm6.4.1_vllm_0.28.0_20251103", "0.28.0"),
        ("example.org/serving:vllm-v0.30.0-cu130", "0.30.0"),
        ("example.org/vllm:0.29.1-xpu", "0.29.1"),
        ("rocm/vllm:rocm7.0_vllm_nightly", ""),
        ("vllm/vllm-openai:latest", ""),
        ("vllm/vllm-openai:nightly-0.32", ""),
        ("example.org/vllm:1", ""),
        ("", ""),
    ],
)
def test_an_images_tag_may_name_the_version(image: str, version: str) -> None:
    assert image_version(image) == version


@pytest.mark.parametrize(
    ("engine", "version"),
    [
        ({"image": "a/b:rocm7.0_vllm_0.29.1"}, "0.29.1"),
        ({"image": "a/b:v0.32.0", "version": "0.29.1"}, "0.29.1"),
        ({"image": "a/b@sha256:" + "0" * 64, "version": "v0.28.0+gaudi"}, "0.28.0+gaudi"),
        ({"image": "a/b:latest"}, ""),
    ],
)
def test_a_pool_may_name_the_version_itself(engine: dict[str, Any], version: str) -> None:
    spec = pool(engine=engine).spec
    assert asked_version(spec) == version
    assert bool(scale_out(asked_version(spec))) is not version.startswith(("0.28", "0.29"))


def test_an_engine_that_lets_requests_end_is_told_how_long() -> None:
    given = engine_arguments(
        pool(engine={"extraArgs": ["--x"]}).spec,
        EngineAddresses("h", 1, events="e", replay="r"),
        model_path="m",
        shutdown_seconds=30,
    )
    assert given[-3:] == ["--shutdown-timeout", "30", "--x"]
    assert "--shutdown-timeout" not in arguments()


@pytest.mark.parametrize("resource", ["", "nvidia.com/gpu"])
def test_the_kv_cache_does_not_depend_on_the_budget(resource: str) -> None:
    device = {"resource": resource}
    sizes = {
        option(arguments(plugin=True, device=device, prefixCache={"budgetMiB": budget}), "--kv-cache-memory-bytes")
        for budget in (0, 1, 1024, 47122)
    }
    assert len(sizes) == 1
