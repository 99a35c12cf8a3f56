"""llm-d: the values of its chart llm-d-modelservice, of which decode and prefill pods are a pool each."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, Final

from cachefleet_core.pool.worker_spec import Role
from cachefleet_local.foreign_manifests.draft import PoolDraft, pool_name, refused, text, truth, whole
from cachefleet_local.foreign_manifests.field_table import (
    AUTOSCALER,
    ONE_POD,
    Table,
    lacks,
    lacks_if_enabled,
    read_fields,
    spares,
    to,
    to_pod,
)
from cachefleet_local.foreign_manifests.pod_fields import CONTAINER, containers
from cachefleet_local.foreign_manifests.weights import read_uri

_HUB_KEY: Final = "HF_TOKEN"
"""Key of the Secret that the chart reads."""
_ROUTES: Final = "the control plane routes, and carries what the chart's sidecar does"
_PODMONITOR: Final = "our chart monitors workers"
_RESOURCES: Final = {
    "nvidia": "nvidia.com/gpu",
    "intel-i915": "gpu.intel.com/i915",
    "intel-xe": "gpu.intel.com/xe",
    "intel-gaudi": "habana.ai/gaudi",
    "amd": "amd.com/gpu",
    "google": "google.com/tpu",
    "cpu": "",
}
"""Resources of the chart's types of accelerators, unless its values name others."""


def _secret(draft: PoolDraft, source: str, value: Any) -> None:
    draft.put("model.hubTokenSecretRef", {"name": text(source, value), "key": _HUB_KEY})
    draft.became(source, "spec.model.hubTokenSecretRef")


def _multinode(draft: PoolDraft, source: str, value: Any) -> None:
    _pods(draft, source, several=truth(source, value))


def _pods(draft: PoolDraft, source: str, *, several: bool) -> None:
    (draft.lacks if several else draft.spares)(source, ONE_POD)


def _claims(draft: PoolDraft, source: str, value: Any) -> None:
    if truth(source, value):
        draft.lacks(source, "name the DeviceClass or template in spec.device.claims")
    else:
        draft.spares(source, "devices are asked for as a resource")


_COMMON: Final[Table] = {
    ".enabled": spares("what is not enabled makes no pool"),
    ".common": spares("they are the chart's own"),
    ".fullnameOverride": spares("it names the pools"),
    ".nameOverride": spares("it is a part of the chart's names"),
    ".serviceAccountOverride": spares("workers have a service account of their own, which reports for them"),
    ".schedulerName": to_pod("spec.schedulerName"),
    ".multinode": _multinode,
    ".modelArtifacts.name": to("model.name"),
    ".modelArtifacts.labels": spares("the operator labels workers itself"),
    ".modelArtifacts.uri": read_uri,
    ".modelArtifacts.size": spares("a worker's cache of the hub is bounded by its node"),
    ".modelArtifacts.authSecretName": _secret,
    ".modelArtifacts.mountPath": spares("weights are mounted where the pool's source says"),
    ".accelerator.type": lambda draft, source, _: draft.became(source, "spec.device.resource"),
    ".accelerator.dra": _claims,
    ".accelerator.resources": spares("they are choices for spec.device.resource"),
    ".accelerator.env": lacks("write those of your accelerator to spec.engine.env"),
    ".accelerator.resourceClaimTemplates": spares("they are used where accelerator.dra is true"),
    ".routing": spares(_ROUTES),
    ".requester": spares("its pods are made without the dual-pod solution"),
    ".decode": lambda *_: None,
    ".prefill": lambda *_: None,
}
"""The values besides those of the two kinds of pods; chart v0.4."""


def _positive(source: str, value: Any) -> int:
    return whole(source, value, least=1)


def _workers(draft: PoolDraft, source: str, value: Any) -> None:
    _pods(draft, source, several=_positive(source, value) > 1)


