"""Ports, paths and builders of fields that the containers of a worker pod share (pure)."""

from __future__ import annotations

import hashlib
from typing import Any, Final

from cachefleet_core.pool.spec import PrefixCachePool
from cachefleet_core.pool.worker_spec import EnvVar, KeyRef

Manifest = dict[str, Any]

ENGINE_PORT: Final = 8000
AGENT_PORT: Final = 8082
SOCKETS: Final = "/run/cachefleet"
# Unix sockets between the two containers: over TCP vLLM binds to all addresses, and its events are not authenticated.
EVENTS_ENDPOINT: Final = f"ipc://{SOCKETS}/events"
REPLAY_ENDPOINT: Final = f"ipc://{SOCKETS}/replay"
PLUGIN_FOLDER: Final = "/cachefleet"
"""Where the plugin is copied to; on the engine's PYTHONPATH."""
KEYS: Final = "/etc/cachefleet/keys"
POLICY: Final = "/etc/cachefleet/policy"
PROBE_SECONDS: Final = 10
CLAIM: Final = "devices"
"""Name, in a worker pod, of the ResourceClaim for the engine's devices."""
TLS: Final = "/etc/cachefleet/tls"
"""Where the workers' certificate is mounted."""


def drain_path(pool: PrefixCachePool) -> str:
    """Path at which a pool's agents take the request to drain, which has no credential.

    Those who may read the pool or its pods can derive it; others in the pods' network cannot.
    """
    digest = hashlib.sha256(f"cachefleet drain {pool.metadata.uid}".encode()).hexdigest()
    return f"/drain/{digest[:32]}"


def http_get(path: str, port: str | int, *, tls: bool) -> Manifest:
    """A request of the kubelet, which does not verify certificates."""
    return {"path": path, "port": port, **({"scheme": "HTTPS"} if tls else {})}


def probe(get: Manifest, *, failures: int, period: int = PROBE_SECONDS) -> Manifest:
    """Probe by ``http_get`` every ``period`` seconds, failed after ``failures`` in a row."""
    return {"httpGet": get, "periodSeconds": period, "timeoutSeconds": 5, "failureThreshold": failures}


def restricted() -> Manifest:
    """Security context of the Pod Security Standard of that name, with a read-only root file system."""
    return {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": True,
    }


def mount(name: str, path: str) -> Manifest:
    """Volume mount that may be written."""
    return {"name": name, "mountPath": path}


def read_only(name: str, path: str) -> Manifest:
    """Volume mount that may only be read."""
    return {**mount(name, path), "readOnly": True}


def plain(name: str, value: str) -> Manifest:
    """Environment variable with a literal value."""
    return {"name": name, "value": value}


def from_secret(name: str, ref: KeyRef) -> Manifest:
    """Environment variable from a key of a Secret in the pool's namespace."""
    return {"name": name, "valueFrom": {"secretKeyRef": {"name": ref.name, "key": ref.key}}}


def variable(given: EnvVar, name: str = "") -> Manifest:
    """Environment variable of a pool's spec, renamed where ``name`` is given."""
    if given.value_from is not None:
        return {"name": name or given.name, "valueFrom": dict(given.value_from)}
    return plain(name or given.name, given.value or "")
