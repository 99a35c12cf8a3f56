"""Pod template of a pool's workers: engine container, plugin copier, and the agent as a native sidecar (pure)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from cachefleet_core.pool.spec import PrefixCachePool
from cachefleet_core.pool.worker_spec import KeyRef, PodIdentity
from cachefleet_operator import names
from cachefleet_operator.manifests.agent_container import agent_container, plugin_container
from cachefleet_operator.manifests.claim_template import pod_claims
from cachefleet_operator.manifests.container import Manifest
from cachefleet_operator.manifests.engine_container import CHAT_TEMPLATE, engine_container
from cachefleet_operator.manifests.pod_patch import merged
from cachefleet_operator.manifests.pod_removals import without
from cachefleet_operator.manifests.pod_times import grace_seconds, within_grace
from cachefleet_operator.manifests.protected_fields import replaced
from cachefleet_operator.manifests.weights_volumes import weights_volumes
from cachefleet_operator.settings import Settings

AUDIENCE: Final = "cachefleet"
USER: Final = 65532
TOKEN_SECONDS: Final = 3600
_IDENTITY: Final[Mapping[str, Any]] = {
    "runAsUser": USER,
    "runAsGroup": USER,
    "fsGroup": USER,
    "seccompProfile": {"type": "RuntimeDefault"},
}
"""What a cluster may want to choose itself, as OpenShift does of each namespace's range."""
_REMOVE: Final = "remove"
_PATH: Final = re.compile("/(spec|metadata/(labels|annotations))(/[^/]+)+")


class TemplateError(ValueError):
    """``spec.podTemplate`` is not a valid patch of a pod template, or replaces what is not the pool's to replace."""


def pod_template(pool: PrefixCachePool, settings: Settings, *, chat_template: str = "", keys: str = "") -> Manifest:
    """The template of a pool's worker pods, the pool's patch applied. TemplateError where it cannot be.

    ``chat_template`` is the digest of the pool's chat template, "" where it names none, ``keys`` the mark of the
    keys that pods hold: a new one replaces the pods.
    """
    if path := next(_with_nul(pool.spec.pod_template, "spec.podTemplate"), ""):
        raise TemplateError(f"{path}: must not have the character NUL (U+0000), which no container can be given")
    marks = _marks(chat_template, keys)
    template, patched = _made(pool, settings, marks)
    if (fitting := within_grace(settings, patched.get("spec") or {})) is not settings:
        template, patched = _made(pool, fitting, marks)
    if problem := next(replaced(template["spec"], patched.get("spec") or {}), ""):
        raise TemplateError(problem)
    # The Deployment and the Service select the pods by these labels.
    ours = {"labels": names.labels(pool), "annotations": marks}
    whole = merged(patched, {"metadata": ours})
    chosen = pool.spec.pod_identity or PodIdentity(settings.pod_identity.capitalize())
    return _left_to_the_cluster(whole) if chosen is PodIdentity.CLUSTER else whole


def _left_to_the_cluster(template: Manifest) -> Manifest:
    """Without our choice of who the pod is; a pool's own stays.

    Secrets stay readable: their files are of mode 0440, of the fsGroup that the cluster chooses or else of group 0,
    which a process of a user that is not in its image's /etc/passwd has.
    """
    security = template["spec"].get("securityContext") or {}
    kept = {name: value for name, value in security.items() if _IDENTITY.get(name) != value}
    return {**template, "spec": {**template["spec"], "securityContext": kept}}


def _made(pool: PrefixCachePool, settings: Settings, marks: Mapping[str, str]) -> tuple[Manifest, Manifest]:
    """The template before and after the pool's patch."""
    template = _own_template(pool, settings, marks)
    return template, _patched(template, _checked(pool.spec.pod_template))


def _own_template(pool: PrefixCachePool, settings: Settings, marks: Mapping[str, str]) -> Manifest:
    annotations = {"kubectl.kubernetes.io/default-container": "engine", **marks}
    return {
        "metadata": {"labels": names.labels(pool), "annotations": annotations},
        "spec": {
            "serviceAccountName": names.service_account(pool),
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,  # their variables begin with the Service's name and may clash with vLLM's
            "terminationGracePeriodSeconds": grace_seconds(settings),
            "topologySpreadConstraints": [_spread(pool)],
            "securityContext": {
                "runAsNonRoot": True,
                **_IDENTITY,
            },
            **_pull_secrets(settings),
            "initContainers": [plugin_container(settings), agent_container(pool, settings)],
            "containers": [engine_container(pool, settings)],
            "volumes": _volumes(pool, settings),
            **pod_claims(pool),
        },
    }


