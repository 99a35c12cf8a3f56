"""What the containers of a worker pod share: ports, folders, and the small pieces that each is made of (pure)."""

from __future__ import annotations

import hashlib
from typing import Any, Final

from cachefleet_core.pool.spec import PrefixCachePool
from cachefleet_core.pool.worker import EnvVar, KeyRef

Manifest = dict[str, Any]

ENGINE_PORT: Final = 8000
AGENT_PORT: Final = 8082
SOCKETS: Final = "/run/cachefleet"
# Between the two containers alone. Over TCP vLLM binds only to every address, and its events are not authenticated.
EVENTS_ENDPOINT: Final = f"ipc://{SOCKETS}/events"
REPLAY_ENDPOINT: Final = f"ipc://{SOCKETS}/replay"
PLUGIN_FOLDER: Final = "/cachefleet"
"""Where the plugin is copied to; on the engine's PYTHONPATH."""
KEYS: Final = "/etc/cachefleet/keys"
POLICY: Final = "/etc/cachefleet/policy"
PROBE_SECONDS: Final = 10


def drain_path(pool: PrefixCachePool) -> str:
    """Where a pool's agents take the kubelet's request to drain, which comes without a credential.

    Whoever may read the pool or its pods can work it out; in the pods' network nobody can.
    """
    digest = hashlib.sha256(f"cachefleet drain {pool.metadata.uid}".encode()).hexdigest()
    return f"/drain/{digest[:32]}"


def probe(path: str, port: str, *, failures: int, period: int = PROBE_SECONDS) -> Manifest:
    get = {"path": path, "port": port}
    return {"httpGet": get, "periodSeconds": period, "timeoutSeconds": 5, "failureThreshold": failures}


def restricted() -> Manifest:
    """A container's part of the Pod Security Standard of that name, and nothing of its image to write to."""
    return {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": True,
    }


def mount(name: str, path: str) -> Manifest:
    return {"name": name, "mountPath": path}


def read_only(name: str, path: str) -> Manifest:
    return {**mount(name, path), "readOnly": True}


def plain(name: str, value: str) -> Manifest:
    """An environment variable with a value."""
    return {"name": name, "value": value}


def from_secret(name: str, ref: KeyRef) -> Manifest:
    return {"name": name, "valueFrom": {"secretKeyRef": {"name": ref.name, "key": ref.key}}}


def variable(given: EnvVar, name: str = "") -> Manifest:
    """A variable as a pool gives it, under its own name or another."""
    if given.value_from is not None:
        return {"name": name or given.name, "valueFrom": dict(given.value_from)}
    return plain(name or given.name, given.value or "")
