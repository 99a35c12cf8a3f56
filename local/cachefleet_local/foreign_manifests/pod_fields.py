"""Pod and container specs of other manifests: what becomes the engine, what becomes a patch of the worker's pod."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from cachefleet_core.pool.managed_arguments import MANAGED_VARIABLES
from cachefleet_local.foreign_manifests.draft import ENGINE, PoolDraft, refused, text, whole
from cachefleet_local.foreign_manifests.engine_words import read_words
from cachefleet_local.foreign_manifests.field_table import (
    Action,
    Table,
    lacks,
    read_fields,
    refuse_templates,
    spares,
    to,
    to_pod,
)

_DEVICE: Final = re.compile(r"^(nvidia\.com|amd\.com|habana\.ai|gpu\.intel\.com|google\.com/tpu)\b|/gpu$")
_SECRET: Final = re.compile(r"TOKEN|SECRET|PASSWORD|CREDENTIAL|(^|_)KEY($|_)")
_HUB_TOKENS: Final = frozenset({"HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"})
_WORDS: Final = "VLLM_ADDITIONAL_ARGS"
"""KServe's variable for further arguments of vLLM."""
NO_SECRETS: Final = "may hold a credential, which is not copied: put it in a Secret and name that"
_OWN_PROBE: Final = "the operator's own probes ask the same; numbers of yours go into spec.podTemplate"
_PORTS: Final = "the operator gives the engine its ports"


def read_variables(draft: PoolDraft, source: str, value: Any) -> None:
    """Take a container's environment variables."""
    if not isinstance(value, list) or not all(isinstance(one, Mapping) and one.get("name") for one in value):
        raise refused(source, value, "must be a list of variables with names")
    for number, variable in enumerate(value):
        _read_variable(draft, f"{source}[{number}] ({variable['name']})", variable)


def _read_variable(draft: PoolDraft, source: str, variable: Mapping[str, Any]) -> None:
    name, secret = str(variable["name"]), _secret_of(variable)
    if name == _WORDS and "value" in variable:
        read_words(draft, source, str(variable["value"] or ""))
    elif name in MANAGED_VARIABLES:
        draft.spares(source, MANAGED_VARIABLES[name])
    elif name in _HUB_TOKENS and secret:
        draft.put("model.hubTokenSecretRef", secret)
        draft.became(source, "spec.model.hubTokenSecretRef")
    elif _SECRET.search(name) and variable.get("value"):
        draft.lacks(
            source, NO_SECRETS + (" in spec.model.hubTokenSecretRef" if name in _HUB_TOKENS else " by valueFrom")
        )
    else:
        kept: dict[str, Any] = {"name": name}
        if "valueFrom" in variable:
            kept["valueFrom"] = variable["valueFrom"]
        elif variable.get("value") is not None:
            kept["value"] = str(variable["value"])
        draft.variables.append(kept)
        draft.became(source, "spec.engine.env")


def _secret_of(variable: Mapping[str, Any]) -> dict[str, Any] | None:
    origin = variable.get("valueFrom")
    ref = origin.get("secretKeyRef") if isinstance(origin, Mapping) else None
    return {"name": ref.get("name"), "key": ref.get("key")} if isinstance(ref, Mapping) else None


def read_resources(draft: PoolDraft, source: str, value: Any) -> None:
    """Take a container's resources: its devices, and what it asks for besides."""
    if not isinstance(value, Mapping):
        raise refused(source, value, "must be a mapping")
    for part, amounts in value.items():
        if part == "claims":
            draft.lacks(f"{source}.claims", "name the claim in spec.device.claims")
            continue
        for name, amount in (amounts or {}).items():
            take_resource(draft, f"{source}.{part}.{name}", part, name, amount)


def take_resource(draft: PoolDraft, source: str, part: str, name: str, amount: Any) -> None:
    """Take one resource of a container's ``requests`` or ``limits``."""
    if _DEVICE.search(name):
        draft.put("device.resource", name)
        draft.devices = whole(source, amount)
        draft.became(source, "spec.device.resource; how many follows from the engine's parallelism")
        return
    draft.container().setdefault("resources", {}).setdefault(part, {})[name] = amount
    draft.became(source, f"spec.podTemplate ({ENGINE}.resources.{part})")


