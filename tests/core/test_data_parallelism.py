"""The data-parallel size that a pool declares."""

from typing import Any

import pytest

from cachefleet_core.data_parallelism import declared_ranks
from cachefleet_core.pool.worker_spec import EngineSpec


@pytest.mark.parametrize(
    ("declared", "ranks"),
    [
        ({}, 1),
        ({"extraArgs": ["--enforce-eager"]}, 1),
        ({"extraArgs": ["--data-parallel-size=4"]}, 4),
        ({"extraArgs": ["--data_parallel_size", "4", "--enforce-eager"]}, 4),
        ({"extraArgs": ["-dp", "2"]}, 2),
        ({"extraArgs": ["-dp=2", "--data-parallel-size=8"]}, 8),
        ({"extraArgs": ["--data-parallel-size"]}, None),
        ({"extraArgs": ["--data-parallel-size=many"]}, None),
        ({"extraArgs": ["--data-parallel-size=0"]}, None),
        ({"extraArgs": ["--config", "/etc/vllm.yaml"]}, None),
        ({"extraArgs": ["--data-parallel-rank=3"]}, 1),
        ({"env": [{"name": "VLLM_DP_SIZE", "value": "3"}]}, 3),
        ({"env": [{"name": "VLLM_DP_SIZE", "valueFrom": {"configMapKeyRef": {}}}]}, None),
    ],
)
def test_they_are_read_from_the_engines_arguments(declared: dict[str, Any], ranks: int | None) -> None:
    assert declared_ranks(EngineSpec.model_validate({"maxModelLen": 4096, **declared})) == ranks