_CONTAINER: Final[Table] = {
    **CONTAINER,
    ".modelCommand": spares("the operator starts vLLM"),
    ".mountModelVolume": spares("weights are mounted where the pool's source says"),
    ".extraConfig": lacks("write its fields to spec.podTemplate"),
}
_PODS: Final[Table] = {
    ".create": spares("what is not created makes no pool"),
    ".replicas": to("replicas", whole),
    ".autoscaling": lacks_if_enabled(AUTOSCALER),
    ".nodeSelector": to_pod("spec.nodeSelector"),
    ".schedulerName": to_pod("spec.schedulerName"),
    ".imagePullSecrets": to_pod("spec.imagePullSecrets"),
    ".podSecurityContext": to_pod("spec.securityContext"),
    ".extraConfig": to_pod("spec"),
    ".parallelism.tensor": to("engine.tensorParallelSize", _positive),
    ".parallelism.data": to("engine.dataParallelSize", _positive),
    ".parallelism.dataLocal": to("engine.dataParallelSize", _positive),
    ".parallelism.workers": _workers,
    ".resourceClaims": to_pod("spec.resourceClaims"),
    ".containers": containers("vllm", _CONTAINER),
    ".volumes": to_pod("spec.volumes"),
    ".initContainers": to_pod("spec.initContainers"),
    ".terminationGracePeriodSeconds": to_pod("spec.terminationGracePeriodSeconds"),
    ".enableServiceLinks": to_pod("spec.enableServiceLinks"),
    ".hostIPC": to_pod("spec.hostIPC"),
    ".hostPID": to_pod("spec.hostPID"),
    ".subGroupPolicy": lacks(ONE_POD),
    ".subGroupExclusiveToplogy": lacks(ONE_POD),
    ".monitoring": spares(_PODMONITOR),
}
"""The values of decode or prefill pods."""


def model_service(draft: PoolDraft, document: Mapping[str, Any]) -> list[PoolDraft]:
    """The pools of the chart's values: one, or where it makes prefill pods as well, two."""
    read_fields(draft, _COMMON, document)
    artifacts = document["modelArtifacts"]
    wanted = document.get("fullnameOverride") or artifacts.get("name")
    name = pool_name(text("modelArtifacts.name", wanted))
    parts = {part: document[part] for part in ("decode", "prefill") if _makes_pods(document.get(part))}
    if not parts:
        raise refused("decode", document.get("decode"), "must make at least one replica")
    drafts: list[PoolDraft] = []
    for part, value in parts.items():
        one = copy.deepcopy(draft)
        one.notes = [] if drafts else one.notes
        _read_part(one, part, value, document)
        one.name = pool_name(f"{name[:40]}-{part}") if len(parts) > 1 else name
        if len(parts) > 1:
            one.is_role(Role.DECODE if part == "decode" else Role.PREFILL)
        drafts.append(one)
    return drafts


def _makes_pods(value: Any) -> bool:
    if not isinstance(value, Mapping):
        return False
    return truth("create", value.get("create", True)) and whole("replicas", value.get("replicas", 1)) > 0


def _read_part(draft: PoolDraft, part: str, value: Mapping[str, Any], document: Mapping[str, Any]) -> None:
    read_fields(draft, {**_PODS, ".acceleratorTypes": _accelerator_nodes}, value, source=f".{part}")
    if draft.get("device.resource") is None:
        accelerator = document.get("accelerator") or {}
        kind = str(accelerator.get("type") or "nvidia")
        named = (accelerator.get("resources") or {}).get(kind, _RESOURCES.get(kind))
        if named is None:
            raise refused("accelerator.type", kind, f"must be one of {', '.join(_RESOURCES)}")
        draft.put("device.resource", named)


def _accelerator_nodes(draft: PoolDraft, source: str, value: Any) -> None:
    """Node labels of an accelerator, which the chart makes a node affinity of."""
    label, labels = value.get("labelKey"), value.get("labelValues")
    if not label:
        draft.spares(source, "it names no label")
        return
    path = "podTemplate.spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms"
    draft.append(path, [{"matchExpressions": [{"key": label, "operator": "In", "values": list(labels or [])}]}])
    draft.became(source, f"spec.{path}")