def _marks(chat_template: str, keys: str) -> dict[str, str]:
    digests = {names.CHAT_TEMPLATE: chat_template, names.KEYS: keys}
    return {name: digest for name, digest in digests.items() if digest}


def _spread(pool: PrefixCachePool) -> Manifest:
    """Prefer different nodes, so that losing one loses little of the fleet's cache; never delay scheduling."""
    return {
        "topologyKey": "kubernetes.io/hostname",
        "maxSkew": 1,
        "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchLabels": {names.POOL_LABEL: pool.metadata.name}},
        "matchLabelKeys": ["pod-template-hash"],  # in a rollout only the new pods count
    }


def _pull_secrets(settings: Settings) -> Manifest:
    found = [{"name": name} for name in settings.image_pull_secrets]
    return {"imagePullSecrets": found} if found else {}


def _volumes(pool: PrefixCachePool, settings: Settings) -> list[Manifest]:
    shm = {"medium": "Memory", "sizeLimit": f"{settings.shared_memory_mib}Mi"}
    token = {"path": "token", "audience": AUDIENCE, "expirationSeconds": TOKEN_SECONDS}
    chat = pool.spec.model.chat_template
    return [
        {"name": "tmp", "emptyDir": {}},
        {"name": "agent-tmp", "emptyDir": {}},
        {"name": "shm", "emptyDir": shm},
        {"name": "sockets", "emptyDir": {"medium": "Memory"}},
        {"name": "cache", "emptyDir": {}},
        {"name": "plugin", "emptyDir": {}},
        {"name": "keys", "secret": {"secretName": names.keys(pool.metadata.name), "defaultMode": 0o440}},
        {"name": "policy", "configMap": {"name": names.policy(pool)}},
        {"name": "token", "projected": {"sources": [{"serviceAccountToken": token}]}},
        *([{"name": "tls", "secret": _tls_source(pool, settings)}] if settings.serves_tls else []),
        *([{"name": "chat-template", "configMap": _chat_source(chat.config_map_key_ref)}] if chat else []),
        *weights_volumes(pool.spec.model),
    ]


def _tls_source(pool: PrefixCachePool, settings: Settings) -> Manifest:
    given = settings.tls_worker_secret if settings.tls == "existing" else ""
    return {"secretName": given or names.certificate(pool.metadata.name), "defaultMode": 0o440}


def _chat_source(ref: KeyRef) -> Manifest:
    return {"name": ref.name, "items": [{"key": ref.key, "path": CHAT_TEMPLATE.rsplit("/", 1)[1]}]}


def _patched(template: Manifest, patch: Mapping[str, Any]) -> Manifest:
    """Removals come first, so that a pool can put something else in their place."""
    paths = patch.get(_REMOVE) or []
    try:
        base = without(template, paths)
    except LookupError as error:
        raise TemplateError(f"spec.podTemplate.{_REMOVE}: {error.args[0]}") from error
    return merged(base, {name: value for name, value in patch.items() if name != _REMOVE})


def _checked(patch: Mapping[str, Any]) -> Mapping[str, Any]:
    for name, value in patch.items():
        if name not in ("metadata", _REMOVE, "spec"):
            raise TemplateError(f"spec.podTemplate.{name}: is not a known field; known are metadata, remove and spec")
        if name == _REMOVE:
            _check_paths(value)
        elif not isinstance(value, Mapping):
            raise TemplateError(f"spec.podTemplate.{name}: must be a mapping")
    for name, value in patch.get("metadata", {}).items():
        path = f"spec.podTemplate.metadata.{name}"
        if name not in ("labels", "annotations"):
            raise TemplateError(f"{path}: is not a known field; known are labels and annotations")
        if not isinstance(value, Mapping) or not all(isinstance(text, str | None) for text in value.values()):
            raise TemplateError(f"{path}: must be a mapping of text")
    return patch


def _with_nul(value: Any, path: str) -> Iterator[str]:
    """Where in a patch there is a NUL, which the API server takes and no container runtime does."""
    if isinstance(value, str) and "\0" in value:
        yield path
    parts = value.items() if isinstance(value, Mapping) else enumerate(value) if isinstance(value, list) else ()
    for name, part in parts:
        where = f"{path}[{name}]" if isinstance(value, list) else f"{path}.{name}"
        yield from _with_nul(part, where) if "\0" not in str(name) else [path]


def _check_paths(paths: Any) -> None:
    if not isinstance(paths, list) or not all(isinstance(path, str) and _PATH.fullmatch(path) for path in paths):
        words = "must be a list of paths such as /spec/securityContext/fsGroup or /spec/containers/engine/livenessProbe"
        raise TemplateError(f"spec.podTemplate.{_REMOVE}: {words}")