def to_container(name: str) -> Action:
    """The field becomes the same field of the engine's container, by ``podTemplate``; lists are joined."""

    def act(draft: PoolDraft, source: str, value: Any) -> None:
        container = draft.container()
        container[name] = [*container.get(name, []), *value] if isinstance(value, list) else value
        draft.became(source, f"spec.podTemplate ({ENGINE}.{name})")

    return act


def _command(draft: PoolDraft, source: str, value: Any) -> None:
    words = value if isinstance(value, list) else [value]
    if words[:2] == ["vllm", "serve"]:
        draft.spares(source, "the operator starts vLLM")
        read_words(draft, source, words)
    else:
        draft.lacks(source, "the operator starts vLLM: write what it is told as words of spec.engine.extraArgs")


def _arguments(draft: PoolDraft, source: str, value: Any) -> None:
    script = next((word for word in value if isinstance(word, str) and "\n" in word.strip()), None)
    if script is None:
        words = list(value)
        first = words[0] if words and isinstance(words[0], str) else ""
        read_words(draft, source, ["--model", *words] if first and not first.startswith("-") else words)
    else:
        draft.lacks(source, "is a script: write vLLM's arguments as words of spec.engine.extraArgs")


CONTAINER: Final[Table] = {
    ".name": spares(f"the container is {ENGINE}"),
    ".image": to("engine.image"),
    ".imagePullPolicy": to_container("imagePullPolicy"),
    ".command": _command,
    ".args": _arguments,
    ".env": read_variables,
    ".envFrom": lacks("name each variable in spec.engine.env, with valueFrom"),
    ".resources": read_resources,
    ".ports": spares(_PORTS),
    ".startupProbe": spares(_OWN_PROBE),
    ".livenessProbe": spares(_OWN_PROBE),
    ".readinessProbe": spares(_OWN_PROBE),
    ".lifecycle": to_container("lifecycle"),
    ".securityContext": to_container("securityContext"),
    ".volumeMounts": to_container("volumeMounts"),
    ".workingDir": to_container("workingDir"),
}
"""A container that runs vLLM."""


def containers(engine: str, table: Table = CONTAINER) -> Action:
    """A pod's containers: the one of that name, or the only one, is vLLM's; others stay beside it."""

    def act(draft: PoolDraft, source: str, value: Any) -> None:
        found = [one for one in value if isinstance(one, Mapping)] if isinstance(value, list) else []
        if len(found) != len(value) or not found:
            raise refused(source, value, "must be a list of containers")
        ours = next((one for one in found if one.get("name") == engine), found[0] if len(found) == 1 else None)
        for number, one in enumerate(found):
            where = f"{source}[{number}]"
            if one is ours:
                read_fields(draft, table, one, source=where)
            else:
                refuse_templates(one, where)
                draft.append("podTemplate.spec.containers", [dict(one)])
                draft.became(where, "spec.podTemplate.spec.containers")
        if ours is None:
            draft.lacks(source, f"has no container {engine}, which would be vLLM's")

    return act


POD: Final[Table] = {
    f".{name}": to_pod(f"spec.{name}")
    for name in (
        "affinity",
        "dnsConfig",
        "dnsPolicy",
        "hostAliases",
        "imagePullSecrets",
        "initContainers",
        "nodeName",
        "nodeSelector",
        "priorityClassName",
        "runtimeClassName",
        "schedulerName",
        "securityContext",
        "terminationGracePeriodSeconds",
        "tolerations",
        "topologySpreadConstraints",
        "volumes",
    )
} | {".serviceAccountName": spares("workers have a service account of their own, which reports for them")}
"""Fields of a pod's spec besides its containers."""


def node_terms(draft: PoolDraft, source: str, value: Any) -> None:
    """Take the terms that a pod's node must fulfil."""
    path = "podTemplate.spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms"
    draft.append(path, list(value))
    draft.became(source, f"spec.{path}")


def pull_secret(draft: PoolDraft, source: str, value: Any) -> None:
    """Take the name of a Secret with which images are pulled."""
    draft.append("podTemplate.spec.imagePullSecrets", [{"name": text(source, value)}])
    draft.became(source, "spec.podTemplate.spec.imagePullSecrets")


def shared_memory(draft: PoolDraft, source: str, value: Any) -> None:
    """Take the size of the engine's shared memory."""
    size = {"medium": "Memory", "sizeLimit": str(value)}
    draft.append("podTemplate.spec.volumes", [{"name": "shm", "emptyDir": size}])
    draft.became(source, "spec.podTemplate.spec.volumes (shm)")
