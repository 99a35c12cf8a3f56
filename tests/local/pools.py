"""Pools for tests of the local fleet."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from cachefleet_core.pool.spec import PrefixCachePool, parse_pools
from cachefleet_local.fleet.data_folder import DataFolder
from cachefleet_local.fleet.processes import Place, port_names, replica_names

EXAMPLES = Path(__file__).parents[2] / "examples"


def example(name: str) -> list[PrefixCachePool]:
    return parse_pools((EXAMPLES / f"{name}.yaml").read_text())


def changed(name: str, old: str, new: str) -> list[PrefixCachePool]:
    text = (EXAMPLES / f"{name}.yaml").read_text()
    assert old in text
    return parse_pools(text.replace(old, new))


def place(pools: list[PrefixCachePool], *, replicas: int = 1, **changes: Any) -> Place:
    names = replica_names(replicas)
    values: dict[str, Any] = {
        "folder": DataFolder(Path("/data")),
        "run": Path("/run/s"),
        "python": "python",
        "engine_python": "engine-python",
        "ports": {name: 9000 + i for i, name in enumerate(port_names(pools, names, envoy=bool(changes.get("envoy"))))},
        "replicas": names,
        "models": {
            "cachefleet/tiny": "/models/tiny",
            "cachefleet/small": "/models/small",
            "Qwen/Qwen3-32B": "Qwen/Qwen3-32B",
            **{one.source: one.source for pool in pools for one in pool.spec.model.adapters},
        },
    }
    return Place(**{**values, **changes})
