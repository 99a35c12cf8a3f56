"""production-stack: its VLLMRuntime, and the values of its chart."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from cachefleet_local.foreign_manifests.draft import (
    PoolDraft,
    model_name,
    pool_name,
    refused,
    share,
    text,
    truth,
    whole,
)
from cachefleet_local.foreign_manifests.engine_words import read_words
from cachefleet_local.foreign_manifests.field_table import (
    AUTOSCALER,
    METADATA,
    Action,
    Table,
    lacks,
    lacks_if_enabled,
    read_fields,
    spares,
    to,
    to_argument,
    to_pod,
)
from cachefleet_local.foreign_manifests.pod_fields import (
    NO_SECRETS,
    node_terms,
    pull_secret,
    read_resources,
    read_variables,
    shared_memory,
    take_resource,
    to_container,
)

_NVIDIA: Final = "nvidia.com/gpu"
_CLAIM: Final = "make a claim, and mount it by spec.podTemplate (docs/install.md)"
_LMCACHE: Final = "blocks outside of the device: configure a connector in spec.engine.kvTransfer"
_CHAT_TEMPLATE: Final = "put the template in a ConfigMap, and name it in spec.model.chatTemplate"
_PARTS: Final = "is not the operator's to make: add a container by spec.podTemplate"
_HAMI: Final = "a part of a GPU is another resource: set spec.device.resource and spec.device.memoryMiB"


def _model(draft: PoolDraft, source: str, value: Any) -> None:
    draft.put("model.source", text(source, value))
    draft.put("model.name", model_name(value))
    draft.became(source, "spec.model.source and spec.model.name")


def _utilization(draft: PoolDraft, source: str, value: Any) -> None:
    draft.utilization = share(source, value)
    draft.became(source, "spec.device.floorMiB: the rest of the device's memory is not touched")


def _chunked_prefill(draft: PoolDraft, source: str, value: Any) -> None:
    option = "--enable-chunked-prefill" if truth(source, value) else "--no-enable-chunked-prefill"
    draft.arguments.append(option)
    draft.became(source, f"spec.engine.extraArgs ({option})")


def _positive(source: str, value: Any) -> int:
    return whole(source, value, least=1)


_ENGINE: Final[Table] = {
    ".vllmConfig.dtype": to("engine.dtype"),
    ".vllmConfig.enableChunkedPrefill": _chunked_prefill,
    ".vllmConfig.enablePrefixCaching": to("prefixCache.enabled", truth),
    ".vllmConfig.extraArgs": read_words,
    ".vllmConfig.gpuMemoryUtilization": _utilization,
    ".vllmConfig.maxLoras": to_argument("--max-loras"),
    ".vllmConfig.maxModelLen": to("engine.maxModelLen", _positive),
    ".vllmConfig.maxNumSeqs": to_argument("--max-num-seqs"),
    ".vllmConfig.tensorParallelSize": to("engine.tensorParallelSize", _positive),
}


def _under(prefix: str, table: Table) -> dict[str, Action]:
    return {f"{prefix}{path}": action for path, action in table.items()}


def _device(draft: PoolDraft, source: str, value: Any) -> None:
    draft.devices = whole(source, value)
    draft.became(source, "spec.device; how many follows from spec.engine.tensorParallelSize")


def _token_ref(key: str) -> Action:
    def act(draft: PoolDraft, source: str, value: Any) -> None:
        draft.put(f"model.hubTokenSecretRef.{key}", text(source, value))
        draft.became(source, f"spec.model.hubTokenSecretRef.{key}")

    return act


def _request(name: str) -> Action:
    return lambda draft, source, value: take_resource(draft, source, "requests", name, value)


def _limit(name: str) -> Action:
    return lambda draft, source, value: take_resource(draft, source, "limits", name, value)


def _strategy(draft: PoolDraft, source: str, value: Any) -> None:
    if value == "Recreate":
        draft.lacks(source, "workers are replaced one after the other: spec.rollout says how many at once")
    else:
        draft.spares(source, "it is what spec.rollout does")


_DEPLOYMENT: Final = ".spec.deploymentConfig"
RUNTIME: Final[Table] = {
    **METADATA,
    **_under(".spec", _ENGINE),
    ".spec.vllmConfig.env": read_variables,
    ".spec.vllmConfig.port": spares("the operator gives the engine its port"),
    ".spec.vllmConfig.v1": spares("vLLM has one engine only"),
    ".spec.model.modelURL": _model,
    ".spec.model.hfTokenSecret.hfTokenSecretName": _token_ref("name"),
    ".spec.model.hfTokenSecret.hfTokenKeyName": _token_ref("key"),
    ".spec.model.hfTokenSecret.name": _token_ref("name"),
    ".spec.model.hfTokenName": _token_ref("key"),
    ".spec.model.enableLoRA": to_argument("--enable-lora", value_too=False),
    ".spec.model.enableTool": to_argument("--enable-auto-tool-choice", value_too=False),
    ".spec.model.toolCallParser": to_argument("--tool-call-parser"),
    ".spec.model.maxModelLen": to("engine.maxModelLen", _positive),
    ".spec.model.dtype": to("engine.dtype"),
    ".spec.model.maxNumSeqs": to_argument("--max-num-seqs"),
    ".spec.model.chatTemplate": lacks(_CHAT_TEMPLATE),
    ".spec.lmCacheConfig": lacks_if_enabled(_LMCACHE),
    ".spec.storageConfig": lacks_if_enabled(_CLAIM),
    ".spec.autoscalingConfig": lacks_if_enabled(AUTOSCALER),
    f"{_DEPLOYMENT}.replicas": to("replicas", whole),
    f"{_DEPLOYMENT}.nodeSelectorTerms": node_terms,
    f"{_DEPLOYMENT}.toleration": to_pod("spec.tolerations"),
    f"{_DEPLOYMENT}.deploymentStrategy": _strategy,
    f"{_DEPLOYMENT}.runtimeClass": to_pod("spec.runtimeClassName"),
    f"{_DEPLOYMENT}.shmSize": shared_memory,
    f"{_DEPLOYMENT}.podAnnotations": to_pod("metadata.annotations"),
    f"{_DEPLOYMENT}.resources.cpu": _request("cpu"),
    f"{_DEPLOYMENT}.resources.memory": _request("memory"),
    f"{_DEPLOYMENT}.resources.gpu": _device,
    f"{_DEPLOYMENT}.resources.gpuType": to("device.resource"),
    f"{_DEPLOYMENT}.image.registry": spares("it begins spec.engine.image"),
    f"{_DEPLOYMENT}.image.name": spares("it ends spec.engine.image"),
    f"{_DEPLOYMENT}.image.pullPolicy": to_container("imagePullPolicy"),
    f"{_DEPLOYMENT}.image.pullSecretName": pull_secret,
    f"{_DEPLOYMENT}.sidecarConfig": lacks_if_enabled(_PARTS),
}
"""VLLMRuntime, production-stack.vllm.ai/v1alpha1."""


def runtime(draft: PoolDraft, document: Mapping[str, Any]) -> list[PoolDraft]:
    """The pool of a VLLMRuntime."""
    read_fields(draft, RUNTIME, document)
    config = _mapping(_mapping(document.get("spec")).get("deploymentConfig"))
    image = _mapping(config.get("image"))
    if image.get("registry") and image.get("name"):
        draft.put("engine.image", f"{image['registry']}/{image['name']}")
    _end_token(draft, "token")
    _end_device(draft)
    return [draft]


def _token(draft: PoolDraft, source: str, value: Any) -> None:
    if isinstance(value, Mapping) and not value.get("secretName"):
        draft.spares(source, "it names no Secret")
    elif isinstance(value, Mapping):
        draft.put("model.hubTokenSecretRef", {"name": value.get("secretName"), "key": value.get("secretKey")})
        draft.became(source, "spec.model.hubTokenSecretRef")
    else:
        draft.lacks(source, f"{NO_SECRETS} in spec.model.hubTokenSecretRef")


_MODEL: Final[Table] = {
    **_ENGINE,
    ".vllmConfig.v0": spares("vLLM has one engine only"),
    ".vllmConfig.runner": to_argument("--runner"),
    ".vllmConfig.convert": to_argument("--convert"),
    ".name": spares("it names the pool"),
    ".enabled": spares("what is not enabled makes no pool"),
    ".annotations": spares("they are for other controllers"),
    ".podAnnotations": to_pod("metadata.annotations"),
    ".serviceAccountName": spares("workers have a service account of their own, which reports for them"),
    ".priorityClassName": to_pod("spec.priorityClassName"),
    ".runtimeClassName": to_pod("spec.runtimeClassName"),
    ".repository": spares("it begins spec.engine.image"),
    ".tag": spares("it ends spec.engine.image"),
    ".imagePullPolicy": to_container("imagePullPolicy"),
    ".imagePullSecret": pull_secret,
    ".modelURL": _model,
    ".chatTemplate": lacks(_CHAT_TEMPLATE),
    ".chatTemplateConfigMap": lacks(_CHAT_TEMPLATE),
    ".replicaCount": to("replicas", whole),
    ".resources": read_resources,
    ".requestCPU": _request("cpu"),
    ".requestMemory": _request("memory"),
    ".requestGPU": _device,
    ".requestGPUType": to("device.resource"),
    ".requestGPUMem": lacks(_HAMI),
    ".requestGPUMemPercentage": lacks(_HAMI),
    ".requestGPUCores": lacks(_HAMI),
    ".limitCPU": _limit("cpu"),
    ".limitMemory": _limit("memory"),
    ".limitGPUMem": lacks(_HAMI),
    ".limitGPUMemPercentage": lacks(_HAMI),
    ".limitGPUCores": lacks(_HAMI),
    ".pvcStorage": lacks(_CLAIM),
    ".pvcAccessMode": lacks(_CLAIM),
    ".storageClass": lacks(_CLAIM),
    ".pvcMatchLabels": lacks(_CLAIM),
    ".pvcLabels": lacks(_CLAIM),
    ".pvcAnnotations": lacks(_CLAIM),
    ".extraVolumes": to_pod("spec.volumes"),
    ".extraVolumeMounts": to_container("volumeMounts"),
    ".initContainer": lacks(_PARTS),
    ".lmcacheConfig": lacks_if_enabled(_LMCACHE),
    ".hf_token": _token,
    ".envFromSecret": lacks("name each variable in spec.engine.env, with valueFrom"),
    ".env": read_variables,
    ".affinity": to_pod("spec.affinity"),
    ".nodeSelectorTerms": node_terms,
    ".nodeName": to_pod("spec.nodeName"),
    ".tolerations": to_pod("spec.tolerations"),
    ".tolerationsPolicy": spares("spec.podTemplate has all tolerations of the pool"),
    ".shmSize": shared_memory,
    ".enableLoRA": to_argument("--enable-lora", value_too=False),
    ".enableTool": to_argument("--enable-auto-tool-choice", value_too=False),
    ".toolCallParser": to_argument("--tool-call-parser"),
    ".keda": lacks_if_enabled(AUTOSCALER),
    ".raySpec": lacks_if_enabled("a worker is one pod, on one node"),
}
"""One entry of servingEngineSpec.modelSpec."""

_SHARED: Final[Table] = {
    ".modelSpec": lambda *_: None,
    ".enableEngine": spares("what is not enabled makes no pool"),
    ".labels": spares("the operator labels workers itself"),
    ".extraPorts": lacks("add ports by spec.podTemplate"),
    ".vllmApiKey": spares("the keys of workers are made for them"),
    ".containerPort": spares("the operator gives the engine its port"),
    ".servicePort": spares("clients ask the gateway"),
    ".configs": lacks("name each variable in spec.engine.env"),
    ".env": read_variables,
    ".strategy": spares("workers are replaced as spec.rollout says"),
    ".startupProbe": spares("the operator has probes of its own"),
    ".livenessProbe": spares("the operator has probes of its own"),
    ".readinessProbe": spares("the operator has probes of its own"),
    ".maxUnavailablePodDisruptionBudget": spares("the operator makes a PodDisruptionBudget"),
    ".tolerations": to_pod("spec.tolerations"),
    ".runtimeClassName": to_pod("spec.runtimeClassName"),
    ".schedulerName": to_pod("spec.schedulerName"),
    ".imagePullPolicy": to_container("imagePullPolicy"),
    ".securityContext": to_pod("spec.securityContext"),
    ".containerSecurityContext": to_container("securityContext"),
    ".extraVolumes": to_pod("spec.volumes"),
    ".extraVolumeMounts": to_container("volumeMounts"),
    ".serviceMonitor": spares("our chart monitors workers"),
    ".sidecar": spares("it loads adapters, which spec.model.adapters names"),
}
"""servingEngineSpec, for all its models."""


def _cache_server(draft: PoolDraft, source: str, value: Any) -> None:
    """Its switch has had two names."""
    switch = value.get("enabled", value.get("enableServer", False)) if isinstance(value, Mapping) else False
    lacks_if_enabled(_LMCACHE)(draft, source, {"enabled": switch})


_VALUES: Final[Table] = {
    ".servingEngineSpec": lambda *_: None,
    ".routerSpec": spares("the control plane routes"),
    ".cacheserverSpec": _cache_server,
    ".loraAdapters": lacks("name them in spec.model.adapters"),
    ".loraController": spares("workers load the adapters that spec.model.adapters names"),
    ".sharedStorage": lacks(_CLAIM),
    ".sharedPvcStorage": lacks(_CLAIM),
}


def values(draft: PoolDraft, document: Mapping[str, Any]) -> list[PoolDraft]:
    """The pools of the chart's values: one for each model that is enabled."""
    engine = _mapping(document["servingEngineSpec"])
    models = engine.get("modelSpec")
    if not isinstance(models, list) or not all(isinstance(one, Mapping) for one in models):
        raise refused("servingEngineSpec.modelSpec", models, "must be a list of models")
    drafts: list[PoolDraft] = []
    for number, model in enumerate(models):
        if truth("servingEngineSpec.modelSpec.enabled", model.get("enabled", True)):
            one = PoolDraft(origin=draft.origin, namespace=draft.namespace)
            _read_model(one, engine, model, source=f".servingEngineSpec.modelSpec[{number}]", first=not drafts)
            if not drafts:
                read_fields(one, _VALUES, document)
            drafts.append(one)
    return drafts


