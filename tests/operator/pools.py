"""Pools as the API server has them, for tests of the operator."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

from cachefleet_core.pool.spec import PrefixCachePool
from cachefleet_operator.settings import Settings
from cachefleet_operator.status.pool_assessment import judge

SPEC: dict[str, Any] = {
    "model": {"name": "tiny", "source": "org/tiny", "weightsMiB": 100, "kvBytesPerToken": 1024},
    "replicas": 2,
    "engine": {"maxModelLen": 2048},
    "device": {"memoryMiB": 8192},
    "prefixCache": {"budgetMiB": 512},
}
SETTINGS = Settings(agent_image="example.org/agent:1", operator_namespace="ops")


def document(spec: dict[str, Any] | None = None, **metadata: Any) -> dict[str, Any]:
    """The pool serving/demo; ``spec`` is laid over SPEC one level deep."""
    merged = deepcopy(SPEC)
    for name, value in (spec or {}).items():
        merged[name] = {**merged.get(name, {}), **value} if isinstance(value, dict) else value
    own = {"name": "demo", "namespace": "serving", "uid": "uid-1", "generation": 1, "resourceVersion": "10"}
    return {
        "apiVersion": "cachefleet.io/v1alpha1",
        "kind": "PrefixCachePool",
        "metadata": {**own, **metadata},
        "spec": merged,
    }


def pool(spec: dict[str, Any] | None = None, **metadata: Any) -> PrefixCachePool:
    found, verdict = judge(document(spec, **metadata))
    assert found is not None, verdict
    return found
