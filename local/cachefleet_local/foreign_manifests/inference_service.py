"""KServe's LLMInferenceService, whose workload, and that of its prefill section, are a pool each."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, Final

from cachefleet_core.pool.weights_image import SCHEME
from cachefleet_core.pool.worker_spec import Role
from cachefleet_local.foreign_manifests.draft import PoolDraft, pool_name, refused, whole
from cachefleet_local.foreign_manifests.field_table import (
    AUTOSCALER,
    METADATA,
    ONE_POD,
    Table,
    lacks,
    read_fields,
    spares,
    to,
    to_argument,
    to_pod,
)
from cachefleet_local.foreign_manifests.pod_fields import POD, containers
from cachefleet_local.foreign_manifests.weights import read_uri

_ENGINE: Final = "main"
"""Name of vLLM's container in its pods."""
_IN_IMAGE: Final = "models"
"""Folder of an image that has the weights."""
_OFFLOADING: Final = "blocks outside of the device: configure OffloadingConnector in spec.engine.kvTransfer"
_ROUTES: Final = "the control plane routes; docs/picker.md says how it stands beside a Gateway"
_BASES: Final = "their fields are not in this document: write them here, or to the pool"


def _positive(source: str, value: Any) -> int:
    return whole(source, value, least=1)


def _uri(draft: PoolDraft, source: str, value: Any) -> None:
    read_uri(draft, source, value)
    if draft.get("model.source").startswith(SCHEME):
        draft.put("model.subPath", _IN_IMAGE)


def _one_only(why: str) -> Any:
    def act(draft: PoolDraft, source: str, value: Any) -> None:
        if _positive(source, value) > 1:
            draft.lacks(source, why)
        else:
            draft.spares(source, why)

    return act


def _adapters(draft: PoolDraft, source: str, value: Any) -> None:
    made = []
    for number, one in enumerate(value):
        where = f"{source}[{number}]"
        uri = str(one.get("uri", "")) if isinstance(one, Mapping) else ""
        if not uri.startswith(("hf://", "/", "oci://")) or not one.get("name"):
            draft.lacks(where, "an adapter needs a name, and a hub id, a path or an image as its source")
            continue
        made.append({"name": one["name"], "source": uri.removeprefix("hf://")})
        draft.became(where, "spec.model.adapters")
    if made:
        draft.put("model.adapters", made)
        draft.arguments.append("--enable-lora")


def _expert(draft: PoolDraft, source: str, value: Any) -> None:
    to_argument("--enable-expert-parallel", value_too=False)(draft, source, value)


_WORKLOAD: Final[Table] = {
    ".replicas": to("replicas", whole),
    ".scaling": lacks(AUTOSCALER),
    ".parallelism.tensor": to("engine.tensorParallelSize", _positive),
    ".parallelism.pipeline": _one_only(ONE_POD),
    ".parallelism.data": to("engine.dataParallelSize", _positive),
    ".parallelism.dataLocal": spares("a worker has all its ranks"),
    ".parallelism.dataRPCPort": spares("a worker has all its ranks"),
    ".parallelism.expert": _expert,
    ".labels": to_pod("metadata.labels"),
    ".annotations": to_pod("metadata.annotations"),
    ".template.containers": containers(_ENGINE),
    **{f".template{path}": action for path, action in POD.items()},
    ".worker": lacks(ONE_POD),
    ".kvCacheOffloading": lacks(_OFFLOADING),
}
"""A workload: the service's own, or the one in its prefill section."""
_SERVICE: Final[Table] = {
    **METADATA,
    ".spec.model.uri": _uri,
    ".spec.model.name": to("model.name"),
    ".spec.model.confidential": lacks("weights are read as they are"),
    ".spec.model.lora.adapters": _adapters,
    ".spec.model.lora.maxRank": to_argument("--max-lora-rank"),
    ".spec.model.lora.maxAdapters": to_argument("--max-loras"),
    ".spec.model.lora.maxCpuAdapters": to_argument("--max-cpu-loras"),
    ".spec.storageInitializer": spares("workers fetch weights themselves, or mount them"),
    ".spec.router": spares(_ROUTES),
    ".spec.baseRefs": lacks(_BASES),
    ".spec.prefill": lambda *_: None,
    ".spec.tracing": spares("traces are configured in the control plane (docs/tracing.md)"),
    **{
        f".spec{path}": (lambda *_: None)
        for path in (".replicas", ".scaling", ".parallelism", ".labels", ".annotations", ".template", ".worker")
    },
    ".spec.kvCacheOffloading": lambda *_: None,
}
"""LLMInferenceService, serving.kserve.io/v1alpha2, besides its workloads."""


def inference_service(draft: PoolDraft, document: Mapping[str, Any]) -> list[PoolDraft]:
    """The pool of an LLMInferenceService; with a prefill section two."""
    read_fields(draft, _SERVICE, document)
    spec = document.get("spec")
    if not isinstance(spec, Mapping) or draft.get("model.source") is None:
        raise refused("spec.model.uri", None, "must be given: hf://MODEL, pvc://CLAIM/PATH or oci://IMAGE")
    if draft.get("model.name") is None:
        draft.put("model.name", draft.name)
    prefill = spec.get("prefill")
    drafts = [_workload(draft, ".spec", {name: value for name, value in spec.items() if name in _PARTS})]
    if isinstance(prefill, Mapping):
        drafts.append(_workload(draft, ".spec.prefill", prefill, Role.PREFILL))
        drafts[0].is_role(Role.DECODE)
        drafts[0].name = pool_name(f"{draft.name[:40]}-decode")
        drafts[1].notes = drafts[1].notes[len(draft.notes) :]
    return drafts


_PARTS: Final = frozenset(path.split(".")[1] for path in _WORKLOAD)


def _workload(draft: PoolDraft, source: str, workload: Mapping[str, Any], role: Role | None = None) -> PoolDraft:
    one = copy.deepcopy(draft)
    read_fields(one, _WORKLOAD, workload, source=source)
    if one.get("device.resource") is None:
        one.put("device.resource", "")
        one.lacks(f"{source}.template", "asks for no device, so the engine runs on a CPU")
    if role is not None:
        one.is_role(role)
        one.name = pool_name(f"{draft.name[:40]}-prefill")
    return one
