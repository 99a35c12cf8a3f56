"""Containers of a worker pod that run cachefleet's image: the agent, and one that copies the plugin (pure).

What they run is given as arguments to the image's entry point, which passes signals on.
"""

from __future__ import annotations

from typing import Final

import msgspec

from cachefleet_core.engine.engine_arguments import loads_while_running
from cachefleet_core.engine.engine_configuration import asked_configuration
from cachefleet_core.pool.spec import PrefixCachePool
from cachefleet_core.tls_names import AGENT_PORT_NAME
from cachefleet_operator import names
from cachefleet_operator.manifests.container import (
    AGENT_PORT,
    ENGINE_PORT,
    EVENTS_ENDPOINT,
    KEYS,
    PLUGIN_FOLDER,
    POLICY,
    REPLAY_ENDPOINT,
    SOCKETS,
    TLS,
    Manifest,
    drain_path,
    http_get,
    mount,
    plain,
    probe,
    read_only,
    restricted,
)
from cachefleet_operator.settings import Settings

_TOKEN: Final = "/var/run/secrets/cachefleet"  # noqa: S105  # a folder


def plugin_container(settings: Settings) -> Manifest:
    """Init container that copies the plugin to the engine's PYTHONPATH."""
    return {
        "name": "plugin",
        **_image(settings),
        "args": ["python3", "-m", "cachefleet_worker.plugin_install", PLUGIN_FOLDER],
        "resources": {"requests": {"cpu": "50m", "memory": "64Mi"}},
        "securityContext": restricted(),
        "volumeMounts": [mount("plugin", PLUGIN_FOLDER)],
    }


def agent_container(pool: PrefixCachePool, settings: Settings) -> Manifest:
    """Native sidecar that runs the agent."""
    tls = settings.serves_tls
    port = AGENT_PORT_NAME if tls else "agent"
    alive, ready = http_get("/healthz", port, tls=tls), http_get("/readyz", port, tls=tls)
    return {
        "name": "agent",
        **_image(settings),
        "restartPolicy": "Always",  # a native sidecar: up before the engine, gone after it
        "args": ["python3", "-m", "cachefleet_worker.agent"],
        "env": _variables(pool, settings),
        "ports": [{"name": port, "containerPort": AGENT_PORT, "protocol": "TCP"}],
        "resources": {"requests": {"cpu": "100m", "memory": "128Mi"}},
        # The engine starts after the first; the last makes the pod Ready when the agent says that the worker is.
        "startupProbe": probe(alive, failures=60, period=1),
        "livenessProbe": probe(alive, failures=6),
        "readinessProbe": probe(ready, failures=1, period=2),
        "securityContext": restricted(),
        "volumeMounts": [
            read_only("keys", KEYS),
            read_only("policy", POLICY),
            read_only("token", _TOKEN),
            mount("sockets", SOCKETS),
            mount("agent-tmp", "/tmp"),  # noqa: S108  # the container's own, an emptyDir
            *([read_only("tls", TLS)] if tls else []),
        ],
    }


def _image(settings: Settings) -> Manifest:
    policy = {"imagePullPolicy": settings.agent_pull_policy} if settings.agent_pull_policy else {}
    return {"image": settings.agent_image, **policy}


def _asked(pool: PrefixCachePool) -> str:
    asked = asked_configuration(pool.spec, plugin=True, events_endpoint=EVENTS_ENDPOINT)
    return msgspec.json.encode(asked).decode()


def _variables(pool: PrefixCachePool, settings: Settings) -> list[Manifest]:
    scheme = "https" if settings.serves_tls else "http"
    weights, revision = pool.spec.model.contract_names
    fields = {"CACHEFLEET_WORKER": "metadata.name", "POD_IP": "status.podIP"}
    values = {
        "POOL": pool.key,
        "RANKS": str(pool.spec.engine.data_parallel_size),
        "ENGINE_URL": f"{scheme}://127.0.0.1:{ENGINE_PORT}",
        "ENDPOINT": f"{scheme}://$(POD_IP):{ENGINE_PORT}",
        "AGENT_ENDPOINT": f"{scheme}://$(POD_IP):{AGENT_PORT}",
        "EVENTS_ENDPOINT": EVENTS_ENDPOINT,
        "REPLAY_ENDPOINT": REPLAY_ENDPOINT,
        "CONTROL_PLANE_DNS": settings.control_plane_address,
        "TOKEN_FILE": f"{_TOKEN}/token",
        "TLS_FOLDER": TLS if settings.serves_tls else "",
        "INDEX_KEY_FILE": f"{KEYS}/{names.INDEX_KEY}",
        "WORKER_KEY_FILE": f"{KEYS}/{names.WORKER_KEY}",
        "POLICY_FILE": f"{POLICY}/{names.POLICY_FILE}",
        "WEIGHTS": weights,
        "REVISION": revision,
        "ASKED": _asked(pool),
        "LOAD_ADAPTERS": "1" if loads_while_running(pool.spec) else "",
        "HTTP_HOST": "::",  # of both families; the kubelet's probes come from outside the pod
        "HTTP_PORT": str(AGENT_PORT),
        "DRAIN_PATH": drain_path(pool),
        "DRAIN_SECONDS": str(settings.worker_drain_seconds),
        "AFTER_DRAIN": "stay",  # the kubelet would restart the agent, and the worker would take requests again
    }
    return [
        *({"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}} for name, path in fields.items()),
        *(plain(f"CACHEFLEET_{name}", value) for name, value in values.items() if value),
    ]
