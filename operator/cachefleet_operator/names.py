"""Names and labels of what a pool owns (pure). Other parts find workers by these."""

from __future__ import annotations

from typing import Final

from cachefleet_core.pool.spec import PrefixCachePool

POOL_LABEL: Final = "cachefleet.io/pool"
MANAGED_BY: Final = "app.kubernetes.io/managed-by"
OPERATOR: Final = "cachefleet-operator"
FLEET_KEY_SECRET: Final = "cachefleet-fleet-key"  # noqa: S105  # a name
FLEET_KEY: Final = "fleet.key"
INDEX_KEY: Final = "index.key"
WORKER_KEY: Final = "worker.key"
POLICY_FILE: Final = "policy.json"
TEMPLATE: Final = "cachefleet.io/template"
"""Annotation of a pod with the digest of the template it was made from."""
CHAT_TEMPLATE: Final = "cachefleet.io/chat-template"
"""Annotation of a pod with the digest of the chat template it was made with."""


def selector(name: str) -> str:
    """Label selector of a pool's workers, as text."""
    return f"{POOL_LABEL}={name}"


def labels(pool: PrefixCachePool) -> dict[str, str]:
    """On every object of a pool, its pods included."""
    return {
        "app.kubernetes.io/name": "cachefleet-worker",
        "app.kubernetes.io/instance": pool.metadata.name,
        "app.kubernetes.io/component": "worker",
        "app.kubernetes.io/part-of": "cachefleet",
        MANAGED_BY: OPERATOR,
        POOL_LABEL: pool.metadata.name,
    }


def deployment(name: str) -> str:
    return f"{name}-workers"


def service(pool: PrefixCachePool) -> str:
    return f"{pool.metadata.name}-workers"


def disruption_budget(pool: PrefixCachePool) -> str:
    return f"{pool.metadata.name}-workers"


def service_account(pool: PrefixCachePool) -> str:
    return f"{pool.metadata.name}-worker"


def keys(pool: PrefixCachePool) -> str:
    return f"{pool.metadata.name}-keys"


def policy(pool: PrefixCachePool) -> str:
    return f"{pool.metadata.name}-policy"