def _read_model(
    draft: PoolDraft, engine: Mapping[str, Any], model: Mapping[str, Any], *, source: str, first: bool
) -> None:
    read_fields(draft, _SHARED, engine, source=".servingEngineSpec")
    if not first:
        draft.notes.clear()  # the first pool's say it
    override = model.get("tolerationsPolicy") == "override"
    if override and draft.get("podTemplate.spec.tolerations"):
        draft.put("podTemplate.spec.tolerations", [])
    read_fields(draft, _MODEL, model, source=source)
    draft.name = pool_name(text(f"{source}.name", model.get("name")))
    if model.get("repository"):
        draft.put("engine.image", f"{model['repository']}:{model.get('tag') or 'latest'}")
    _end_device(draft)


def _end_token(draft: PoolDraft, key: str) -> None:
    """A reference without a key has the default one; a key without a Secret refers to nothing."""
    ref = draft.get("model.hubTokenSecretRef")
    if ref and ref.get("name"):
        ref.setdefault("key", key)
    elif ref:
        draft.spec["model"].pop("hubTokenSecretRef")


def _end_device(draft: PoolDraft) -> None:
    """Without any GPU asked for the engine runs on a CPU."""
    if not draft.devices:
        draft.put("device.resource", "")
    elif not draft.get("device.resource"):
        draft.put("device.resource", _NVIDIA)


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
