"""What a pool asks of an engine, and where an engine has something else."""

from __future__ import annotations

from typing import Any

import pytest

from cachefleet_core.engine.engine_configuration import (
    EngineConfiguration,
    asked_configuration,
    differences,
    lacks_prefix_cache,
)
from cachefleet_core.index_contract import Difference
from cachefleet_core.pool.spec import read_pool
from tests.core.invalid_pools import VALID, merged


def asked(**spec: Any) -> EngineConfiguration:
    return asked_configuration(
        read_pool(merged(VALID, {"spec": spec})).spec, plugin=True, events_endpoint="ipc:///run/events"
    )


def test_what_a_pool_asks_for() -> None:
    found = asked(engine={"tensorParallelSize": 2, "dataParallelSize": 4, "maxModelLen": 8192, "blockSize": 32})

    assert (found.served_model_name, found.max_model_len, found.block_size) == ("qwen3-32b", 8192, 32)
    assert (found.tensor_parallel_size, found.data_parallel_size) == (2, 4)
    assert (found.enable_prefix_caching, found.prefix_caching_hash_algo) == (True, "sha256_cbor")
    assert (found.enable_kv_cache_events, found.events_endpoint) == (True, "ipc:///run/events")
    assert (found.num_gpu_blocks_override, (found.kv_cache_memory_bytes or 0) % 2**20) == (0, 0)


def test_nothing_is_asked_of_a_cache_that_is_off_nor_of_a_default_block_size() -> None:
    found = asked(prefixCache={"enabled": False})

    assert (found.enable_prefix_caching, found.prefix_caching_hash_algo, found.block_size) == (False, None, None)


@pytest.mark.parametrize("field", [name for name in EngineConfiguration.__struct_fields__ if name != "adapters"])
def test_each_field_that_an_engine_has_otherwise_is_a_difference(field: str) -> None:
    wanted = asked(engine={"blockSize": 32})
    value = getattr(wanted, field)
    other: Any = (not value) if isinstance(value, bool) else f"{value}x" if isinstance(value, str) else value + 1
    given: dict[str, Any] = {field: other}
    real = EngineConfiguration(**given)

    assert differences(wanted, wanted) == differences(wanted, EngineConfiguration()) == ()
    assert differences(EngineConfiguration(), wanted) == ()
    assert differences(wanted, real) == (
        Difference(field, str(value).lower() if value is True else str(value), _text(other)),
    )


@pytest.mark.parametrize(
    ("wanted", "has", "lacks"), [(True, False, True), (True, True, False), (False, True, False), (True, None, False)]
)
def test_an_engine_without_the_prefix_cache_that_its_pool_wants(
    wanted: bool,  # noqa: FBT001 # a column of the table
    has: bool | None,  # noqa: FBT001
    lacks: bool,  # noqa: FBT001
) -> None:
    found = differences(asked(prefixCache={"enabled": wanted}), EngineConfiguration(enable_prefix_caching=has))
    assert lacks_prefix_cache(found) is lacks


ADAPTERS = [
    {"name": "sql", "source": "/weights/sql"},
    {"name": "french", "source": "acme/french", "revision": "5f3c"},
    {"name": "legal", "source": "acme/legal"},
]
SERVED = {"sql": "/weights/sql", "french": "/cache/snapshots/5f3c", "legal": "acme/legal"}


def test_adapters_are_asked_by_name_and_place_where_engines_load_them_at_their_start() -> None:
    found = asked(model={"adapters": ADAPTERS})
    assert found.adapters == {"sql": "/weights/sql", "french": "", "legal": "acme/legal"}
    assert asked().adapters is None
    running = {"env": [{"name": "VLLM_ALLOW_RUNTIME_LORA_UPDATING", "value": "1"}]}
    assert asked(model={"adapters": ADAPTERS}, engine=running).adapters is None


@pytest.mark.parametrize(
    ("served", "told"),
    [
        (SERVED, None),
        (SERVED | {"sql": "/other/x"}, ("sql=/weights/sql", "sql=/other/x")),
        (SERVED | {"other": "/o"}, ("none", "other=/o")),
        ({"sql": "/weights/sql"}, ("french, legal=acme/legal", "none")),
    ],
)
def test_adapters_that_an_engine_has_otherwise_are_a_difference(
    served: dict[str, str], told: tuple[str, str] | None
) -> None:
    expected = (Difference("adapters", *told),) if told else ()
    assert differences(asked(model={"adapters": ADAPTERS}), EngineConfiguration(adapters=served)) == expected
    assert differences(asked(), EngineConfiguration(adapters=served)) == ()


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
