"""The NetworkPolicy of a pool's workers: who may connect to them (pure).

The kubelet's probes are no matter of policies: what comes from a pod's own node is always let in.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from cachefleet_core.pool.spec import PrefixCachePool
from cachefleet_operator import names
from cachefleet_operator.manifests.container import AGENT_PORT, ENGINE_PORT, Manifest

_EVERYBODY: Final[Manifest] = {}


def closed_to_others(pool: PrefixCachePool, peers: Sequence[Manifest]) -> Manifest:
    """Spec that lets ``peers`` reach engine and agent, and workers each other where blocks are transferred."""
    ports = [{"port": port, "protocol": "TCP"} for port in (ENGINE_PORT, AGENT_PORT)]
    return _spec(pool, [{"ports": ports, "from": list(peers)}, *_transfer(pool)])


def open_to_all(pool: PrefixCachePool) -> Manifest:
    """Spec that bounds nothing, in place of one that did."""
    return _spec(pool, [_EVERYBODY])


def _transfer(pool: PrefixCachePool) -> list[Manifest]:
    """Connectors choose ports of their own; the other side may be another pool of the fleet, in this namespace."""
    if pool.spec.engine.kv_transfer.kv_connector is None:
        return []
    return [{"from": [{"podSelector": {"matchLabels": {names.MANAGED_BY: names.OPERATOR}}}]}]


def _spec(pool: PrefixCachePool, ingress: list[dict[str, Any]]) -> Manifest:
    workers = {"matchLabels": {names.POOL_LABEL: pool.metadata.name}}
    return {"podSelector": workers, "policyTypes": ["Ingress"], "ingress": ingress}
