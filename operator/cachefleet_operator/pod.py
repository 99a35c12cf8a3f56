"""The worker pod of a pool: the engine, and the agent beside it as a native sidecar (pure)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from cachefleet_core.engine import engine_arguments, engine_environment
from cachefleet_core.pool import EnvVar, KeyRef, PoolSpec, PrefixCachePool
from cachefleet_operator import names
from cachefleet_operator.patch import merged
from cachefleet_operator.settings import Settings

Manifest = dict[str, Any]

ENGINE_PORT: Final = 8000
AGENT_PORT: Final = 8082
SOCKETS: Final = "/run/cachefleet"
# Between the two containers alone. Over TCP vLLM binds only to every address, and its events are not authenticated.
EVENTS_ENDPOINT: Final = f"ipc://{SOCKETS}/events"
REPLAY_ENDPOINT: Final = f"ipc://{SOCKETS}/replay"
AUDIENCE: Final = "cachefleet"
USER: Final = 65532
TOKEN_SECONDS: Final = 3600
GRACE_SECONDS: Final = 60
PROBE_SECONDS: Final = 10
CACHE: Final = "/cache"
CHAT_TEMPLATE: Final = "/etc/cachefleet/chat/template.jinja"
_KEYS: Final = "/etc/cachefleet/keys"
_POLICY: Final = "/etc/cachefleet/policy"
_TOKEN: Final = "/var/run/secrets/cachefleet"  # noqa: S105  # a folder


class TemplateError(ValueError):
    """A ``spec.podTemplate`` that is no patch of a pod template."""


def pod_template(pool: PrefixCachePool, settings: Settings) -> Manifest:
    """The template of a pool's worker pods, the pool's own patch applied. TemplateError where that is none."""
    template: Manifest = {
        "metadata": {
            "labels": names.labels(pool),
            "annotations": {"kubectl.kubernetes.io/default-container": "engine"},
        },
        "spec": {
            "serviceAccountName": names.service_account(pool),
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,  # their variables begin with the Service's name and may clash with vLLM's
            "terminationGracePeriodSeconds": GRACE_SECONDS,
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": USER,
                "runAsGroup": USER,
                "fsGroup": USER,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "initContainers": [_agent(pool, settings)],
            "containers": [_engine(pool, settings)],
            "volumes": _volumes(pool, settings),
        },
    }
    patched = merged(template, _checked(pool.spec.pod_template))
    # The Deployment and the Service find the pods by these.
    return merged(patched, {"metadata": {"labels": names.labels(pool)}})


def _engine(pool: PrefixCachePool, settings: Settings) -> Manifest:
    spec = pool.spec
    return {
        "name": "engine",
        "image": spec.engine.image,
        # Not `vllm serve`: the CPU build's distribution has another name, which that command does not find.
        "command": ["python3", "-m", "vllm.entrypoints.openai.api_server"],
        "args": _arguments(spec),
        "env": _engine_variables(pool),
        "ports": [{"name": "engine", "containerPort": ENGINE_PORT, "protocol": "TCP"}],
        "resources": _resources(spec),
        "startupProbe": _probe("/health", "engine", failures=settings.worker_start_seconds // PROBE_SECONDS),
        "livenessProbe": _probe("/health", "engine", failures=6),
        "securityContext": _container_security(),
        "volumeMounts": [
            {"name": "tmp", "mountPath": "/tmp"},  # noqa: S108  # the container's own, an emptyDir
            {"name": "shm", "mountPath": "/dev/shm"},  # noqa: S108  # as above, in memory
            {"name": "cache", "mountPath": CACHE},
            {"name": "sockets", "mountPath": SOCKETS},
            *_chat_mounts(spec),
        ],
    }


def _arguments(spec: PoolSpec) -> list[str]:
    return engine_arguments(
        spec,
        model_path=spec.model.source,
        host="0.0.0.0",  # noqa: S104  # the gateway comes from outside the pod; the engine asks for its key
        port=ENGINE_PORT,
        events_endpoint=EVENTS_ENDPOINT,
        replay_endpoint=REPLAY_ENDPOINT,
        chat_template=CHAT_TEMPLATE if spec.model.chat_template else None,
    )


def _engine_variables(pool: PrefixCachePool) -> list[Manifest]:
    spec = pool.spec
    own = {
        "HOME": "/tmp",  # noqa: S108  # the only place this user may write
        "USER": "cachefleet",  # torch asks for the user's name, which an image without this uid cannot tell
        "HF_HOME": f"{CACHE}/huggingface",
        **engine_environment(spec),
    }
    variables = {name: _value(name, value) for name, value in own.items()}
    if spec.model.hub_token_secret_ref:
        variables["HF_TOKEN"] = _from_secret("HF_TOKEN", spec.model.hub_token_secret_ref)
    variables |= {variable.name: _variable(variable) for variable in spec.engine.env}
    key = KeyRef(name=names.keys(pool), key=names.WORKER_KEY)
    variables["VLLM_API_KEY"] = _from_secret("VLLM_API_KEY", key)  # never the user's: the gateway knows only this one
    return list(variables.values())


def _agent(pool: PrefixCachePool, settings: Settings) -> Manifest:
    return {
        "name": "agent",
        "image": settings.agent_image,
        "restartPolicy": "Always",  # a native sidecar: up before the engine, gone after it
        "command": ["python3", "-m", "cachefleet_worker.agent"],
        "env": _agent_variables(pool, settings),
        "ports": [{"name": "agent", "containerPort": AGENT_PORT, "protocol": "TCP"}],
        "resources": {"requests": {"cpu": "100m", "memory": "128Mi"}},
        # The engine waits for the first; the pod is Ready when the agent says that the worker is.
        "startupProbe": _probe("/healthz", "agent", failures=60, period=1),
        "livenessProbe": _probe("/healthz", "agent", failures=6),
        "readinessProbe": _probe("/readyz", "agent", failures=1, period=2),
        "securityContext": _container_security(),
        "volumeMounts": [
            {"name": "keys", "mountPath": _KEYS, "readOnly": True},
            {"name": "policy", "mountPath": _POLICY, "readOnly": True},
            {"name": "token", "mountPath": _TOKEN, "readOnly": True},
            {"name": "sockets", "mountPath": SOCKETS},
            {"name": "agent-tmp", "mountPath": "/tmp"},  # noqa: S108  # the container's own, an emptyDir
        ],
    }


def _agent_variables(pool: PrefixCachePool, settings: Settings) -> list[Manifest]:
    fields = {"CACHEFLEET_WORKER": "metadata.name", "POD_IP": "status.podIP"}
    values = {
        "POOL": pool.key,
        "RANKS": "1",
        "ENGINE_URL": f"http://127.0.0.1:{ENGINE_PORT}",
        "ENDPOINT": f"http://$(POD_IP):{ENGINE_PORT}",
        "AGENT_ENDPOINT": f"http://$(POD_IP):{AGENT_PORT}",
        "EVENTS_ENDPOINT": EVENTS_ENDPOINT,
        "REPLAY_ENDPOINT": REPLAY_ENDPOINT,
        "CONTROL_PLANE_DNS": settings.control_plane_address,
        "TOKEN_FILE": f"{_TOKEN}/token",
        "INDEX_KEY_FILE": f"{_KEYS}/{names.INDEX_KEY}",
        "WORKER_KEY_FILE": f"{_KEYS}/{names.WORKER_KEY}",
        "POLICY_FILE": f"{_POLICY}/{names.POLICY_FILE}",
        "WEIGHTS": pool.spec.model.source,
        "REVISION": pool.spec.model.revision,
        "HTTP_HOST": "0.0.0.0",  # noqa: S104  # the kubelet's probes come from outside the pod
        "HTTP_PORT": str(AGENT_PORT),
    }
    return [
        *({"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}} for name, path in fields.items()),
        *(_value(f"CACHEFLEET_{name}", value) for name, value in values.items() if value),
    ]


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
        {"name": "keys", "secret": {"secretName": names.keys(pool), "defaultMode": 0o440}},
        {"name": "policy", "configMap": {"name": names.policy(pool)}},
        {"name": "token", "projected": {"sources": [{"serviceAccountToken": token}]}},
        *([{"name": "chat-template", "configMap": _chat_source(chat.config_map_key_ref)}] if chat else []),
    ]


def _chat_source(ref: KeyRef) -> Manifest:
    return {"name": ref.name, "items": [{"key": ref.key, "path": CHAT_TEMPLATE.rsplit("/", 1)[1]}]}


def _chat_mounts(spec: PoolSpec) -> list[Manifest]:
    if not spec.model.chat_template:
        return []
    return [{"name": "chat-template", "mountPath": CHAT_TEMPLATE.rsplit("/", 1)[0], "readOnly": True}]


def _resources(spec: PoolSpec) -> Manifest:
    if spec.device.is_cpu:
        return {"requests": {"memory": f"{spec.device.memory_mib}Mi"}}
    return {"limits": {spec.device.resource: str(spec.engine.tensor_parallel_size)}}


def _probe(path: str, port: str, *, failures: int, period: int = PROBE_SECONDS) -> Manifest:
    get = {"path": path, "port": port}
    return {"httpGet": get, "periodSeconds": period, "timeoutSeconds": 5, "failureThreshold": failures}


def _container_security() -> Manifest:
    return {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": True,
    }


def _value(name: str, value: str) -> Manifest:
    return {"name": name, "value": value}


def _from_secret(name: str, ref: KeyRef) -> Manifest:
    return {"name": name, "valueFrom": {"secretKeyRef": {"name": ref.name, "key": ref.key}}}


def _variable(variable: EnvVar) -> Manifest:
    if variable.value_from is not None:
        return {"name": variable.name, "valueFrom": dict(variable.value_from)}
    return _value(variable.name, variable.value or "")


def _checked(patch: Mapping[str, Any]) -> Mapping[str, Any]:
    allowed = {"metadata": ("labels", "annotations"), "spec": None}
    for name, value in patch.items():
        if name not in allowed:
            raise TemplateError(f"spec.podTemplate.{name}: is not a known field; known are metadata and spec")
        if not isinstance(value, Mapping):
            raise TemplateError(f"spec.podTemplate.{name}: must be a mapping")
    for name, value in patch.get("metadata", {}).items():
        path = f"spec.podTemplate.metadata.{name}"
        if name not in ("labels", "annotations"):
            raise TemplateError(f"{path}: is not a known field; known are labels and annotations")
        if not isinstance(value, Mapping) or not all(isinstance(text, str | None) for text in value.values()):
            raise TemplateError(f"{path}: must be a mapping of text")
    return patch
