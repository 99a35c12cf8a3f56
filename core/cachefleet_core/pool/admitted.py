"""Which spec of a pool is in force: the last one that the operator admitted, as the pool's status keeps it. Pure.

The operator alone admits. Control plane and agents follow what it admitted, so that an edit it refuses changes nothing
that runs, whichever of them restarts.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from pydantic import ValidationError

from cachefleet_core.pool.model_names import claim_status
from cachefleet_core.pool.spec import PrefixCachePool, read_pool
from cachefleet_core.pool.status import MAX_WORKERS, AdmittedSpec, ConditionStatus
from cachefleet_core.pool.validation_problems import PoolError

Json = Mapping[str, Any]

COPIED_PREFIX_BYTES: Final = 512 * 1024
"""Warm prefixes beyond this are left out of the copy: an object of Kubernetes has 1.5 MiB, and holds them already."""
_JUDGED_BY: Final = ("ConfigValid", "BudgetAdmitted")


@dataclass(frozen=True, slots=True)
class InForce:
    """A pool with the spec to follow; ``admitted`` is False where no admitted one is known, and it is as declared."""

    pool: PrefixCachePool
    admitted: bool


def in_force(document: Json) -> InForce:
    """The spec in force of a pool as the API server has it. PoolError where none can be read.

    Where status has no readable copy (it was lost, or an older operator writes none), conditions about the present
    generation say whether that is admitted.
    """
    copy, generation = last_admitted(document), _mapping(document.get("metadata")).get("generation")
    if copy is None:
        return InForce(_read(document), _said_admitted(document))
    if copy.generation == generation:
        return InForce(_read(_with_memory(document, copy)), admitted=True)
    metadata = {**_mapping(document.get("metadata")), "generation": copy.generation}
    try:
        return InForce(_read({**document, "metadata": metadata, "spec": copy.spec}), admitted=True)
    except PoolError:  # written by a newer operator
        return InForce(_read(document), admitted=False)


def last_admitted(document: Json) -> AdmittedSpec | None:
    """What status says of the spec admitted last; None where it says nothing of this very pool."""
    said = _mapping(document.get("status")).get("admitted")
    try:
        copy = AdmittedSpec.model_validate(said)
    except ValidationError:
        return None
    return copy if copy.uid == _mapping(document.get("metadata")).get("uid") else None


def admission(
    document: Json, *, kv_bytes_per_token: int | None = None, memory_mib: int | None = None
) -> dict[str, Any]:
    """The entry of status that admits the present spec, without what concerns the pods alone.

    ``memory_mib`` is the memory of a device where the spec does not say it.
    """
    metadata, spec = document["metadata"], dict(document["spec"])
    spec.pop("podTemplate", None)
    spec["engine"] = {name: value for name, value in _mapping(spec.get("engine")).items() if name != "env"}
    cache = _mapping(spec.get("prefixCache"))
    if len(json.dumps(cache.get("warmPrefixes"))) > COPIED_PREFIX_BYTES:
        spec["prefixCache"] = {name: value for name, value in cache.items() if name != "warmPrefixes"}
    if memory_mib:
        spec["device"] = {**_mapping(spec.get("device")), "memoryMiB": memory_mib}
    told = {"kvBytesPerToken": kv_bytes_per_token, "deviceMemoryMiB": memory_mib}
    known = {name: value for name, value in told.items() if value}
    return {"uid": metadata["uid"], "generation": metadata["generation"], **known, "spec": _without_nulls(spec)}


def known_memory(document: Json) -> int | None:
    """The memory of a device as the cluster told it of the spec admitted last, where that claims the same devices; None
    else, as after a figure of the spec's own.
    """
    copy = last_admitted(document)
    told, wanted = (_mapping(_mapping(each).get("device")) for each in (copy and copy.spec, document.get("spec")))
    return copy.device_memory_mib if copy and told.get("claims") == wanted.get("claims") else None


def same_token_size(document: Json, copy: AdmittedSpec) -> bool:
    """Whether a token takes as many bytes by the present spec as by the one admitted last: same model, same engine."""

    def shape(spec: Json) -> list[dict[str, Any]]:
        sections = (_mapping(spec.get("model")), _mapping(spec.get("engine")))
        return [{name: section[name] for name in section if name not in _NO_SHAPE} for section in sections]

    return shape(_mapping(document.get("spec"))) == shape(copy.spec)


_NO_SHAPE: Final = frozenset({"kvBytesPerToken", "env", "maxModelLen", "blockSize", "adapters"})


def _with_memory(document: Json, copy: AdmittedSpec) -> Json:
    """The document with the memory of a device as it was admitted, where the spec leaves that to the cluster."""
    spec, told = _mapping(document.get("spec")), _mapping(copy.spec.get("device")).get("memoryMiB")
    device = _mapping(spec.get("device"))
    if told is None or device.get("memoryMiB") is not None:
        return document
    return {**document, "spec": {**spec, "device": {**device, "memoryMiB": told}}}


def _read(document: Json) -> PrefixCachePool:
    # The rest of status is the operator's, whose version may differ.
    return read_pool({**document, "status": {**claim_status(document), **_foreign_pods(document)} or None})


def _foreign_pods(document: Json) -> dict[str, list[str]]:
    named = _mapping(document.get("status")).get("foreignPods")
    names = [name for name in named if isinstance(name, str) and name] if isinstance(named, list) else []
    return {"foreignPods": names[:MAX_WORKERS]} if names else {}


def _said_admitted(document: Json) -> bool:
    """Whether conditions of the present generation report that the spec was admitted."""
    generation = _mapping(document.get("metadata")).get("generation")
    conditions = _mapping(document.get("status")).get("conditions")
    found = {
        one.get("type"): one.get("status")
        for one in (conditions if isinstance(conditions, list) else ())
        if isinstance(one, Mapping) and one.get("observedGeneration") == generation
    }
    return all(found.get(kind, ConditionStatus.FALSE) != ConditionStatus.FALSE for kind in _JUDGED_BY)


def _without_nulls(value: Any) -> Any:
    """Null stands for an absent value, which the API server may drop."""
    if isinstance(value, Mapping):
        return {name: _without_nulls(entry) for name, entry in value.items() if entry is not None}
    return [_without_nulls(entry) for entry in value] if isinstance(value, list) else value


def _mapping(value: Any) -> Json:
    return value if isinstance(value, Mapping) else {}
