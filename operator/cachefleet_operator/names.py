"""Names, labels and annotations of the objects that a pool owns (pure). The control plane finds workers by them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from cachefleet_core.pool.spec import PrefixCachePool
from cachefleet_core.pool.worker_pods import DEPLOYMENT_SUFFIX

POOL_LABEL: Final = "cachefleet.io/pool"
MANAGED_BY: Final = "app.kubernetes.io/managed-by"
OPERATOR: Final = "cachefleet-operator"
OURS: Final = {"app.kubernetes.io/part-of": "cachefleet", MANAGED_BY: OPERATOR}
"""Labels of every object that the operator makes."""
FLEET_KEY_SECRET: Final = "cachefleet-fleet-key"  # noqa: S105  # a name
FLEET_KEY: Final = "fleet.key"
AUTHORITY: Final = "cachefleet-ca"
"""Secret of the authority that signs certificates, and ConfigMap of what to trust."""
INDEX_KEY: Final = "index.key"
WORKER_KEY: Final = "worker.key"
POLICY_FILE: Final = "policy.json"
TEMPLATE: Final = "cachefleet.io/template"
"""Annotation of a pod with the digest of the template it was made from."""
KEYS: Final = "cachefleet.io/keys"
"""Annotation of a pod with a digest of the keys that it holds."""
KEYS_REPAIRS: Final = "cachefleet.io/repairs"
"""Annotation of a Secret with keys: how often it was put right while pods may have read others, and when last."""
CHAT_TEMPLATE: Final = "cachefleet.io/chat-template"
"""Annotation of a pod with the digest of the chat template it was made with."""


def selector(name: str) -> str:
    """Label selector of the workers of the pool ``name``, as text."""
    return f"{POOL_LABEL}={name}"


def is_ours(live: Mapping[str, Any]) -> bool:
    """Whether an object says that the operator made it."""
    return (live["metadata"].get("labels") or {}).get(MANAGED_BY) == OPERATOR


def labels(pool: PrefixCachePool) -> dict[str, str]:
    """Labels of every object of a pool, its pods included."""
    return {
        "app.kubernetes.io/name": "cachefleet-worker",
        "app.kubernetes.io/instance": pool.metadata.name,
        "app.kubernetes.io/component": "worker",
        **OURS,
        POOL_LABEL: pool.metadata.name,
    }


def deployment(name: str) -> str:
    """Name of the Deployment that runs the workers of the pool ``name``."""
    return f"{name}{DEPLOYMENT_SUFFIX}"


def service(name: str) -> str:
    """Name of the headless Service of the workers of the pool ``name``."""
    return f"{name}-workers"


def disruption_budget(pool: PrefixCachePool) -> str:
    """Name of the PodDisruptionBudget of a pool's workers."""
    return f"{pool.metadata.name}-workers"


def network_policy(pool: PrefixCachePool) -> str:
    """Name of the NetworkPolicy of a pool's workers."""
    return f"{pool.metadata.name}-workers"


def service_account(pool: PrefixCachePool) -> str:
    """Name of the ServiceAccount that a pool's workers run as."""
    return f"{pool.metadata.name}-worker"


def keys(pool: str) -> str:
    """Name of the Secret with the keys of the pool ``pool``; "-keys" had the index key of all pools."""
    return f"{pool}-worker-keys"


def certificate(pool: str) -> str:
    """Name of the Secret with the TLS certificate of the workers of the pool ``pool``."""
    return f"{pool}-worker-tls"


def policy(pool: PrefixCachePool) -> str:
    """Name of the ConfigMap with the engine policy that a pool's agents read."""
    return f"{pool.metadata.name}-policy"
