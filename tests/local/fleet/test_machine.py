from __future__ import annotations

import sys
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

import pytest

from cachefleet_local.cli_errors import Exit, FailureError
from cachefleet_local.fleet.machine import (
    Machine,
    check_budgets,
    check_machine,
    devices_of,
    model_path,
    this_machine,
    unused_fields,
    with_folders,
)
from tests.local.pools import changed, example

CPU = Machine(nvidia_devices=0, vllm="0.32.0", vllm_for_cpu=True)
GPUS = Machine(nvidia_devices=8, vllm="0.32.0")


def test_examples_run_where_their_devices_are() -> None:
    assert check_machine(example("cpu-two-workers"), CPU) == []
    assert check_machine(example("gpu-qwen"), GPUS) == []


def test_missing_devices_are_counted_over_all_pools() -> None:
    machine = Machine(nvidia_devices=6, vllm="0.32.0")
    assert check_machine(example("gpu-qwen"), machine) == ["the pools need 8 NVIDIA GPUs and this machine has 6"]


def test_vllm_for_the_wrong_device_is_named() -> None:
    lines = check_machine(example("gpu-qwen"), CPU)
    assert lines[0] == ("serving/qwen: its workers run on GPUs, and the vLLM installed here (0.32.0) is built for CPUs")


def test_no_vllm_is_named() -> None:
    (line,) = check_machine(example("cpu-two-workers"), Machine(nvidia_devices=0, vllm=""))
    assert line.startswith("vLLM is not installed here")


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("nvidia.com/gpu", "amd.com/gpu", "spec.device.resource is amd.com/gpu"),
        ("source: Qwen/Qwen3-32B", "source: /missing/model", "spec.model.source is /missing/model"),
        (
            "source: Qwen/Qwen3-32B\n    revision: 9216db5781bf",
            "source: oci://registry.example/acme/qwen:1",
            "spec.model.source is oci://registry.example/acme/qwen:1, an image, which only Kubernetes mounts",
        ),
        (
            "revision: 9216db5781bf",
            "adapters: [{name: a, source: 'oci://registry.example/acme/sql:1'}]",
            "spec.model.adapters[0].source is oci://registry.example/acme/sql:1, an image",
        ),
        (
            "tensorParallelSize: 2",
            "tensorParallelSize: 2\n    env: [{name: A, valueFrom: {secretKeyRef: {name: a, key: b}}}]",
            "spec.engine.env[0].valueFrom",
        ),
        (
            "revision: 9216db5781bf",
            "chatTemplate: {configMapKeyRef: {name: t, key: chat.jinja}}",
            "spec.model.chatTemplate names a ConfigMap",
        ),
    ],
)
def test_what_only_a_cluster_can_do_is_refused(old: str, new: str, expected: str) -> None:
    assert check_machine(changed("gpu-qwen", old, new), GPUS)[0].startswith(f"serving/qwen: {expected}")


def test_a_revision_of_an_adapter_needs_somebody_to_fetch_it_and_a_folder_to_be_there() -> None:
    given = "adapters: [{name: a, source: acme/a, revision: 5f3c}, {name: b, source: ./missing}]"
    pools = changed("gpu-qwen", "revision: 9216db5781bf", given)
    alone, beside = (check_machine(pools, replace(GPUS, plugin=plugin)) for plugin in ("", "0.1.0"))
    assert "serving/qwen: spec.model.adapters[0].revision needs cachefleet beside vLLM" in alone[0]
    assert beside == ["serving/qwen: spec.model.adapters[1].source is ./missing, and there is no such folder"]


def test_an_adapters_folder_is_the_same_to_every_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sql").mkdir()
    given = "adapters: [{name: a, source: ./sql}, {name: b, source: acme/b, revision: v1}, {name: c, source: acme/c}]"
    (pool,) = changed("gpu-qwen", "revision: 9216db5781bf", given)
    assert [one.source for one in with_folders(pool).spec.model.adapters] == [str(tmp_path / "sql"), "acme/b", "acme/c"]


def test_what_means_nothing_here_is_told() -> None:
    pools = changed("gpu-qwen", "replicas: 4", "replicas: 4\n  podTemplate: {spec: {}}")
    assert unused_fields(pools) == ["serving/qwen: spec.podTemplate is for Kubernetes and not used here"]
    assert unused_fields(example("gpu-qwen")) == []


def test_a_budget_above_the_kv_cache_is_refused_with_both_numbers() -> None:
    (line,) = check_budgets(changed("cpu-two-workers", "budgetMiB: 4", "budgetMiB: 40"))
    assert line.startswith("default/demo: ")
    assert "40 MiB" in line
    assert "6 MiB" in line


def test_each_worker_has_devices_of_its_own() -> None:
    pools = example("cpu-two-workers") + example("gpu-qwen")
    assert devices_of(pools) == {f"serving.qwen-{i}.engine": f"{2 * i},{2 * i + 1}" for i in range(4)}


def test_a_models_source_is_ours_a_folder_or_a_hub_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert (Path(model_path("cachefleet/tiny")) / "tokenizer.json").is_file()
    assert model_path(str(tmp_path)) == str(tmp_path)
    assert model_path("Qwen/Qwen3-32B") == "Qwen/Qwen3-32B"


def test_an_interpreter_is_asked_for_its_vllm() -> None:
    assert this_machine(sys.executable).nvidia_devices >= 0
    assert this_machine(sys.executable).plugin == version("cachefleet"), "it is installed beside these tests"
    with pytest.raises(FailureError, match="cannot run the engine's interpreter /missing/python") as failure:
        this_machine("/missing/python")
    assert failure.value.status is Exit.BAD_INPUT
